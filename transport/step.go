// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"errors"
	"fmt"
	"math/bits"
	"time"

	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/wire"
)

// Step is the end of a step in a job whose workers take steps together. It belongs to the worker
// from [Worker.EndStep] until Done is called.
type Step struct {
	Number uint64
	// Keys, in ascending order, and Sums, a row for each, are the total of all workers' pushes in the
	// step. They reuse the caller's slices if these are large enough; after an error their contents
	// are undefined.
	Keys []uint64
	Sums []float32
	// Done is called once by the worker's goroutine. After an error the control service knows the
	// outcome of the step, unless the worker has ended.
	Done func(error)
}

// maxStepFloats bounds the sums that are sent in frames. More take so long that the control
// service's connection is as good, and a single frame could make the worker allocate for them.
const maxStepFloats = 1 << 20

const (
	// sumsLag is the pause in the SUMS frames after which missing ones are requested.
	sumsLag = 10 * time.Millisecond

	// While it waits for others, a worker asks again at growing intervals, in case all answers are
	// lost.
	stepPoll    = 50 * time.Millisecond
	stepPollMax = time.Second
)

var (
	errStepTaken = errors.New("transport: the worker waits for the end of a step already")
	errStepLeft  = errors.New("transport: the worker has given up waiting for the end of the step")
)

// stepOnWay is a step whose sums are incomplete.
type stepOnWay struct {
	*Step
	op    *operation // of the STEP frames
	since uint32     // sequence number of the first of them
	end   wire.StepEnd
	due   retransmit.Time // when to ask again
	poll  time.Duration   // the next pause
	wants []uint32        // first rows of the frames to request

	known bool     // whether the number of rows is known
	each  int      // rows of a frame
	have  []uint64 // a bit for each row
	left  int      // rows that are missing
}

// EndStep reports to the server that this worker has reached the end of a step, and collects the
// sums of all its rows. All earlier pushes must be settled. It is for a [Feed]: only the worker's
// goroutine may call it. A worker ends one step at a time; nil gives up waiting for it.
func (w *Worker) EndStep(s *Step) {
	switch {
	case s == nil:
		w.endStep(errStepLeft)
		return
	case w.cfg.NoServer:
		s.Done(&noServerError{pull: true})
		return
	case w.step != nil:
		s.Done(errStepTaken)
		return
	}
	next, unanswered := w.HotFrames()
	on := &stepOnWay{
		Step: s, poll: stepPoll, wants: []uint32{0}, since: w.flows[flowCold].window.NextSeq(),
		end: wire.StepEnd{Step: s.Number, HotSent: next, HotAnswered: unanswered, Room: uint32(w.link.Limits().Window)},
	}
	on.op = &operation{step: on}
	on.due = w.clock() + retransmit.Time(on.poll)
	w.registerOperation(on.op)
	w.step = on
}

// endStep ends the step, if there is one.
func (w *Worker) endStep(err error) {
	s := w.step
	if s == nil {
		return
	}
	w.step = nil
	s.op.sealed = true
	w.settleOperation(s.op) // once the STEP frames are answered
	s.Done(err)
}

// askForSums queues STEP frames, and reports whether it did.
func (w *Worker) askForSums() (any bool) {
	s := w.step
	if s == nil || w.stepsHeld {
		return false
	}
	if w.now >= s.due {
		w.askAgain(s)
	}
	f := w.flows[flowCold]
	for len(s.wants) > 0 {
		b, ok := w.allocFrame(f)
		if !ok {
			break
		}
		payload := w.link.Payload(b)[:wire.StepLen]
		s.end.First = s.wants[0]
		s.end.Put(payload)
		w.enqueueFrame(f, wire.Header{Type: wire.TypeStep}, payload, s.op, placeOf(b, 0))
		s.wants = s.wants[1:]
		any = true
	}
	return any
}

// askAgain requests the missing rows, unless an earlier request is unanswered.
func (w *Worker) askAgain(s *stepOnWay) {
	s.due = w.now + retransmit.Time(sumsLag)
	if s.op.outstanding > 0 || len(s.wants) > 0 {
		return
	}
	if !s.known {
		s.wants = []uint32{0}
		s.poll = min(2*s.poll, stepPollMax)
		s.due = w.now + retransmit.Time(s.poll)
		return
	}
	for i := 0; i < len(s.Keys); i++ {
		if s.have[i/64]>>(i%64)&1 == 0 {
			s.wants = append(s.wants, uint32(i))
			i += s.each - 1
		}
	}
}

// receiveSums handles rows of the step. They answer a STEP frame, at once or when the step is over.
func (w *Worker) receiveSums(f *flow, h wire.Header, payload []byte) verdict {
	rows, err := wire.ParseStepSums(payload)
	if err != nil {
		return malformed
	}
	if e, ok := f.window.AckOneOfMany(w.now, h.Seq); ok {
		o := w.ops[e.Owner]
		if o.step == nil {
			o.recordFailure(w.peerError(f, fmt.Errorf("%w: sums of a step, which were not asked for", ErrAnswer)))
		}
		w.frameAcknowledged(o, e)
	}
	s := w.step
	if s == nil || rows.Step != s.Number || int32(h.Seq-s.since) < 0 {
		return taken // of an earlier step
	}
	first, total, d := int(rows.First), int(rows.Rows), w.cfg.Dim
	switch {
	case rows.Dim != d || s.known && total != len(s.Keys):
		return malformed
	case total > maxStepFloats/d:
		w.endStep(w.peerError(f, fmt.Errorf("%w: %d rows in frames", ErrAnswer, total)))
		return taken
	case !s.known:
		s.known, s.left = true, total
		s.each = max(1, wire.SumsCap(w.link.Limits().MaxPayload, d, rows.Width))
		s.Keys, s.Sums = sized(s.Keys, total), sized(s.Sums, total*d)
		s.have = make([]uint64, (total+63)/64)
	}
	s.left -= setBits(s.have, first, rows.Count)
	rows.Copy(s.Keys[first:], s.Sums[first*d:])
	s.due = w.now + retransmit.Time(sumsLag)
	switch end := first + rows.Count; {
	case s.left == 0:
		w.endStep(nil)
	case end == total, end == int(s.end.Room)*rows.Count: // the last of a run
		w.askAgain(s)
	}
	return taken
}

// sized returns n elements, in the memory of s if it is large enough.
func sized[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

// setBits sets n bits from first, and returns how many of them were clear.
func setBits(set []uint64, first, n int) (fresh int) {
	for n > 0 {
		word, at := first/64, first%64
		m := min(n, 64-at)
		mask := (^uint64(0) >> (64 - m)) << at
		fresh += bits.OnesCount64(mask &^ set[word])
		set[word] |= mask
		first, n = first+m, n-m
	}
	return fresh
}
