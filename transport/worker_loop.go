// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"math"
	"runtime"
	"time"

	"github.com/libra-ina/libra/transport/endpoint"
)

const (
	// timerLag is how long the timers may be left unchecked while every batch of
	// received frames is full: the answers to apparently late frames may be
	// among those not yet received.
	timerLag = 10 * time.Millisecond
)

// main is the worker's goroutine.
func (w *Worker) main() error {
	for {
		busy, err := w.turn()
		switch {
		case err != nil:
		case !busy:
			err = w.sleep()
		case w.feed == nil:
			w.loop.FoundWork()
		}
		if err != nil {
			return err
		}
	}
}

// turn is one turn of the event loop: it handles answers, starts new operations,
// fills frames from pulls, rounds and pushes, retransmits late frames, and sends.
// It reports whether there was anything to do. An error ends the worker.
func (w *Worker) turn() (busy bool, err error) {
	if w.loop.Closing() {
		return false, ErrClosed
	}
	n, err := w.link.Receive(w.pkts)
	if err != nil {
		return false, err
	}
	w.now = w.clock()
	for i := range w.pkts[:n] {
		w.receive(&w.pkts[i])
	}
	if w.settled {
		// Goroutines that waited may push more. Let them do so now, on this thread:
		// waking another thread costs more than packing a frame.
		w.settled = false
		runtime.Gosched()
	}
	busy = n > 0
	busy = w.loop.RunPosted() || busy
	if w.feed != nil {
		busy = w.feed.Turn() || busy
	}
	busy = w.takeQueue() || busy
	busy = w.ask() || busy
	busy = w.askForSums() || busy
	busy = w.rounds.send() || busy
	busy = w.pack() || busy
	w.endFlushes()
	drained := n < len(w.pkts)
	if drained || w.now.Sub(w.expired) > timerLag {
		if err := w.repeat(drained); err != nil {
			return false, err
		}
	}
	sent, err := w.transmit()
	return busy || sent, err
}

// transmit passes frames to the link, new ones before retransmissions.
func (w *Worker) transmit() (any bool, err error) {
	if len(w.out) > 0 {
		w.askForAnswers()
		w.now = w.clock() // packing is not part of a round trip
		n, err := w.link.Send(w.out)
		if err != nil {
			return false, err
		}
		for _, f := range w.outFlow[:n] {
			w.flows[f].window.Sent(w.now, 1)
		}
		w.out = append(w.out[:0], w.out[n:]...)
		w.outFlow = append(w.outFlow[:0], w.outFlow[n:]...)
		any = n > 0
	}
	if len(w.retx) > 0 {
		// Retransmissions that the link does not accept now are sent at their next timeout.
		n, err := w.link.Send(w.retx)
		w.retx = w.retx[:0]
		return any || n > 0, err
	}
	return any, nil
}

// repeat collects frames for retransmission. A silent peer ends the worker, but only if
// all received frames are processed: after a pause of this process, answers may be
// waiting.
func (w *Worker) repeat(drained bool) error {
	w.expired = w.now
	for _, f := range w.flows {
		if f == nil {
			continue
		}
		if drained {
			if err := f.window.Check(w.now); err != nil {
				e := w.peerError(f, err)
				e.LinkErr = w.link.Stats().LastError
				return e
			}
		}
		f.window.Resend(w.now, f.resend)
	}
	w.rounds.repeat(drained)
	return nil
}

// patience returns how long the worker may sleep: until the first deadline, or without
// a limit if there is none.
func (w *Worker) patience() time.Duration {
	const forever = time.Duration(math.MaxInt64)
	limit := forever
	for _, f := range w.flows {
		if f == nil {
			continue
		}
		if t, ok := f.window.NextDeadline(); ok {
			limit = min(limit, max(0, t.Sub(w.now)))
		}
	}
	if s := w.step; s != nil {
		limit = min(limit, max(0, s.due.Sub(w.now)))
	}
	if t, ok := w.rounds.deadline(); ok {
		limit = min(limit, max(0, t.Sub(w.now)))
	}
	if len(w.out) > 0 {
		limit = min(limit, endpoint.SendRetry)
	}
	if limit == forever {
		return -1
	}
	return limit
}

// finish settles all pending operations with the reason of the end.
func (w *Worker) finish(err error) {
	for _, o := range w.ops {
		if o != nil {
			o.fail(err)
			o.finish()
		}
	}
	for _, o := range w.pushes {
		if o.queued && !o.begun { // not registered yet
			o.fail(err)
			o.finish()
		}
	}
	for _, fl := range w.flushes {
		fl.settle(err)
	}
	w.endStep(err)
	w.rounds.finish(err)
	w.stats = w.snapshot()
	if w.feed != nil {
		w.feed.End(err)
	}
}
