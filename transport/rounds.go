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

// rounds is a worker's part in the collective operations of a job: the rounds of the
// groups of the hot vector, and the negotiation of scales.
//
// Until it is acknowledged, a contribution is a frame like any other: it is in the
// flow's window and is retransmitted on timeout. An acknowledgement without a result
// means that the aggregator waits for other workers. The contribution then moves to a
// second window, waits, until its result arrives. That window measures how long results
// take, as the first one measures round trips, and retransmits the frame to ask again
// when a result is late: the broadcast may have been lost. So a slow worker neither
// counts as loss nor disturbs the round-trip time.
type rounds struct {
	w        *Worker
	flow     *flow
	numbers  packer.Numbers // of the job, unless a scale is negotiated
	slots    int            // of the hot vector, 0 unless the job is synchronous
	groupLen int            // slots of every group but the last
	groups   int

	// Callers take turns.
	calling chan struct{} // holds a token while a call is in progress
	calls   uint64        // so far; numbers the calls
	request roundCall
	begin   func()     // accepts request, in the worker's goroutine
	done    chan error // the request's end

	// The fields below belong to the worker's goroutine.
	contributions []contribution // by group; the last one is for the scale
	recent        []uint16       // contribution by sequence number mod window
	waits         *retransmit.Window
	again         func(uint32, retransmit.Entry) bool
	op            operation // of all contributions, in the worker's table: it never ends, and its answers are not counted
	unacked       int       // contributions sent and not acknowledged
	heard         retransmit.Time

	call     roundCall // in progress, if active
	active   bool
	next     int // contribution to be sent next
	finished int // results of the call so far
	decided  uint8
	broken   error // why the worker is out of step
}

// roundCall is a call of Reduce or NegotiateScale: contributions first to end-1.
type roundCall struct {
	id          uint64
	first, end  int
	grads, sums []float32
	numbers     packer.Numbers
	exponent    uint8 // NegotiateScale
}

// contribution is the worker's part in one group, or in the scale.
type contribution struct {
	round uint32 // or iteration, of this contribution or the next one
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
	r.begin = r.acceptCall
	w.registerOperation(&r.op)
	return r, nil
}

// numbersOf returns the number format of a job's rounds. The worker checks gradients against
// it before it sends anything.
func numbersOf(job aggregator.JobConfig) packer.Numbers {
	switch job.Arithmetic {
	case aggregator.Exact:
		return packer.FloatsBelow(63 + job.Exp)
	case aggregator.Fixed:
		return packer.Integers(job.Exp)
	}
	return packer.Numbers{}
}

func (r *rounds) acquireTurn(ctx context.Context) error {
	select {
	case r.calling <- struct{}{}:
		return nil
	case <-r.w.Done():
		return r.w.Err()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (r *rounds) releaseTurn() { <-r.calling }

// doCall passes a call to the worker's goroutine and waits for its end. The caller
// has the turn.
func (r *rounds) doCall(ctx context.Context, c roundCall) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	r.calls++
	c.id = r.calls
	r.request = c
	if err := r.w.loop.Post(ctx, r.begin); err != nil {
		return err
	}
	select {
	case err := <-r.done:
		return err
	case <-r.w.Done():
	case <-ctx.Done():
		// The goroutine may be using the slices, so it has to end the call.
		cause := context.Cause(ctx)
		if err := r.w.loop.Post(context.WithoutCancel(ctx), func() { r.cancelCall(c.id, cause) }); err == nil {
			select {
			case err := <-r.done:
				return err
			case <-r.w.Done():
			}
		} else {
			<-r.w.Done()
		}
	}
	select {
	case err := <-r.done:
		return err
	default: // the goroutine ended before it began the call
		return r.w.Err()
	}
}

func (r *rounds) acceptCall() {
	r.call, r.active = r.request, true
	r.next, r.finished = r.call.first, 0
	if r.broken != nil {
		r.endCall(fmt.Errorf("%w: %w", ErrOutOfStep, r.broken))
	}
}

// cancelCall ends a call whose caller has given up.
func (r *rounds) cancelCall(id uint64, cause error) {
	switch {
	case !r.active || r.call.id != id:
	case r.next == r.call.first: // nothing is sent yet
		r.endCall(cause)
	default:
		r.breakRounds(cause)
	}
}

func (r *rounds) endCall(err error) {
	if r.active {
		r.active = false
		r.w.settled = true
		r.done <- err
	}
}

// breakRounds ends the call in progress and all later ones: it is unknown whether other workers
// get this contribution, so the worker stays out of step with them.
func (r *rounds) breakRounds(err error) {
	if r.broken != nil {
		return
	}
	if r.active {
		err = r.progressError(err)
	}
	r.broken = err
	for i := range r.contributions {
		if c := &r.contributions[i]; c.state == waiting {
			r.waits.Refuse(r.w.now, c.wait)
			r.freeContribution(c)
		}
	}
	r.endCall(err)
}

// workerEnded ends the call in progress when the worker ends.
func (r *rounds) workerEnded(err error) {
	if r != nil && r.active {
		r.endCall(r.progressError(err))
	}
}

// progressError returns the progress of the current call.
func (r *rounds) progressError(err error) *RoundError {
	c := r.call
	e := &RoundError{
		Scale: c.sums == nil, Parts: c.end - c.first, Done: r.finished,
		Waiting: r.waits.Outstanding(), Unacked: r.unacked, Unsent: c.end - r.next, Err: err,
	}
	for i := c.first; i < c.end; i++ {
		// Finished parts are a round ahead of the others.
		part := &r.contributions[i]
		if part.state != idle || i >= r.next {
			e.Part, e.Round = i-c.first, part.round
			break
		}
	}
	return e
}

// sendContributions seals contributions while there is room, and reports whether it did.
func (r *rounds) sendContributions() (any bool) {
	if r == nil || !r.active {
		return false
	}
	w := r.w
	for r.next < r.call.end && r.hasRoom() {
		b, ok := w.allocFrame(r.flow)
		if !ok {
			return any
		}
		h, payload := r.writeContribution(r.next, w.link.Payload(b))
		c := &r.contributions[r.next]
		c.state, c.seq, c.buf = sent, r.flow.window.NextSeq(), b
		*r.recentAt(c.seq) = uint16(r.next)
		w.enqueueFrame(r.flow, h, payload, &r.op, placeOf(b, r.next))
		r.next++
		r.unacked++
		any = true
	}
	return any
}

// hasRoom reports whether waits has room for one more contribution.
func (r *rounds) hasRoom() bool {
	return int(r.waits.NextSeq()-r.waits.Base())+r.unacked < len(r.recent)
}

func (r *rounds) writeContribution(i int, buf []byte) (wire.Header, []byte) {
	if i == r.groups {
		payload := buf[:wire.ScaleLen]
		wire.ScaleReport{Iteration: r.contributions[i].round, Exponent: r.call.exponent}.Put(payload)
		return wire.Header{Type: wire.TypeScale}, payload
	}
	values := r.groupPart(r.call.grads, i)
	payload := buf[:wire.HotLen(packer.VectorStripes(len(values)))]
	packer.PutVector(payload, r.firstSlot(i), values, r.call.numbers)
	r.w.stats.PairsHot += uint64(len(values))
	return wire.Header{Type: wire.TypeHot}, payload
}

// groupPart returns a group's part of a vector.
func (r *rounds) groupPart(vector []float32, group int) []float32 {
	return vector[group*r.groupLen : min((group+1)*r.groupLen, r.slots)]
}

// firstSlot returns the slot in the first stripe of a group.
func (r *rounds) firstSlot(group int) int { return group * r.groupLen / wire.Lanes }

// askForResults asks again for late results.
func (r *rounds) askForResults(drained bool) {
	if r == nil {
		return
	}
	if drained {
		if err := r.waits.Check(r.w.now); err != nil {
			r.breakRounds(r.noResult(err))
			return
		}
	}
	r.waits.Resend(r.w.now, r.again)
}

// nextDeadline returns the time of the next repetition, and false if nothing waits.
func (r *rounds) nextDeadline() (retransmit.Time, bool) {
	if r == nil {
		return 0, false
	}
	return r.waits.NextDeadline()
}
