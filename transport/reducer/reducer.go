// SPDX-License-Identifier: Apache-2.0

package reducer

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"net"
	"net/netip"
	"runtime"
	"time"
	"unsafe"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/internal/linux/sys"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/wire"
)

const (
	// MaxWidth is the largest number of values of an operation: what an MTU of 1500 carries.
	MaxWidth = wire.DefaultStripes * wire.Lanes
	// MaxInFlight is the largest number of operations in flight.
	MaxInFlight = 256
	// DefaultLimit is how long operations may take if the configuration does not say.
	DefaultLimit = 12 * time.Second

	// batch is how many payloads are received at a time.
	batch = 64
	// sendRetry is the time until a frame for which the link had no room is sent.
	sendRetry = time.Millisecond
)

// Value is a type of values: int32 in jobs of fixed arithmetic, float32 in jobs of exact
// arithmetic.
type Value interface{ int32 | float32 }

// Config describes a worker's end of the operations.
type Config struct {
	// Link carries the frames. The Reducer owns and closes it once New succeeds.
	Link link.Link

	// Job, Sender and Epoch are those of the worker's admission, and Aggregator is where frames go.
	// A zero Ethernet address is resolved where the link needs one.
	Job, Sender, Epoch uint16
	Aggregator         wire.Endpoint

	// Shape is that of the job, the same for all workers.
	Shape Shape

	// Limit is how long the Reducer repeats a contribution without any result. 0 means
	// [DefaultLimit]. Only time counts in which it repeats, not that in which the caller computes.
	Limit time.Duration

	// Members returns the job's workers in the order of their admission, to name in errors those
	// that are missing; control.Rounds has such a method. It may be nil.
	Members func(context.Context) ([]uint16, error)

	// Ended is asked before each sleep whether the worker is still to wait, and an error, such as
	// that of a context, ends the Reducer; control.Rounds has such a method. It may be nil.
	Ended func() error

	// Look is the longest time to poll for results before sleeping. 0 means 400 µs, a negative
	// value no polling.
	Look time.Duration
}

// Shape is what all workers of a job have in common.
type Shape struct {
	Workers  int // 1 to 64
	Width    int // values of an operation, 1 to [MaxWidth]
	InFlight int // operations in flight, 1 to [MaxInFlight]

	// Exp is the binary exponent of the unit of float32 sums: -46 unless the job says otherwise.
	// Values and sums of magnitude 2^(63+Exp) or more are refused.
	Exp int

	// Acked makes the job one of mode acked: the aggregator has one bank instead of two, and an
	// operation waits until all workers have told that they have the result of the one before it in
	// its group. That takes a second round trip, and a switch with P4 has no such jobs.
	Acked bool
}

// Stripes returns the number of stripes of a frame.
func (s Shape) Stripes() int { return (s.Width + wire.Lanes - 1) / wire.Lanes }

// Job returns the configuration of a job for operations on values of a type. Its number and epoch
// are to be filled in.
func Job[T Value](s Shape) (aggregator.JobConfig, error) {
	switch none := (aggregator.JobConfig{}); {
	case s.Width < 1 || s.Width > MaxWidth:
		return none, fmt.Errorf("%w: Width is %d; an operation has 1 to %d values", ErrConfig, s.Width, MaxWidth)
	case s.InFlight < 1 || s.InFlight > MaxInFlight:
		return none, fmt.Errorf("%w: InFlight is %d; 1 to %d operations can be in flight", ErrConfig, s.InFlight,
			MaxInFlight)
	}
	job := aggregator.JobConfig{
		Mode: modeOf(s), Arithmetic: arithmeticOf[T](), Exp: s.Exp, Workers: s.Workers,
		Slots: s.InFlight * s.Stripes() * wire.Lanes, MaxStripes: s.Stripes(),
	}
	job, err := job.Complete()
	if err != nil {
		return job, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return job, nil
}

func modeOf(s Shape) aggregator.Mode {
	if s.Acked {
		return aggregator.Acked
	}
	return aggregator.Sync
}

func arithmeticOf[T Value]() aggregator.Arithmetic {
	var zero T
	if _, floats := any(zero).(float32); floats {
		return aggregator.Exact
	}
	return aggregator.Fixed
}

// Op is the number of an operation, from 0.
type Op uint64

// Reducer is a worker's end of a job's operations; see the package documentation.
type Reducer[T Value] struct {
	cfg     Config
	link    link.Link
	path    link.Path
	from    netip.AddrPort // the aggregator, as the source of received frames shows it
	stripes int
	bundle  int    // operations that a frame can carry
	limit   uint32 // bits of the least magnitude of a float32 that is refused; 0: none
	zeros   []T    // of a barrier
	marks   []mark // of all kinds of bundles; nil: there are none of several operations
	idle    sys.Look
	began   time.Time

	ops    []place // of operation op: op mod InFlight
	next   Op      // to be started
	groups []group // of bundle b: b mod InFlight
	open   *group  // takes further operations; nil: none
	closed uint64  // bundles, and the number of the open one
	sent   uint64  // that the link has been given
	first  uint64  // that has no result; all before it have
	oldest uint64  // that is not over; all before it are
	wakeAt instant
	rtt    estimator
	silent time.Duration // of repetitions without any result
	stats  Stats
	failed error

	pkts [batch]link.Packet
	out  [batch]link.Frame
}

// place is where the newest of the operations is whose numbers are equal modulo InFlight.
type place struct {
	op Op
	g  *group // nil: none has been started, or the caller has its result
}

// instant is a time since the Reducer began.
type instant int64

const never instant = math.MaxInt64

func (t instant) add(d time.Duration) instant { return t + instant(d) }

func (t instant) sub(u instant) time.Duration { return time.Duration(t - u) }

// group is the newest bundle of a group of slots.
type group struct {
	slot   uint16 // the first
	bundle uint64
	op     Op  // its first operation
	count  int // of its operations
	mark   int // index of its mark
	state  groupState
	seq    uint32 // of its frame
	round  uint32
	buf    link.Buf
	sums   []uint32

	started  instant
	due      instant       // time of the next repetition
	wait     time.Duration // until it
	sent     bool          // the link has accepted it since it was due
	stuck    time.Duration // for which the link has not
	repeated bool
	hurried  bool // repeated because a later bundle had its result

	answered    bool   // the aggregator has acknowledged the contribution
	ignored     int    // repetitions since it last did
	contributed uint64 // positions that have contributed, as far as the aggregator has told; 0: it has not

	// unconfirmed, in mode acked: the bundle has its result, and as far as this worker knows not
	// all workers have it. What is sent is TAKEN, and contributed are those that have the result.
	unconfirmed bool
	held        bool // buf is of TAKEN
}

type groupState uint8

const (
	unsent  groupState = iota
	waiting            // for its result
	done               // has it
)

// New returns the Reducer of an admitted worker. ctx bounds the search for the aggregator's
// Ethernet address.
func New[T Value](ctx context.Context, cfg Config) (*Reducer[T], error) {
	job, err := Job[T](cfg.Shape)
	switch {
	case err != nil:
		return nil, err
	case cfg.Link == nil:
		return nil, fmt.Errorf("%w: Link is missing", ErrConfig)
	case cfg.Limit < 0:
		return nil, fmt.Errorf("%w: Limit %v is negative", ErrConfig, cfg.Limit)
	}
	limits := cfg.Link.Limits()
	if need := wire.HotLen(cfg.Shape.Stripes()); limits.MaxPayload < need {
		return nil, fmt.Errorf("%w: %d values need payloads of %d bytes, the link carries %d: use a larger MTU or fewer values",
			ErrConfig, cfg.Shape.Width, need, limits.MaxPayload)
	}
	if cfg.Shape.InFlight > limits.Window {
		return nil, fmt.Errorf("%w: %d operations in flight, but peers of the link expect at most %d frames: use fewer, or a link with a larger window",
			ErrConfig, cfg.Shape.InFlight, limits.Window)
	}
	r := &Reducer[T]{
		cfg: cfg, link: cfg.Link, stripes: cfg.Shape.Stripes(), bundle: cfg.Shape.Bundle(),
		groups: make([]group, cfg.Shape.InFlight),
		ops:    make([]place, cfg.Shape.InFlight), zeros: make([]T, cfg.Shape.Width), marks: marksOf(cfg.Shape, job),
		wakeAt: never, began: time.Now(),
	}
	r.cfg.Limit = cmp.Or(cfg.Limit, DefaultLimit)
	r.idle.Limit = max(0, cmp.Or(cfg.Look, sys.DefaultLook))
	if job.Arithmetic == aggregator.Exact {
		r.limit = math.Float32bits(float32(math.Ldexp(1, min(63+job.Exp, 128))))
	}
	for i := range r.groups {
		r.groups[i].slot, r.groups[i].sums = uint16(i*r.stripes), make([]uint32, r.stripes*wire.Lanes)
	}
	if r.path, err = cfg.Link.Path(ctx, cfg.Aggregator); err != nil {
		return nil, fmt.Errorf("reducer: no path to the aggregator %v: %w", cfg.Aggregator, err)
	}
	r.from = netip.AddrPortFrom(r.path.To().IP.Unmap(), r.path.To().Port)
	if err := link.Join(cfg.Link, cfg.Job); err != nil {
		return nil, err
	}
	return r, nil
}

// Start contributes the worker's values to the next operation and returns its number. It sends at
// once, with what is queued, except that with Shape.Acked it first waits until all workers have the
// result of the operation InFlight before. Each operation has to be waited for before the one that
// follows it by InFlight is started.
func (r *Reducer[T]) Start(values []T) (Op, error) { return r.start(values, false) }

func (r *Reducer[T]) start(values []T, barrier bool) (Op, error) {
	op, err := r.queue(values, barrier)
	if err != nil {
		return 0, err
	}
	r.closeBundle()
	if err := r.flush(); err != nil {
		return 0, r.fail(err)
	}
	return op, nil
}

// Queue is Start, but what it contributes may leave later, in one frame with what other calls
// contribute ([Shape.Bundle]): when the frame is full, or with the next call of Start or Barrier,
// or of Wait for one of the frame's operations. Full frames leave with the next call of Start,
// Barrier or Poll, or of Wait if that has to wait, in one system call. A caller that has many
// operations in flight, and takes results as they come, so makes more of them in a second. All
// workers have to make the same calls of Queue, Start and Barrier, and of Wait for what has not
// left yet: see [OutOfStepError].
func (r *Reducer[T]) Queue(values []T) (Op, error) { return r.queue(values, false) }

func (r *Reducer[T]) queue(values []T, barrier bool) (Op, error) {
	op := r.next
	at := &r.ops[op%Op(len(r.ops))]
	switch {
	case r.failed != nil:
		return 0, r.failed
	case len(values) != r.cfg.Shape.Width:
		return 0, fmt.Errorf("%w: %d values, an operation of this job has %d", ErrUse, len(values), r.cfg.Shape.Width)
	case at.g != nil:
		return 0, fmt.Errorf("%w: %d operations are in flight, as many as this job has: Wait for operation %d first",
			ErrUse, len(r.ops), at.op)
	}
	bits := bitsOf(values)
	if r.limit != 0 {
		if err := checkFloats(bits, r.limit); err != nil {
			return 0, err
		}
	}
	if r.open == nil {
		if err := r.openBundle(); err != nil {
			return 0, r.fail(err)
		}
	}
	*at = place{op: op, g: r.open}
	r.next++
	r.addToBundle(bits, barrier)
	return op, nil
}

// flush sends the bundles that are closed.
func (r *Reducer[T]) flush() error {
	for r.sent < r.closed {
		frames := r.out[:min(r.closed-r.sent, batch)]
		for i := range frames {
			frames[i] = link.Frame{Buf: r.groupOf(r.sent + uint64(i)).buf, Len: wire.HotLen(r.stripes), To: r.path}
		}
		now := r.now()
		n, err := r.link.Send(frames)
		if err != nil {
			return err
		}
		for i := range frames {
			g := r.groupOf(r.sent)
			g.state, g.started = waiting, now
			r.await(g, now, i < n)
			r.sent++
		}
	}
	return nil
}

// Wait returns when an operation has its result, which it stores in sums, of Width values; nil
// drops it. It may be called once for each operation, in any order, but has no result before the
// operations of earlier frames have theirs.
func (r *Reducer[T]) Wait(op Op, sums []T) error {
	at := &r.ops[op%Op(len(r.ops))]
	g := at.g
	switch {
	case r.failed != nil:
		return r.failed
	case op >= r.next || at.op != op || g == nil:
		return fmt.Errorf("%w: operation %d is not in flight: it was not started, or was waited for before", ErrUse, op)
	case sums != nil && len(sums) != r.cfg.Shape.Width:
		return fmt.Errorf("%w: room for %d sums, an operation of this job has %d", ErrUse, len(sums), r.cfg.Shape.Width)
	}
	if g == r.open {
		r.closeBundle()
	}
	for g.bundle >= r.first { // until then, others may have other operations in this one
		if err := r.turn(); err != nil {
			return r.fail(err)
		}
	}
	copy(bitsOf(sums), g.sums[int(op-g.op)*r.cfg.Shape.Width:])
	at.g = nil
	return nil
}

// Barrier returns when all workers have called it. It is an operation, whose values are zeros: all
// workers call it at the same place among their operations.
func (r *Reducer[T]) Barrier() error {
	op, err := r.start(r.zeros, true)
	if err != nil {
		return err
	}
	return r.Wait(op, nil)
}

// Poll sends full frames, receives what has arrived and repeats what is due, without waiting.
// Callers that compute for more than some hundred microseconds between two other calls should call
// it now and then, as other workers may wait for a repetition of this one.
func (r *Reducer[T]) Poll() error {
	if r.failed != nil {
		return r.failed
	}
	if err := r.flush(); err != nil {
		return r.fail(err)
	}
	for {
		n, err := r.receive()
		if err != nil {
			return r.fail(err)
		}
		if n < batch {
			break
		}
	}
	if err := r.repeatDue(r.now()); err != nil {
		return r.fail(err)
	}
	return nil
}

// Close closes the link. What is queued does not leave any more. The sums of operations that are in
// flight are lost to this worker. Those that it has waited for are not lost to others, as long as
// the job exists.
func (r *Reducer[T]) Close() error {
	if r.failed == nil {
		r.failed = fmt.Errorf("reducer: closed: %w", net.ErrClosed)
	}
	return r.link.Close()
}

// turn sends what is queued, and receives, repeats or waits, whichever is first.
func (r *Reducer[T]) turn() error {
	if err := r.flush(); err != nil {
		return err
	}
	n, err := r.receive()
	if err != nil {
		return err
	}
	if n > 0 {
		r.idle.Found()
		return nil
	}
	now := r.now()
	if now >= r.wakeAt {
		return r.repeatDue(now)
	}
	if r.idle.Again() {
		runtime.Gosched() // the answer may come from this process
		return nil
	}
	return r.sleep(r.wakeAt.sub(now))
}

// sleep waits for the link, unless the worker is not to wait any more.
func (r *Reducer[T]) sleep(limit time.Duration) error {
	if r.cfg.Ended != nil {
		if err := r.cfg.Ended(); err != nil {
			return r.ended(err)
		}
	}
	return r.link.Wait(limit)
}

func (r *Reducer[T]) now() instant { return instant(time.Since(r.began)) }

// fail ends the Reducer.
func (r *Reducer[T]) fail(err error) error {
	if r.failed == nil {
		r.failed = err
	}
	return r.failed
}

// bitsOf returns values as they are in frames.
func bitsOf[T Value](values []T) []uint32 {
	return unsafe.Slice((*uint32)(unsafe.Pointer(unsafe.SliceData(values))), len(values))
}

// checkFloats refuses the first float whose magnitude is not below that with some bits.
func checkFloats(bits []uint32, limit uint32) error {
	for i, b := range bits {
		if b&math.MaxInt32 >= limit {
			return &ValueError{Index: i, Value: math.Float32frombits(b)}
		}
	}
	return nil
}
