package transport

import (
	"runtime"
	"sync/atomic"
	"time"
)

const (
	// timerLag is how long the timers may be left alone while every batch of
	// received frames is full: the answers of the frames that seem late may be
	// among those not yet received.
	timerLag = 10 * time.Millisecond

	// sendRetry bounds a sleep while frames wait for room in the link.
	sendRetry = time.Millisecond
)

// main is the worker's goroutine.
func (w *Worker) main() error {
	for {
		if len(w.pushes) > 0 {
			w.push(w.nextPush())
		}
		if err := w.turn(len(w.pushes) == 0); err != nil {
			return err
		}
	}
}

// turn does what is due once: it takes in answers, starts what others handed
// in, repeats what is late, and sends. If there was nothing to do and it may
// sleep, it sleeps until there is. An error is the worker's end: turn returns
// it again and again.
func (w *Worker) turn(sleep bool) error {
	if w.fatal == nil {
		w.fatal = w.tryTurn(sleep)
	}
	return w.fatal
}

func (w *Worker) tryTurn(sleep bool) error {
	if w.closing.Load() {
		return ErrClosed
	}
	n, err := w.link.Receive(w.pkts)
	if err != nil {
		return err
	}
	w.now = w.clock()
	for i := range w.pkts[:n] {
		w.receive(&w.pkts[i])
	}
	if w.settled {
		// Those whose tickets are done may have more to push. Let them do so now,
		// on this thread: to wake another one costs more than packing a frame.
		w.settled = false
		runtime.Gosched()
	}
	if w.run() {
		sleep = false
	}
	if w.takeQueue() {
		sleep = false
	}
	if w.ask() {
		sleep = false
	}
	if w.rounds.send() {
		sleep = false
	}
	w.endFlushes()
	drained := n < len(w.pkts)
	if drained || w.now.Sub(w.expired) > timerLag {
		if err := w.repeat(drained); err != nil {
			return err
		}
	}
	sent, err := w.transmit()
	if err != nil || n > 0 || sent || !sleep {
		return err
	}
	err = w.link.Wait(w.patience())
	w.now = w.clock()
	return err
}

// transmit hands frames to the link, new ones before repeated ones.
func (w *Worker) transmit() (any bool, err error) {
	if len(w.out) > 0 {
		w.now = w.clock() // packing took time, which is no part of a round trip
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
		// What the link does not take now is repeated at its next timeout.
		n, err := w.link.Send(w.retx)
		w.retx = w.retx[:0]
		return any || n > 0, err
	}
	return any, nil
}

// repeat collects the frames that are to be sent again. A silent peer is the
// worker's end, but only if everything that has been received is taken in: after a
// pause of this process the answers may be waiting there.
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

// patience returns how long the worker may sleep.
func (w *Worker) patience() time.Duration {
	limit := time.Duration(-1)
	for _, f := range w.flows {
		if f == nil {
			continue
		}
		if t, ok := f.window.NextDeadline(); ok {
			if d := max(0, t.Sub(w.now)); limit < 0 || d < limit {
				limit = d
			}
		}
	}
	if t, ok := w.rounds.deadline(); ok {
		if d := max(0, t.Sub(w.now)); limit < 0 || d < limit {
			limit = d
		}
	}
	if len(w.out) > 0 && (limit < 0 || limit > sendRetry) {
		limit = sendRetry
	}
	return limit
}

// flush waits for the frames before its marks.
type flush struct {
	last  *operation // has to be put into frames before there are marks
	marks [2]uint32
	done  chan error

	settled atomic.Bool // by the result in done, or by the caller who has given up
}

// settle gives the caller a result, unless it has given up.
func (fl *flush) settle(err error) bool {
	if !fl.settled.CompareAndSwap(false, true) {
		return false
	}
	fl.done <- err
	return true
}

func (w *Worker) addFlush(fl *flush) {
	w.urgent.Store(true)
	w.takeQueue()
	fl.last = w.lender.op
	if n := len(w.pushes); n > 0 {
		fl.last = w.pushes[n-1]
	}
	if fl.last == nil {
		w.mark(fl)
	}
	w.flushes = append(w.flushes, fl)
}

// mark lets a flush wait for what is in frames now.
func (w *Worker) mark(fl *flush) {
	fl.last = nil
	for i, f := range w.flows {
		if f != nil {
			fl.marks[i] = f.window.NextSeq()
		}
	}
}

// endFlushes lets those go whose frames are all answered.
func (w *Worker) endFlushes() {
	rest, told := w.flushes[:0], false
	for _, fl := range w.flushes {
		if fl.last != nil && fl.last.sealed {
			w.mark(fl)
		}
		ended := fl.last == nil
		for i, f := range w.flows {
			ended = ended && (f == nil || int32(f.window.Base()-fl.marks[i]) >= 0)
		}
		if ended {
			told = fl.settle(w.refusal) || told
		} else {
			rest = append(rest, fl)
		}
	}
	clear(w.flushes[len(rest):])
	w.flushes = rest
	if told {
		w.refusal = nil
	}
}

// finish settles everything that is pending, with the reason of the end.
func (w *Worker) finish(err error) {
	for _, o := range w.ops {
		if o != nil {
			o.fail(err)
			o.finish()
		}
	}
	for _, o := range w.pushes {
		if o.queued { // and not registered yet
			o.fail(err)
			o.finish()
		}
	}
	for _, fl := range w.flushes {
		fl.settle(err)
	}
	w.rounds.finish(err)
	w.stats = w.snapshot()
}
