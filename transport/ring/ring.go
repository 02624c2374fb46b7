// SPDX-License-Identifier: Apache-2.0

package ring

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"net"
	"runtime"
	"time"

	"github.com/libra-ina/libra/codec"
	"github.com/libra-ina/libra/internal/linux/sys"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/wire"
)

const (
	// batch is how many payloads are received or sent at a time.
	batch = 64
	// sendRetry is the time until a frame is sent for which the link had no room.
	sendRetry = time.Millisecond
	// leastSleep keeps a deadline that has passed from making the loop spin.
	leastSleep = 50 * time.Microsecond
	// longestPause is the longest time between two turns that counts as waiting: in a longer one, the
	// process was stopped.
	longestPause = time.Second

	// firstAnnounced and longestAnnounced are the first and the longest time until a worker says again
	// that it is in an operation.
	firstAnnounced   = 2 * time.Millisecond
	longestAnnounced = 250 * time.Millisecond

	// settleLimit is how long Reduce waits, when it has the results, for another ACK of the successor,
	// as nobody repeats frames for a caller that computes: so many retransmission timeouts.
	settleLimit = 4
	// farewells is how often a worker that closes says what it has of its predecessor.
	farewells = 3
)

// Ring is a worker's end of a ring; see the package documentation.
type Ring struct {
	cfg    Config
	link   link.Link
	codec  codec.Codec
	size   int // of a block; the last ones are shorter, or empty
	steps  int
	prev   neighbour
	next   neighbour
	window *retransmit.Window // of frames to next
	seen   retransmit.Filter  // of frames of prev
	newest uint32             // number of prev's frames

	op     uint32    // in progress, or the last one
	values []float32 // of the operation in progress, nil between two
	rest   []float32 // what codes have cut off
	got    []int     // by step: values that were received
	whole  []int     // by step: values from the beginning of the block on of which none is missing
	left   int       // values to be received
	step   int       // that is sent
	at     int       // value of its block that is sent next

	announceAt   retransmit.Time
	announceWait time.Duration
	moved        bool          // values have arrived since the worker told last
	stalled      time.Duration // without progress
	turned       retransmit.Time
	ackedAt      retransmit.Time // when the successor acknowledged a frame last
	began        time.Time
	idle         sys.Look
	stats        Stats
	differs      *MismatchError
	refused      *RefusedError
	failed       error

	scratch []float32 // for the values of one frame
	codes   []byte    // of one group
	pkts    [batch]link.Packet
	out     [batch]link.Frame // built, and not taken by the link
	queued  int
	noRoom  bool
	blocked bool          // the link had no room when it was last asked
	stuck   time.Duration // for which it has had none
	again   [1]link.Frame
	sendErr error
}

// neighbour is the worker before or after this one.
type neighbour struct {
	Worker

	path    link.Path
	op      uint32        // the newest that it is known to be in
	silent  time.Duration // for which it was not heard
	refusal wire.Refusal  // the last one that answered a presence
}

// New returns the end of one worker. ctx bounds the search for the neighbours' Ethernet addresses.
// New does not wait for them otherwise.
func New(ctx context.Context, cfg Config) (*Ring, error) {
	if err := checkConfig(cfg); err != nil {
		return nil, err
	}
	n := len(cfg.Workers)
	r := &Ring{
		cfg: cfg, link: cfg.Link, steps: 2*n - 2, size: codec.Group * ((cfg.Values + codec.Group*n - 1) / (codec.Group * n)),
		got: make([]int, 2*n-1), whole: make([]int, 2*n-1), scratch: make([]float32, wire.MaxCoded), began: time.Now(),
	}
	r.cfg.Limit = cmp.Or(cfg.Limit, DefaultLimit)
	r.idle.Limit = max(0, cmp.Or(cfg.Look, sys.DefaultLook))
	var err error
	if cfg.Codec.Bound != 0 {
		if r.codec, err = codec.New(cfg.Codec); err != nil {
			return nil, fmt.Errorf("%w: Codec: %w", ErrConfig, err)
		}
		r.rest, r.codes = make([]float32, cfg.Values), make([]byte, 0, codec.MaxLen(codec.Group))
	}
	if r.window, err = retransmit.NewWindow(retransmit.Config{
		Size: min(cfg.Link.Limits().Window, wire.DefaultWindow), Silence: r.cfg.Limit,
	}); err != nil {
		return nil, fmt.Errorf("ring: %w", err)
	}
	for _, of := range []struct {
		to    *neighbour
		place int
	}{{&r.prev, (cfg.Place + n - 1) % n}, {&r.next, (cfg.Place + 1) % n}} {
		if of.to.path, err = cfg.Link.Path(ctx, cfg.Workers[of.place]); err != nil {
			return nil, fmt.Errorf("ring: no path to worker %d, %v: %w", of.place, cfg.Workers[of.place], err)
		}
		at := of.to.path.To()
		at.IP = at.IP.Unmap()
		of.to.Worker = Worker{Place: of.place, Addr: at.AddrPort()}
	}
	return r, nil
}

// block returns where a block begins and ends.
func (r *Ring) block(b int) (begin, end int) {
	n := len(r.cfg.Workers)
	b = (b + 2*n) % n
	begin = min(b*r.size, r.cfg.Values)
	return begin, min(begin+r.size, r.cfg.Values)
}

// received and sent return the block that this worker receives, or sends, in a step.
func (r *Ring) received(step int) (begin, end int) { return r.block(r.cfg.Place - step) }
func (r *Ring) sent(step int) (begin, end int)     { return r.block(r.cfg.Place - step + 1) }

// Reduce replaces the vector by the sum of the vectors of all workers. All workers call it the same
// number of times.
func (r *Ring) Reduce(values []float32) error {
	switch {
	case r.failed != nil:
		return r.failed
	case len(values) != r.cfg.Values:
		return fmt.Errorf("%w: %d values, the vectors of this ring have %d", ErrUse, len(values), r.cfg.Values)
	}
	for i, v := range values {
		if math.Float32bits(v)&infinite == infinite {
			return &ValueError{Index: i, Value: v}
		}
	}
	for i, cut := range r.rest {
		values[i] += cut
	}
	r.begin(values)
	for !r.isOver() {
		if err := r.turn(r.cfg.Limit); err != nil {
			return r.fail(err)
		}
	}
	r.values = nil
	r.stats.Operations++
	if err := r.linger(0); err != nil {
		return r.fail(err)
	}
	return nil
}

// infinite are the bits that infinities and NaN have set.
const infinite = 0xff << 23

func (r *Ring) begin(values []float32) {
	r.op++
	r.values, r.step, r.at, r.left = values, 1, 0, 0
	clear(r.got)
	clear(r.whole)
	for s := 1; s <= r.steps; s++ {
		begin, end := r.received(s)
		r.left += end - begin
	}
	now := r.now()
	r.stalled, r.turned, r.prev.silent, r.next.silent = 0, now, 0, 0
	r.announceAt, r.announceWait, r.moved = now, 0, false
}

// isOver reports whether the worker has all results, and has made frames of all that others need of
// it.
func (r *Ring) isOver() bool { return r.left == 0 && r.hasMadeAll() }

// hasMadeAll reports whether the worker has made frames of all that others need of it.
func (r *Ring) hasMadeAll() bool { return !r.isReady() && r.step > r.steps }

// Poll receives what has arrived and repeats what is due, without waiting. Callers that compute for
// longer than some milliseconds between two other calls should call it now and then, as other
// workers may wait for a repetition of this one.
func (r *Ring) Poll() error {
	if r.failed != nil {
		return r.failed
	}
	if _, err := r.work(); err != nil {
		return r.fail(err)
	}
	return nil
}

// Close closes the link, when the successor has acknowledged what this worker has sent, or has not
// answered for Config.Limit: others may need it, and a failure of the network that is shorter ends
// nothing. Results that other workers have are not lost.
func (r *Ring) Close() error {
	if r.failed == nil {
		_ = r.linger(r.cfg.Limit) // whoever does not answer has gone
		r.bidFarewell()
		r.failed = fmt.Errorf("ring: closed: %w", net.ErrClosed)
	}
	return r.link.Close()
}

// bidFarewell acknowledges the predecessor's frames once more: it would wait for an answer that was
// lost. Some copies are enough, as it does not wait for ever.
func (r *Ring) bidFarewell() {
	if r.stats.Applied == 0 {
		return
	}
	for range farewells {
		for seq, n := r.newest, 0; r.seen.Applied(seq) && n < wire.DefaultWindow; n += coverBack {
			if r.acknowledge(seq) != nil {
				return
			}
			seq -= coverBack
		}
	}
}

// coverBack is how many numbers up to its own an ACK covers.
const coverBack = wire.CoverBits - wire.CoverAhead

// linger repeats frames until all are acknowledged, or until the successor has acknowledged none
// for some timeouts, and at least for a time: it is likely to have them all, and to compute.
func (r *Ring) linger(least time.Duration) error {
	for r.ackedAt = r.now(); r.window.Outstanding() > 0; {
		left := r.ackedAt.Add(max(least, settleLimit*r.window.Stats().RTO)).Sub(r.now())
		if left <= 0 {
			break
		}
		if err := r.turn(left); err != nil {
			return err
		}
	}
	return nil
}

// turn works, or waits for work.
func (r *Ring) turn(limit time.Duration) error {
	n, err := r.work()
	if err != nil {
		return err
	}
	if n > 0 {
		r.idle.Found()
		return nil
	}
	if r.idle.Again() {
		runtime.Gosched() // the frame may come from this process
		return nil
	}
	if r.cfg.Ended != nil {
		if err := r.cfg.Ended(); err != nil {
			return fmt.Errorf("ring: worker %d, operation %d has not ended: %w", r.cfg.Place, r.op, err)
		}
	}
	return r.link.Wait(max(leastSleep, min(limit, r.untilDue(r.now()))))
}

// work receives, sends and repeats whatever it can, and returns how many payloads it has received.
func (r *Ring) work() (received int, err error) {
	for range 8 { // and not for ever, if frames come faster than they are handled
		n, err := r.receive()
		if err != nil {
			return received, err
		}
		received += n
		if n < batch {
			break
		}
	}
	now := r.now()
	if err := r.send(now); err != nil {
		return received, err
	}
	r.window.Resend(now, r.resend)
	if r.sendErr != nil {
		return received, r.sendErr
	}
	_ = r.window.Check(now) // it keeps the window's time; how long this worker waits is stalled
	if r.values == nil {
		return received, nil
	}
	waited := min(max(0, now.Sub(r.turned)), longestPause)
	r.turned = now
	r.stalled += waited
	r.prev.silent += waited
	r.next.silent += waited
	if r.blocked {
		r.stuck += waited
	}
	if r.stalled >= r.cfg.Limit {
		return received, r.missing()
	}
	if now >= r.announceAt {
		return received, r.announceDue(now)
	}
	return received, nil
}

// untilDue returns the time until something is to be done although nothing arrives.
func (r *Ring) untilDue(now retransmit.Time) time.Duration {
	due := longestPause / 2
	if at, any := r.window.NextDeadline(); any {
		due = min(due, at.Sub(now))
	}
	if r.values != nil {
		due = min(due, r.announceAt.Sub(now), r.cfg.Limit-r.stalled)
	}
	if r.noRoom {
		due = min(due, sendRetry)
	}
	return due
}

// progress records that the operation goes on.
func (r *Ring) progress() { r.stalled = 0 }

func (r *Ring) now() retransmit.Time { return retransmit.Time(time.Since(r.began)) }

// fail ends the Ring.
func (r *Ring) fail(err error) error {
	if r.failed == nil {
		r.failed = err
	}
	r.values = nil
	return r.failed
}
