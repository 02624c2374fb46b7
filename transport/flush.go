// SPDX-License-Identifier: Apache-2.0

package transport

import "sync/atomic"

// flush waits for the frames before its marks.
type flush struct {
	last    *operation // has to be sealed before marks are set
	marks   []uint32   // by flow; none of later ones
	refusal error      // of a push, already returned to another flush
	done    chan error

	settled atomic.Bool // by the result in done, or by the caller who has given up
}

// settleFlush gives the caller a result, unless it has given up.
func (fl *flush) settleFlush(err error) bool {
	if !fl.settled.CompareAndSwap(false, true) {
		return false
	}
	fl.done <- err
	return true
}

func (w *Worker) addFlush(fl *flush) {
	w.urgent.Store(true)
	w.takeQueue()
	if n := len(w.pushes); n > 0 {
		fl.last = w.pushes[n-1]
	}
	if fl.last == nil {
		w.markFlush(fl)
	}
	w.flushes = append(w.flushes, fl)
}

// markFlush makes a flush wait for the frames sealed so far.
func (w *Worker) markFlush(fl *flush) {
	fl.last, fl.marks = nil, make([]uint32, len(w.flows))
	for i, f := range w.flows {
		if f != nil {
			fl.marks[i] = f.window.NextSeq()
		}
	}
}

// passOver makes flushes that wait for an abandoned push wait for the push before it.
func (w *Worker) passOver(i int) {
	for _, fl := range w.flushes {
		switch {
		case fl.last != w.pushes[i]:
		case i > 0:
			fl.last = w.pushes[i-1]
		default:
			w.markFlush(fl)
		}
	}
}

// endFlushes completes flushes whose frames are all answered.
func (w *Worker) endFlushes() {
	rest, told := w.flushes[:0], false
	first := w.refusal
	for _, fl := range w.flushes {
		if fl.last != nil && fl.last.sealed {
			w.markFlush(fl)
		}
		// Frames that are sent again get numbers above the flush's marks.
		ended := fl.last == nil && w.again == 0 && w.settling == nil
		for i, f := range w.flows {
			ended = ended && (f == nil || i >= len(fl.marks) || int32(f.window.Base()-fl.marks[i]) >= 0)
		}
		if ended {
			if fl.refusal == nil {
				fl.refusal = first
			}
			told = fl.settleFlush(fl.refusal) || told
		} else {
			rest = append(rest, fl)
		}
	}
	clear(w.flushes[len(rest):])
	w.flushes = rest
	if !told {
		return
	}
	w.refusal = nil
	for _, fl := range rest { // the refused push may belong to one of these callers
		if fl.refusal == nil {
			fl.refusal = first
		}
	}
}
