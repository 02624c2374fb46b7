// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"cmp"
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/codec"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/packer/share"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/telemetry"
	"github.com/libra-ina/libra/transport/endpoint"
	"github.com/libra-ina/libra/wire"
)

// Worker pushes gradients and pulls weights. Its methods may be called from
// several goroutines.
// A peer that stays silent for longer than Flow.Silence ends the worker: pending
// and later calls fail with a [*PeerError].
type Worker struct {
	base
	cfg   WorkerConfig
	clock func() retransmit.Time

	// The fields below belong to the goroutine.
	now retransmit.Time
	// The hot flow, nil without a hot set or aggregator, then one for each server, then those of more
	// shares.
	flows    []*flow
	hotAt    []uint8 // the places of the shares' flows in it, by share
	servers  int
	dividing *division // or nil
	packer   *packer.Packer
	rounds   *rounds      // nil if the job has none
	ops      []*operation // by operation.id; nil entries are free
	pushes   []*operation // not all in frames yet; the packer has the first if it has begun
	pulls    []*operation // not all in frames yet
	flushes  []*flush
	refusal  error // first since the last Flush

	finding  map[*packer.ColdRows]bool // whose row numbers are requested
	keysOnly bool                      // a server assigns no row numbers
	again    int                       // pushes that send refused frames again

	settled bool // since the last turn: a waiting caller may continue

	// What outlives the aggregator (settle.go).
	log       *frameLog        // nil: it keeps none, or the aggregator is lost
	mark      aggregator.Mark  // the newest; before the first, one without frames
	logWaits  bool             // a push waits for room in it
	commits   []chan struct{}  // of callers that wait for an empty log
	settling  *settlement      // or nil
	stepsHeld bool             // no end of a step is reported until it has settled
	hotStats  retransmit.Stats // of the flows to aggregators that have ended
	endedHot  uint32           // of flows that have ended, the number of the next frame, added up
	hotFrame  []byte           // of a push, to be sent as hotRows
	hotRows   looseRows
	fatal     error // ends the worker

	// The queue of PushLater, and the group in the packer.
	arrivals      chan *operation
	waiting       atomic.Int64 // gradients in it, and one more for each batch
	urgent        atomic.Bool  // it has to be taken
	groupKeys     []uint64     // unprepared
	groupPrepared []*packer.Prepared
	groupGrads    []float32
	groupParts    []packer.Part // of a sum
	adds          bool          // hot gradients of a feed's pushes are added up, in units of 2^exp
	unrounded     bool          // sums are not rounded; see WorkerConfig.NoWeights
	exp           int

	step *stepOnWay // or nil

	feed    Feed // or nil
	watched bool // the link waits for its descriptor

	sums    []float32
	numbers packer.Numbers // of sums in answers to pushes
	decoder *decoder       // of frames that are sent again; nil if cold rows are not coded

	pkts    []link.Packet // received in this turn
	out     []link.Frame  // not yet taken by the link, in order
	outFlow []uint8
	retx    []link.Frame
	expired retransmit.Time // when the timers were last checked

	stats WorkerStats
	own   ownTime

	draw     telemetry.Draw
	recorder *telemetry.Recorder // nil if nothing is drawn
	drawn    atomic.Uint32       // pushes so far, of which some are drawn; any goroutine adds to it
}

const (
	flowHot  = iota
	flowCold // to server 0; those to the others follow, and then those of shares, at first from index 1 on
)

// flow is the worker's connection to one peer.
type flow struct {
	index   uint8
	hot     bool            // to the aggregator
	share   int             // of the hot set, if hot
	shares  *share.Division // in which it is that, or nil
	job     uint16
	role    string
	path    link.Path
	to      wire.Endpoint // where path leads
	epoch   uint16        // of the admission at the peer
	window  *retransmit.Window
	held    error // the last refusal that left a frame unanswered
	resend  func(seq uint32, e retransmit.Entry) bool
	covered func(retransmit.Entry) // handles frames that another frame's answer covers
}

// serverIndex returns the index of the server that the flow leads to.
func (f *flow) serverIndex() int { return int(f.index) - flowCold }

// NewWorker starts a worker. ctx bounds the resolution of Ethernet addresses.
func NewWorker(ctx context.Context, cfg WorkerConfig) (*Worker, error) {
	w, err := makeWorker(ctx, cfg)
	if err != nil {
		return nil, err
	}
	w.loop.Start(w.main, w.settleAll)
	go func() { // see PushLater, which also handles later arrivals
		<-w.Done()
		w.failQueued()
	}()
	return w, nil
}

// makeWorker returns a worker whose goroutine is not running.
func makeWorker(ctx context.Context, cfg WorkerConfig) (*Worker, error) {
	if cfg.Link == nil {
		return nil, fmt.Errorf("%w: WorkerConfig.Link is nil", ErrConfig)
	}
	if cfg.HotSet != nil && cfg.Dim == 0 {
		cfg.Dim = cfg.HotSet.Dim()
	}
	if cfg.Stripes == 0 {
		cfg.Stripes = 1
	}
	if cfg.Flow.Size == 0 {
		cfg.Flow.Size = cfg.Link.Limits().Window
	}
	job, err := jobOf(cfg)
	if err != nil {
		return nil, err
	}
	var numbers packer.Numbers
	if job.Arithmetic == aggregator.Fixed {
		numbers = packer.Integers(job.Exp)
	}
	exact := job.Mode == aggregator.Combine && job.Arithmetic == aggregator.Exact
	switch {
	case exact && cfg.NoWeights:
		numbers = packer.Multiples(job.Exp)
	case exact:
		numbers = packer.Rounded(job.Exp)
	}
	p, err := packer.New(packer.Config{HotSet: cfg.HotSet, Shares: cfg.Shares, Dim: cfg.Dim, Layout: cfg.Layout,
		Stripes: cfg.Stripes, Numbers: numbers, Split: packer.Split(1 + len(cfg.MoreServers)), Codec: cfg.Codec})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	limit := cfg.Link.Limits().MaxPayload
	switch {
	case wire.ColdCap(limit, cfg.Dim) < 1 || wire.PullCap(limit, cfg.Dim) < 1:
		return nil, fmt.Errorf("%w: a row of %d gradients does not fit a payload of %d bytes", ErrConfig, cfg.Dim, limit)
	case cfg.Codec != (codec.Config{}) && !codedFits(limit, cfg.Dim):
		return nil, codedTooLong(limit, cfg.Dim)
	case cfg.HotSet != nil && wire.HotLen(cfg.Stripes) > limit:
		return nil, fmt.Errorf("%w: %d stripes do not fit a payload of %d bytes, the most that this link carries: "+
			"give the interface an MTU of %d or more, or the aggregator fewer stripes in a frame (switch.stripes: %d)",
			ErrConfig, cfg.Stripes, limit, wire.HotMTU(cfg.Stripes), max(1, (limit-wire.HeaderLen)/wire.StripeLen))
	}
	if err := cfg.checkAddresses(); err != nil {
		return nil, err
	}
	if err := cfg.checkShares(); err != nil {
		return nil, err
	}
	w := &Worker{
		cfg:      cfg,
		clock:    clockFrom(time.Now()),
		packer:   p,
		numbers:  numbers,
		decoder:  newDecoder(cfg.Codec),
		out:      make([]link.Frame, 0, endpoint.Batch),
		outFlow:  make([]uint8, 0, endpoint.Batch),
		pkts:     make([]link.Packet, endpoint.Batch),
		retx:     make([]link.Frame, 0, endpoint.Batch),
		arrivals: make(chan *operation, queueCap),
		finding:  map[*packer.ColdRows]bool{},
		adds:     cfg.HotSet != nil && exact,
		exp:      job.Exp,

		unrounded: exact && cfg.NoWeights,
		keysOnly:  cfg.NoWeights,

		draw: telemetry.NewDraw(cfg.Sample),
	}
	if w.recorder, err = recorderFor(cfg.Link, cfg.Sample, w.clock, cfg.Gate); err != nil {
		return nil, err
	}
	w.recorder.SetLoop(&w.loop)
	w.initLoop(endpoint.Config{Link: cfg.Link, Look: cfg.Look, Gate: cfg.Gate})
	servers := cfg.servers()
	w.servers = len(servers)
	jobs := cfg.shares()
	w.flows = make([]*flow, flowCold+w.servers+len(jobs)-1)
	w.hotAt = []uint8{flowHot}
	for i := range jobs[1:] {
		w.hotAt = append(w.hotAt, uint8(flowCold+w.servers+i))
	}
	for i, s := range servers {
		if w.flows[flowCold+i], err = w.newFlow(ctx, flowCold+i, serverRole(i, len(servers)), s); err != nil {
			return nil, err
		}
	}
	if cfg.HotSet != nil && !cfg.NoAggregator {
		for i, s := range jobs {
			f, err := w.newHotFlow(ctx, i, s.Job, Peer{s.At, s.Epoch}, cfg.Shares)
			if err != nil {
				return nil, err
			}
			w.placeFlow(f, int(w.hotAt[i]))
		}
		w.sums = make([]float32, cfg.HotSet.Slots())
		w.beginLog()
	}
	if w.rounds, err = newRounds(w, job); err != nil {
		return nil, err
	}
	if w.rounds != nil {
		if err := link.Join(w.link, cfg.Job); err != nil {
			return nil, err
		}
	}
	return w, nil
}

func clockFrom(start time.Time) func() retransmit.Time {
	return func() retransmit.Time { return retransmit.Time(time.Since(start)) }
}

// serverFlows returns the flows to the servers, by their index.
func (w *Worker) serverFlows() []*flow { return w.flows[flowCold : flowCold+w.servers] }

// hotFlows calls yield for each flow to an aggregator.
func (w *Worker) hotFlows(yield func(*flow) bool) {
	for _, f := range w.flows {
		if f != nil && f.hot && !yield(f) {
			return
		}
	}
}

// newHotFlow returns a flow to an aggregator, for a share and its job there, which has no place
// yet.
func (w *Worker) newHotFlow(ctx context.Context, share int, job uint16, to Peer, of *share.Division) (*flow, error) {
	f, err := w.newFlow(ctx, flowHot, "aggregator", to)
	if err != nil {
		return nil, err
	}
	f.hot, f.share, f.shares, f.job = true, share, of, job
	f.covered = func(e retransmit.Entry) { w.hotAcknowledged(w.ops[e.Owner], e) }
	return f, nil
}

// newFlow returns a flow to a server, or to the aggregator.
func (w *Worker) newFlow(ctx context.Context, index int, role string, to Peer) (*flow, error) {
	path, err := w.link.Path(ctx, to.At)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", role, err)
	}
	cfg := w.cfg.Flow
	if index == flowHot && w.cfg.Replay > 0 {
		cfg.Silence = cmp.Or(cfg.Silence, retransmit.DefaultSilence)
		cfg.Silence += max(cfg.Silence, w.cfg.LossNotice)
	}
	win, err := retransmit.NewWindow(cfg)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	f := &flow{index: uint8(index), job: w.cfg.Job, role: role, path: path, to: path.To(), epoch: to.Epoch, window: win}
	f.resend = func(_ uint32, e retransmit.Entry) bool {
		if len(w.retx) == cap(w.retx) {
			return false
		}
		w.retx = append(w.retx, link.Frame{Buf: framePlace(e.Cookie).frameBuffer(), Len: int(e.Len), To: f.path, Retx: true})
		return true
	}
	f.covered = func(e retransmit.Entry) { w.frameAcknowledged(w.ops[e.Owner], e) }
	return f, nil
}

// framePlace is what the worker keeps in the cookie of a window's entry: the buffer of the frame
// and, for a pull, the position of its first key in the operation.
type framePlace uint64

func placeOf(b link.Buf, first int) framePlace { return framePlace(first)<<32 | framePlace(b) }

func (p framePlace) frameBuffer() link.Buf { return link.Buf(p & 0xffffffff) }
func (p framePlace) firstKey() int         { return int(p >> 32) }

// Push sends the gradients of the rows of keys, len(grads) = len(keys) × Dim. It
// returns when all of them are in frames, so that the slices may be reused; the
// ticket is done when the frames are acknowledged. To keep frames in flight all the
// time, push the next batch before waiting for the ticket of the last.
//
// A batch that contains a NaN or an infinity is refused as a whole
// ([*packer.NotFiniteError]), before anything is sent. If ctx ends while the
// batch is packed, the error is a [*PushError] that reports the progress; frames
// that are already filled are still sent.
func (w *Worker) Push(ctx context.Context, keys []uint64, grads []float32) (*Ticket, error) {
	return w.push(ctx, &operation{keys: keys, values: grads})
}

func (w *Worker) push(ctx context.Context, o *operation) (*Ticket, error) {
	o.ticket = &Ticket{done: make(chan struct{})}
	w.drawPush(o)
	if err := w.submitOperation(ctx, o); err != nil {
		return nil, err
	}
	return o.ticket, nil
}

// PushSum is Push for a job in fetchadd mode that waits for the answer: where
// keys[i] is hot, sums[i*Dim:(i+1)*Dim] becomes the aggregator's latest known
// sums of that row, which include this push. The sums of cold rows are left
// unchanged. len(sums) must be len(grads).
func (w *Worker) PushSum(ctx context.Context, keys []uint64, grads, sums []float32) error {
	if len(sums) != len(grads) {
		return fmt.Errorf("transport: %d sums for %d gradients", len(sums), len(grads))
	}
	_, err := w.push(ctx, &operation{keys: keys, values: grads, sums: sums})
	return err
}

// Pull reads the rows of keys from the parameter servers into dst, which must
// hold len(keys) × Dim floats.
func (w *Worker) Pull(ctx context.Context, keys []uint64, dst []float32) error {
	wait, err := w.BeginPull(ctx, keys, dst)
	if err != nil {
		return err
	}
	return wait(ctx)
}

// BeginPull starts a [Worker.Pull]. wait returns when the rows are in dst, or the pull has failed;
// if its ctx ends first, the pull is cancelled. Call it once. Keys and dst belong to the worker
// until then.
func (w *Worker) BeginPull(ctx context.Context, keys []uint64, dst []float32) (wait func(context.Context) error,
	err error) {
	if len(dst) != len(keys)*w.cfg.Dim {
		return nil, fmt.Errorf("transport: pull of %d keys of dimension %d into %d floats", len(keys), w.cfg.Dim, len(dst))
	}
	of := &operation{pull: true, keys: keys, values: dst}
	if err := w.postOperation(ctx, of); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error { return w.awaitRelease(ctx, of) }, nil
}

// submitOperation passes an operation to the goroutine and waits until it releases the
// slices.
func (w *Worker) submitOperation(ctx context.Context, o *operation) error {
	if err := w.postOperation(ctx, o); err != nil {
		return err
	}
	return w.awaitRelease(ctx, o)
}

// postOperation passes an operation to the goroutine.
func (w *Worker) postOperation(ctx context.Context, o *operation) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	o.released = make(chan struct{})
	return w.loop.Post(ctx, func() { w.acceptOperation(o) })
}

// awaitRelease waits until the goroutine releases an operation's slices.
func (w *Worker) awaitRelease(ctx context.Context, o *operation) error {
	select {
	case <-o.released:
		return o.err
	case <-w.Done():
	case <-ctx.Done():
		// The goroutine may be using the slices, so it has to release them.
		o.cause = context.Cause(ctx)
		o.cancelled.Store(true)
		_ = w.loop.Post(context.WithoutCancel(ctx), w.sweepCancelled) // or it is dead
		select {
		case <-o.released:
		case <-w.Done():
		}
	}
	// If the worker has ended too, the operation's result is more precise than the reason.
	select {
	case <-o.released:
		return o.err
	default: // the worker ended before it reached the operation
		return w.Err()
	}
}

// Flush returns when every frame sent before is acknowledged or refused. Its error is
// the first refusal of a Push that no Flush has returned yet, so that callers without
// tickets learn of it; or why the worker ended. If ctx ends first, the refusal is left
// to the next Flush. Concurrent Flushes return the same refusal.
func (w *Worker) Flush(ctx context.Context) error {
	fl := &flush{done: make(chan error, 1)}
	if err := w.loop.Post(ctx, func() { w.addFlush(fl) }); err != nil {
		return err
	}
	select {
	case err := <-fl.done:
		return err
	case <-ctx.Done():
		if fl.settled.CompareAndSwap(false, true) {
			return context.Cause(ctx)
		}
		return <-fl.done
	case <-w.Done():
		select {
		case err := <-fl.done:
			return err
		default: // the worker ended before it reached the flush
			return w.Err()
		}
	}
}

// Stats returns the worker's counters, after its end the final ones.
func (w *Worker) Stats(ctx context.Context) (WorkerStats, error) {
	var s WorkerStats
	err := w.Do(ctx, func() { s = w.snapshot() })
	select {
	case <-w.Done():
		return w.stats, nil
	default:
		return s, err
	}
}
