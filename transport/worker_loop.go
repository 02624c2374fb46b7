// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"fmt"
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
		w.loop.EndTurn(busy)
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
	w.loop.BeginTurn()
	w.now = w.clock()
	for i := range w.pkts[:n] {
		w.receiveAnswer(&w.pkts[i])
	}
	if w.settled {
		// Goroutines that waited may push more. Let them do so now, on this thread:
		// waking another thread costs more than packing a frame.
		w.settled = false
		runtime.Gosched()
	}
	busy = n > 0
	busy = w.loop.RunPosted() || busy
	if w.fatal != nil {
		return false, w.fatal
	}
	if w.feed != nil {
		busy = w.feed.Turn() || busy
	}
	busy = w.takeQueue() || busy
	busy = w.askForRows() || busy
	busy = w.askForSums() || busy
	busy = w.rounds.sendContributions() || busy
	busy = w.sendSettled() || busy
	busy = w.divide() || busy
	busy = w.packPushes() || busy
	w.endFlushes()
	drained := n < len(w.pkts)
	if drained || w.now.Sub(w.expired) > timerLag {
		if err := w.repeatLate(drained); err != nil {
			return false, err
		}
	}
	sent, err := w.transmit()
	return busy || sent, err
}

// repeatLate collects frames for retransmission. A silent peer ends the worker, but only if
// all received frames are processed: after a pause of this process, answers may be
// waiting.
func (w *Worker) repeatLate(drained bool) error {
	w.expired = w.now
	for _, f := range w.flows {
		if f == nil {
			continue
		}
		if drained {
			if err := f.window.Check(w.now); err != nil {
				if f.held != nil {
					err = fmt.Errorf("%w; it last answered: %w", err, f.held)
				}
				e := w.peerError(f, err)
				e.LinkErr = w.link.Stats().LastError
				return e
			}
		}
		f.window.Resend(w.now, f.resend)
	}
	w.rounds.askForResults(drained)
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
	if s := w.step; s != nil && !w.stepsHeld {
		limit = min(limit, max(0, s.due.Sub(w.now)))
	}
	if t, ok := w.rounds.nextDeadline(); ok {
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

// settleAll settles all pending operations with the reason of the end.
func (w *Worker) settleAll(err error) {
	for _, o := range w.ops {
		if o != nil {
			o.recordFailure(err)
			o.notifyCaller()
		}
	}
	for _, o := range w.pushes {
		if o.queued && !o.begun { // not registered yet
			o.recordFailure(err)
			o.notifyCaller()
		}
	}
	for _, fl := range w.flushes {
		fl.settleFlush(err)
	}
	w.endStep(err)
	w.rounds.workerEnded(err)
	w.stats = w.snapshot()
	if w.feed != nil {
		w.feed.End(err)
	}
}
