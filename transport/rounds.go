// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"fmt"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/wire"
)

// rounds is a worker's part in what all workers of a job do together: the rounds
// of the groups of the hot vector, and the negotiation of scales.
//
// A contribution is a frame like any other until it is acknowledged: it is in
// the flow's window and is repeated when its answer is late. But an
// acknowledgement without a result only means that the aggregator waits for other
// workers. Then the contribution moves to a second window, waits, which keeps it
// until the result. That window measures how long results take, as the first one
// measures round trips, and asks again, by repeating the frame, when a result is
// later than usual: the answer to all may have been lost. So a slow worker neither
// counts as loss nor disturbs the round-trip time.
type rounds struct {
	w        *Worker
	flow     *flow
	numbers  packer.Numbers // of the job, where no scale is negotiated
	slots    int            // of the hot vector, 0 unless the job is synchronous
	groupLen int            // slots of every group but the last
	groups   int

	// Callers take turns.
	calling chan struct{} // holds a token while a call is in progress
	calls   uint64        // so far
	request roundCall
	begin   func()     // takes the request, in the worker's goroutine
	done    chan error // the request's end

	// What follows belongs to the worker's goroutine.
	contributions []contribution // by group; the last one is to the scale
	recent        []uint16       // contribution by sequence number mod window
	waits         *retransmit.Window
	again         func(uint32, retransmit.Entry) bool
	op            operation // of all contributions, in the worker's table: it has no end, and its answers are not counted
	unacked       int       // contributions that are sent
	heard         retransmit.Time

	call     roundCall // in progress, if active
	active   bool
	next     int // contribution to be sent next
	finished int // results of the call so far
	decided  uint8
	broken   error // why the worker is out of step with the others
}

// roundCall is a call of Reduce or NegotiateScale: contributions first to end-1.
type roundCall struct {
	id          uint64
	first, end  int
	grads, sums []float32
	numbers     packer.Numbers
	exponent    uint8 // NegotiateScale
}

// contribution is the state of the worker's part in one group, or in the scale.
type contribution struct {
	round uint32 // or iteration: the one to contribute to, or contributed to
	state contributionState
	seq   uint32 // of its frame
	wait  uint32 // its number in waits
	buf   link.Buf
}

type contributionState uint8

const (
	idle    contributionState = iota
	sent                      // not acknowledged: in the flow's window
	waiting                   // acknowledged, no result yet: in waits
)

// newRounds returns nil if the job has no rounds.
func newRounds(w *Worker, job aggregator.JobConfig) (*rounds, error) {
	if job.Workers == 0 {
		return nil, nil
	}
	r := &rounds{
		w: w, flow: w.flows[flowHot],
		numbers: numbersOf(job),
		calling: make(chan struct{}, 1),
		done:    make(chan error, 1),
		recent:  make([]uint16, w.cfg.Flow.Size),
	}
	if job.Mode == aggregator.Sync {
		r.slots, r.groupLen = job.Slots, job.MaxStripes*wire.Lanes
		r.groups = (r.slots + r.groupLen - 1) / r.groupLen
	}
	r.contributions = make([]contribution, r.groups+1)
	flow := w.cfg.Flow
	if w.cfg.RoundLimit != 0 {
		flow.Silence = w.cfg.RoundLimit
	}
	var err error
	if r.waits, err = retransmit.NewWindow(flow); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	r.again = func(_ uint32, e retransmit.Entry) bool { return r.flow.resend(0, e) }
	r.begin = r.accept
	w.register(&r.op)
	return r, nil
}

// numbersOf returns how the gradients of a job's rounds stand in frames. What
// the aggregator would refuse is refused before anything is sent.
func numbersOf(job aggregator.JobConfig) packer.Numbers {
	switch job.Arithmetic {
	case aggregator.Exact:
		return packer.FloatsBelow(63 + job.Exp)
	case aggregator.Fixed:
		return packer.Integers(job.Exp)
	}
	return packer.Numbers{}
}

// acquire waits for the caller's turn.
func (r *rounds) acquire(ctx context.Context) error {
	select {
	case r.calling <- struct{}{}:
		return nil
	case <-r.w.dead:
		return r.w.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// release ends the caller's turn.
func (r *rounds) release() { <-r.calling }

// do hands a call to the worker's goroutine and waits for its end. The caller
// has the turn.
func (r *rounds) do(ctx context.Context, c roundCall) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	r.calls++
	c.id = r.calls
	r.request = c
	if err := r.w.post(ctx, r.begin); err != nil {
		return err
	}
	select {
	case err := <-r.done:
		return err
	case <-r.w.dead:
	case <-ctx.Done():
		// The goroutine may be using the slices, so it has the last word.
		cause := context.Cause(ctx)
		if err := r.w.post(context.WithoutCancel(ctx), func() { r.cancel(c.id, cause) }); err == nil {
			select {
			case err := <-r.done:
				return err
			case <-r.w.dead:
			}
		} else {
			<-r.w.dead
		}
	}
	select {
	case err := <-r.done:
		return err
	default: // before it came to the call
		return r.w.err
	}
}

// accept begins the call that was requested.
func (r *rounds) accept() {
	r.call, r.active = r.request, true
	r.next, r.finished = r.call.first, 0
	if r.broken != nil {
		r.end(fmt.Errorf("%w: %w", ErrOutOfStep, r.broken))
	}
}

// cancel ends a call that its caller has given up.
func (r *rounds) cancel(id uint64, cause error) {
	switch {
	case !r.active || r.call.id != id:
	case r.next == r.call.first: // nothing of it has left
		r.end(cause)
	default:
		r.fail(cause)
	}
}

// end unblocks the caller.
func (r *rounds) end(err error) {
	if r.active {
		r.active = false
		r.w.settled = true
		r.done <- err
	}
}

// fail ends the call in progress and all later ones: other workers may or may not
// get what this one contributed, so it is out of step with them for good.
func (r *rounds) fail(err error) {
	if r.broken != nil {
		return
	}
	if r.active {
		err = r.report(err)
	}
	r.broken = err
	for i := range r.contributions {
		if c := &r.contributions[i]; c.state == waiting {
			r.waits.Refuse(r.w.now, c.wait)
			r.free(c)
		}
	}
	r.end(err)
}

// finish ends the call in progress because the worker ends.
func (r *rounds) finish(err error) {
	if r != nil && r.active {
		r.end(r.report(err))
	}
}

// report returns how far the call in progress has come.
func (r *rounds) report(err error) *RoundError {
	c := r.call
	e := &RoundError{
		Scale: c.sums == nil, Parts: c.end - c.first, Done: r.finished,
		Waiting: r.waits.Outstanding(), Unacked: r.unacked, Unsent: c.end - r.next, Err: err,
	}
	for i := c.first; i < c.end; i++ {
		// Parts that are done are a round further than the others.
		part := &r.contributions[i]
		if part.state != idle || i >= r.next {
			e.Part, e.Round = i-c.first, part.round
			break
		}
	}
	return e
}

// send puts contributions into frames while there is room, and reports whether
// it did.
func (r *rounds) send() (any bool) {
	if r == nil || !r.active {
		return false
	}
	w := r.w
	for r.next < r.call.end && r.room() {
		b, ok := w.room(r.flow)
		if !ok {
			return any
		}
		h, payload := r.write(r.next, w.link.Payload(b))
		c := &r.contributions[r.next]
		c.state, c.seq, c.buf = sent, r.flow.window.NextSeq(), b
		*r.recentAt(c.seq) = uint16(r.next)
		w.enqueue(r.flow, h, payload, &r.op, cookie(b, r.next))
		r.next++
		r.unacked++
		any = true
	}
	return any
}

// room reports whether one more contribution would find a place in waits.
func (r *rounds) room() bool {
	return int(r.waits.NextSeq()-r.waits.Base())+r.unacked < len(r.recent)
}

// write writes the body of a contribution.
func (r *rounds) write(i int, buf []byte) (wire.Header, []byte) {
	if i == r.groups {
		payload := buf[:wire.ScaleLen]
		wire.ScaleReport{Iteration: r.contributions[i].round, Exponent: r.call.exponent}.Put(payload)
		return wire.Header{Type: wire.TypeScale}, payload
	}
	values := r.part(r.call.grads, i)
	payload := buf[:wire.HotLen(packer.VectorStripes(len(values)))]
	packer.PutVector(payload, r.firstSlot(i), values, r.call.numbers)
	r.w.stats.PairsHot += uint64(len(values))
	return wire.Header{Type: wire.TypeHot}, payload
}

// part returns a group's part of a vector.
func (r *rounds) part(vector []float32, group int) []float32 {
	return vector[group*r.groupLen : min((group+1)*r.groupLen, r.slots)]
}

// firstSlot returns the slot that the first stripe of a group names.
func (r *rounds) firstSlot(group int) int { return group * r.groupLen / wire.Lanes }

// repeat asks again for results that are late.
func (r *rounds) repeat(drained bool) {
	if r == nil {
		return
	}
	if drained {
		if err := r.waits.Check(r.w.now); err != nil {
			r.fail(r.noResult(err))
			return
		}
	}
	r.waits.Resend(r.w.now, r.again)
}

// deadline returns the time of the next repeat, and false if nothing waits.
func (r *rounds) deadline() (retransmit.Time, bool) {
	if r == nil {
		return 0, false
	}
	return r.waits.NextDeadline()
}
