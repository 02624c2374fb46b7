package retransmit

import (
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/libra-ina/libra/wire"
)

// Config parametrises a [Window]. Fields that are zero take their defaults.
type Config struct {
	// Size is the number of frames W that may be unacknowledged, and the span
	// of their sequence numbers: a power of two up to [wire.DefaultWindow],
	// which is the default. It cannot be larger, because every receiver's
	// [Filter] is dimensioned for that.
	Size int

	// InitialRTO is the retransmission timeout before the first round trip is
	// measured. Default 20 ms: RFC 6298 says 1 s, for the Internet; a round
	// trip inside a data centre takes well under a millisecond, and what is
	// left is the peer's scheduling.
	InitialRTO time.Duration

	// MinRTO is the least timeout. Default 5 ms: far above a round trip, but a
	// peer that shares its cores with other processes answers only when it is
	// scheduled, and a timeout below a scheduler slice would repeat frames
	// that are not lost.
	MinRTO time.Duration

	// MaxRTO bounds the exponential backoff. Default 1 s, so that a flow
	// resumes at most a second after its peer.
	MaxRTO time.Duration

	// Silence is how long the peer may answer nothing while frames are
	// unacknowledged before it is given up; see [SilentPeerError].
	// Default 10 s.
	Silence time.Duration
}

func (c Config) withDefaults() (Config, error) {
	setDefault(&c.Size, wire.DefaultWindow)
	setDefault(&c.InitialRTO, 20*time.Millisecond)
	setDefault(&c.MinRTO, 5*time.Millisecond)
	setDefault(&c.MaxRTO, time.Second)
	setDefault(&c.Silence, 10*time.Second)
	if c.Size < 0 || c.Size > wire.DefaultWindow || c.Size&(c.Size-1) != 0 {
		return c, fmt.Errorf("retransmit: window of %d frames: must be a power of two up to %d", c.Size, wire.DefaultWindow)
	}
	if c.MinRTO < 0 || c.MaxRTO < c.MinRTO {
		return c, fmt.Errorf("retransmit: timeouts from %v to %v: must not be negative nor reversed", c.MinRTO, c.MaxRTO)
	}
	if c.InitialRTO < c.MinRTO || c.InitialRTO > c.MaxRTO {
		return c, fmt.Errorf("retransmit: initial timeout %v is not between %v and %v", c.InitialRTO, c.MinRTO, c.MaxRTO)
	}
	if c.Silence < 0 {
		return c, errors.New("retransmit: limit of silence is negative")
	}
	return c, nil
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Entry is what a [Window] remembers of a frame for its owner. The window does
// not interpret it.
type Entry struct {
	Cookie uint64 // finds the frame's bytes, e.g. a UMEM address
	Len    uint32 // length of the frame in bytes
	Ticket uint32 // index of the push or pull that the frame belongs to

	// Repeated is set by the window in what Ack and Refuse return: the frame was
	// sent more than once, so the answer may be to any of its copies.
	Repeated bool
}

// Stats counts what happened to the frames of a [Window].
type Stats struct {
	Sent          uint64 // frames added
	Acked         uint64 // frames acknowledged
	Refused       uint64 // frames refused
	Retransmitted uint64 // retransmissions; a frame may have several
	Backoffs      uint64 // times that the timeout was doubled
	Repeated      uint64 // answers to frames that were answered before
	Unknown       uint64 // answers to frames that were never sent

	SRTT time.Duration // smoothed round-trip time, 0 before the first sample
	RTO  time.Duration // retransmission timeout now in force
}

// Window is the sender's state of one flow: the frames that are not
// acknowledged yet, and when each is to be sent again.
//
// A Window is not safe for concurrent use.
type Window struct {
	frames      []frame // frame seq is at seq mod len
	timers      *Wheel  // timer i belongs to frames[i]
	base        uint32  // oldest frame that may be outstanding
	next        uint32  // number of the next frame; next-base <= len(frames)
	outstanding int

	rtt         estimator
	lastBackoff Time
	silence     time.Duration
	heard       Time // last answer, or the send that ended an idle time
	stats       Stats
}

type frame struct {
	Entry
	sent        Time // last transmission
	timeout     time.Duration
	outstanding bool
	repeated    bool
}

// NewWindow returns an empty window whose first frame is [wire.FirstSeq].
func NewWindow(cfg Config) (*Window, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Window{
		frames:  make([]frame, cfg.Size),
		timers:  NewWheel(cfg.Size),
		base:    wire.FirstSeq,
		next:    wire.FirstSeq,
		rtt:     estimator{rto: cfg.InitialRTO, min: cfg.MinRTO, max: cfg.MaxRTO},
		silence: cfg.Silence,
	}, nil
}

// Base returns the oldest sequence number that is not answered, or [Window.NextSeq]
// if all are.
func (w *Window) Base() uint32 { return w.base }

// NextSeq returns the sequence number that the next [Window.Add] assigns, so
// that a frame can be sealed before it is added.
func (w *Window) NextSeq() uint32 { return w.next }

// Outstanding returns the number of frames that are not answered.
func (w *Window) Outstanding() int { return w.outstanding }

// Full reports whether no frame may be added. The span of the outstanding
// numbers counts, not how many there are: one unanswered frame holds up the
// frame W numbers later.
func (w *Window) Full() bool { return w.next-w.base >= uint32(len(w.frames)) }

// Stats returns the counters so far.
func (w *Window) Stats() Stats {
	s := w.stats
	s.SRTT, s.RTO = w.rtt.srtt, w.rtt.rto
	return s
}

// Add puts a frame that is sent now into the window and returns its sequence
// number; false, and no change, if the window is full.
func (w *Window) Add(now Time, e Entry) (seq uint32, ok bool) {
	if w.Full() {
		return 0, false
	}
	if w.outstanding == 0 {
		w.heard = now // nobody was asked anything until now
	}
	seq = w.next
	i := w.index(seq)
	w.frames[i] = frame{Entry: e, sent: now, timeout: w.rtt.rto, outstanding: true}
	w.timers.Set(i, now.Add(w.rtt.rto))
	w.next++
	w.outstanding++
	w.stats.Sent++
	return seq, true
}

// Ack takes frame seq, which the peer says it applied, out of the window. It
// returns false if the frame is not outstanding; such answers are counted and
// otherwise harmless, because retransmitted frames are answered repeatedly.
func (w *Window) Ack(now Time, seq uint32) (Entry, bool) {
	e, ok := w.answered(now, seq)
	if ok {
		w.stats.Acked++
	}
	return e, ok
}

// Refuse takes frame seq, which the peer says it will not apply, out of the
// window. It returns false if the frame is not outstanding.
func (w *Window) Refuse(now Time, seq uint32) (Entry, bool) {
	e, ok := w.answered(now, seq)
	if ok {
		w.stats.Refused++
	}
	return e, ok
}

func (w *Window) answered(now Time, seq uint32) (Entry, bool) {
	i := w.index(seq)
	f := &w.frames[i]
	if seq-w.base >= w.next-w.base || !f.outstanding {
		if newer(w.next, seq) {
			w.stats.Repeated++
			w.heard = now
		} else {
			w.stats.Unknown++
		}
		return Entry{}, false
	}
	w.heard = now
	if !f.repeated { // Karn's rule: which copy is answered would be a guess
		w.rtt.sample(now.Sub(f.sent))
	}
	f.outstanding = false
	w.timers.Cancel(i)
	w.outstanding--
	for w.base != w.next && !w.frames[w.index(w.base)].outstanding {
		w.base++
	}
	e := f.Entry
	e.Repeated = f.repeated
	return e, true
}

// Expired calls resend for every frame that is due for retransmission, with
// the number and entry that it had at [Window.Add]. If resend returns false,
// for instance because a transmit ring is full, that frame and the rest stay
// due and Expired returns nil. resend must not call methods of w.
//
// If the peer has been silent for too long, Expired resends nothing and
// returns a [*SilentPeerError]. Take in what has been received before calling
// it: after a pause of the whole process the answers may be waiting there.
func (w *Window) Expired(now Time, resend func(seq uint32, e Entry) bool) error {
	if err := w.Check(now); err != nil {
		return err
	}
	w.timers.Advance(now)
	for i, ok := w.timers.Fired(); ok; i, ok = w.timers.Fired() {
		f := &w.frames[i]
		// The path may have become slower since the frame was sent, for
		// instance because the rest of the window queues at the peer.
		if due := f.sent.Add(w.rtt.current); !f.repeated && due > now {
			w.timers.Set(i, due)
			continue
		}
		if !resend(w.seqAt(i), f.Entry) {
			return nil
		}
		// A burst of losses is one event: only a frame that was sent with the
		// present timeout says that this timeout is too short.
		if f.sent >= w.lastBackoff {
			w.rtt.backoff()
			w.lastBackoff = now
			w.stats.Backoffs++
		}
		// The frame's own timeout doubles too, whatever samples the others
		// bring: the path may drop this one frame every time.
		f.timeout = max(w.rtt.rto, w.rtt.clamp(2*f.timeout))
		f.sent, f.repeated = now, true
		w.timers.Set(i, now.Add(f.timeout))
		w.stats.Retransmitted++
	}
	return nil
}

// NextDeadline returns the time at which to call [Window.Expired] again, and
// false if nothing is outstanding. It may be earlier than there is something
// to resend, but never more than a [Tick] later.
func (w *Window) NextDeadline() (Time, bool) {
	if w.outstanding == 0 {
		return 0, false
	}
	t, _ := w.timers.Next() // every outstanding frame has a timer
	return min(t, w.heard.Add(w.silence)), true
}

// Unacked returns the frames that are not answered, oldest first.
func (w *Window) Unacked() iter.Seq2[uint32, Entry] {
	return func(yield func(uint32, Entry) bool) {
		for seq := w.base; seq != w.next; seq++ {
			if f := &w.frames[w.index(seq)]; f.outstanding && !yield(seq, f.Entry) {
				return
			}
		}
	}
}

func (w *Window) index(seq uint32) int { return int(seq & uint32(len(w.frames)-1)) }

// seqAt is the inverse of index for the frames in the window.
func (w *Window) seqAt(i int) uint32 {
	return w.base + (uint32(i)-w.base)&uint32(len(w.frames)-1)
}
