// SPDX-License-Identifier: Apache-2.0

package retransmit

import (
	"iter"
	"math/bits"
	"time"

	"github.com/libra-ina/libra/wire"
)

// Entry is the owner's data of a frame in a [Window], which does not interpret it, and when it was
// sent.
type Entry struct {
	Cookie uint64 // locates the frame's bytes, e.g. a UMEM address
	Len    uint32 // length of the frame in bytes
	Owner  uint32 // e.g. the index of a push

	// NeedsOwnAnswer marks a frame whose answer carries data, such as rows or sums. Only its own
	// answer acknowledges it, never a cover; see [Window.Cover].
	NeedsOwnAnswer bool

	// The window sets these fields. Copies is the number of transmissions, at most 8; First and Last
	// are the times of the first and of the last.
	Copies      uint8
	First, Last Time
}

// Stats counts what happened to the frames of a [Window].
type Stats struct {
	Sent          uint64 // frames added
	Acked         uint64 // frames acknowledged
	Covered       uint64 // of these, frames acknowledged by another frame's answer
	Refused       uint64 // frames refused
	Retransmitted uint64 // retransmissions; a frame may have several
	Probes        uint64 // of these, retransmissions after a timeout
	Backoffs      uint64 // doublings of the timeout
	Spurious      uint64 // frames retransmitted although no copy was lost
	Repeated      uint64 // answers to frames already answered
	Unknown       uint64 // answers to frames that were never sent

	SRTT time.Duration // smoothed round-trip time, 0 before the first sample
	RTO  time.Duration // current retransmission timeout

	Bound int // frames that may be in flight now; less than the window if the network loses frames
}

// Plus adds the counters of two windows, and takes the longer of their times.
func (s Stats) Plus(o Stats) Stats {
	return Stats{
		Sent: s.Sent + o.Sent, Acked: s.Acked + o.Acked, Covered: s.Covered + o.Covered, Refused: s.Refused + o.Refused,
		Retransmitted: s.Retransmitted + o.Retransmitted, Probes: s.Probes + o.Probes, Backoffs: s.Backoffs + o.Backoffs,
		Spurious: s.Spurious + o.Spurious, Repeated: s.Repeated + o.Repeated, Unknown: s.Unknown + o.Unknown,
		SRTT: max(s.SRTT, o.SRTT), RTO: max(s.RTO, o.RTO),
		Bound: s.Bound + o.Bound,
	}
}

// Window is the sender's state of one flow: its unacknowledged frames, and when to
// retransmit each.
//
// A frame is added when it gets its number, and sent when the network has accepted it.
// See [Window.Resend] for when it is retransmitted.
//
// A Window is not safe for concurrent use.
type Window struct {
	frames      []frame // frame seq is at seq mod the window size; the last element is the head of the list
	mask        uint32
	base        uint32 // oldest frame that may be outstanding
	unsent      uint32 // oldest added frame that is not sent
	next        uint32 // number of the next frame; next-base <= size
	outstanding int    // added and not answered

	rtt   estimator
	loss  detection
	tail  probing
	limit congestion

	heard  silence
	silent time.Duration // limit of silence
	stats  Stats
}

type frame struct {
	Entry
	order uint64 // of the last transmission, among all of the window
	probe bool   // a timeout caused a retransmission
	// Frames that are sent and not answered are in a list, ordered by their last
	// transmission. Indices instead of pointers keep it in memory that the garbage
	// collector does not scan.
	earlier, later int32
	outstanding    bool
}

const maxCopies = 8

// NewWindow returns an empty window whose first frame is [wire.FirstSeq].
func NewWindow(cfg Config) (*Window, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	w := &Window{
		frames: make([]frame, cfg.Size+1),
		mask:   uint32(cfg.Size - 1),
		base:   wire.FirstSeq,
		unsent: wire.FirstSeq,
		next:   wire.FirstSeq,
		rtt:    estimator{rto: min(cfg.InitialRTO, cfg.longestRTO()), min: cfg.MinRTO, max: cfg.longestRTO()},
		silent: cfg.Silence,
	}
	head := w.head()
	w.frames[head].earlier, w.frames[head].later = head, head
	w.loss.initDetection()
	w.limit = congestion{bound: float64(cfg.Size), round: w.next}
	return w, nil
}

// Base returns the oldest unanswered sequence number, or [Window.NextSeq] if all are
// answered.
func (w *Window) Base() uint32 { return w.base }

// NextSeq returns the sequence number that the next [Window.Add] assigns, so that a
// frame can be sealed before it is added.
func (w *Window) NextSeq() uint32 { return w.next }

// NextUnsent returns the oldest sequence number that is added and not sent, or
// [Window.NextSeq] if all are sent.
func (w *Window) NextUnsent() uint32 { return w.unsent }

// Outstanding returns the number of unanswered frames.
func (w *Window) Outstanding() int { return w.outstanding }

// Full reports whether the next frame has to wait, for a number or for the network. The
// span of the numbers counts, not the number outstanding: one unanswered frame blocks
// the frame W numbers later.
func (w *Window) Full() bool {
	if w.outstanding >= int(w.limit.bound) {
		w.limit.reached = true
		return true
	}
	return w.numbersSpent()
}

// numbersSpent reports whether no number is available for another frame.
func (w *Window) numbersSpent() bool { return w.next-w.base > w.mask }

// Stats returns the counters so far.
func (w *Window) Stats() Stats {
	s := w.stats
	s.SRTT, s.RTO, s.Bound = w.rtt.srtt, w.rtt.rto, int(w.limit.bound)
	return s
}

// Add puts a frame into the window and returns its sequence number, or false if no
// number is available; check [Window.Full] first. The frame waits for [Window.Sent].
func (w *Window) Add(now Time, e Entry) (seq uint32, ok bool) {
	if w.numbersSpent() {
		return 0, false
	}
	if w.outstanding == 0 {
		w.heard.restartSilence(now) // nothing was outstanding until now
	}
	seq = w.next
	e.First, e.Last, e.Copies = 0, 0, 0
	w.frames[w.index(seq)] = frame{Entry: e, outstanding: true}
	w.next++
	w.outstanding++
	w.stats.Sent++
	return seq, true
}

// Sent records that the network accepts the next n added frames. now is the time of
// sending, from which round trips are measured.
func (w *Window) Sent(now Time, n int) {
	for ; n > 0 && w.unsent != w.next; n-- {
		if w.idle() {
			w.tail.restartTimer(now)
		}
		w.transmitted(now, int32(w.index(w.unsent)))
		w.unsent++
	}
}

// transmitted appends a frame to the list.
func (w *Window) transmitted(now Time, i int32) {
	f := &w.frames[i]
	w.loss.order++
	if f.Copies == 0 {
		f.First = now
	}
	f.Last, f.order = now, w.loss.order
	f.Copies = min(f.Copies+1, maxCopies)
	head := w.head()
	last := w.frames[head].earlier
	f.earlier, f.later = last, head
	w.frames[last].later, w.frames[head].earlier = i, i
}

// unlink removes a frame from the list.
func (w *Window) unlink(f *frame) {
	w.frames[f.earlier].later, w.frames[f.later].earlier = f.later, f.earlier
}

// idle reports whether no frame is in the network.
func (w *Window) idle() bool { return w.first() == w.head() }

// first returns the frame with the oldest last transmission, or the head of the
// list.
func (w *Window) first() int32 { return w.frames[w.head()].later }

func (w *Window) head() int32 { return int32(w.mask) + 1 }

// Sending returns the entry of a frame that is sent and not answered, or false if there is none
// with that number.
func (w *Window) Sending(seq uint32) (Entry, bool) {
	f := &w.frames[w.index(seq)]
	if !newer(w.unsent, seq) || newer(w.base, seq) || !f.outstanding {
		return Entry{}, false
	}
	return f.Entry, true
}

// Ack removes frame seq, which the peer has applied, from the window. It returns false
// if the frame is not outstanding; such answers are counted and harmless, because
// retransmitted frames are answered repeatedly.
//
// If the answer also acknowledges other frames, call [Window.Cover] afterwards.
func (w *Window) Ack(now Time, seq uint32) (Entry, bool) {
	e, ok := w.takeAnswered(now, seq)
	if ok {
		w.stats.Acked++
	}
	return e, ok
}

// AckOneOfMany is Ack of a frame that the peer answers with several frames: only the first one
// counts as an answer, and the others give no information on the frame's copies.
func (w *Window) AckOneOfMany(now Time, seq uint32) (Entry, bool) {
	if newer(w.unsent, seq) && (newer(w.base, seq) || !w.frames[w.index(seq)].outstanding) {
		w.heard.restartSilence(now)
		return Entry{}, false
	}
	return w.Ack(now, seq)
}

// Cover removes the frames that the peer has applied, except those that need their own
// answer, from the window, and calls taken with each: bit i of cover stands for frame
// seq+[wire.CoverAhead]-i. A clear bit has no meaning. Bits of frames that were never sent
// are counted and otherwise ignored. taken must not call methods of w.
func (w *Window) Cover(now Time, seq uint32, cover uint64, taken func(Entry)) {
	for ; cover != 0; cover &= cover - 1 {
		s := seq + wire.CoverAhead - uint32(bits.TrailingZeros64(cover))
		if newer(w.base, s) {
			return // and so are the rest
		}
		if !newer(w.unsent, s) {
			w.stats.Unknown++
			continue
		}
		f := &w.frames[w.index(s)]
		if !f.outstanding || f.NeedsOwnAnswer {
			continue
		}
		if f.Copies == 1 {
			w.loss.updateNewest(f.order, now.Sub(f.Last))
			w.tail.endBurst()
		}
		w.stats.Acked++
		w.stats.Covered++
		taken(w.removeFrame(now, s, f))
	}
}

// Refuse removes frame seq, which the peer will not apply, from the window. It returns
// false if the frame is not outstanding.
func (w *Window) Refuse(now Time, seq uint32) (Entry, bool) {
	e, ok := w.takeAnswered(now, seq)
	if ok {
		w.stats.Refused++
	}
	return e, ok
}

func (w *Window) takeAnswered(now Time, seq uint32) (Entry, bool) {
	if !newer(w.unsent, seq) {
		w.stats.Unknown++
		return Entry{}, false
	}
	w.heard.restartSilence(now)
	f := &w.frames[w.index(seq)]
	if newer(w.base, seq) || !f.outstanding {
		w.stats.Repeated++
		w.checkSpurious(seq)
		return Entry{}, false
	}
	if f.Copies == 1 {
		// Karn's rule: with several copies, it is ambiguous which one is answered.
		rtt := now.Sub(f.Last)
		w.rtt.sample(rtt, seq, w.next)
		w.loss.updateNewest(f.order, rtt)
		w.tail.endBurst()
	}
	return w.removeFrame(now, seq, f), true
}

// removeFrame removes a frame from the window.
func (w *Window) removeFrame(now Time, seq uint32, f *frame) Entry {
	w.tail.noteAnswer(now)
	w.limit.updateBound(seq, w.next, int(w.mask)+1)
	f.outstanding = false
	w.unlink(f)
	w.outstanding--
	for w.base != w.next && !w.frames[w.index(w.base)].outstanding {
		w.base++
	}
	return f.Entry
}

// Unacked iterates over the unanswered frames, oldest first.
func (w *Window) Unacked() iter.Seq2[uint32, Entry] {
	return func(yield func(uint32, Entry) bool) {
		for seq := w.base; seq != w.next; seq++ {
			if f := &w.frames[w.index(seq)]; f.outstanding && !yield(seq, f.Entry) {
				return
			}
		}
	}
}

func (w *Window) index(seq uint32) uint32 { return seq & w.mask }

// seqAt is the inverse of index for frames in the window.
func (w *Window) seqAt(i int32) uint32 { return w.base + (uint32(i)-w.base)&w.mask }
