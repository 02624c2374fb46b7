package soak

import "errors"

// windowSize is the number of packets that a queue has on their way: a quarter of
// its frames, see framesEach.
const windowSize = 256

// remembered is the number of its last packets whose fate a window knows.
const remembered = 1 << 15

// Fates of a packet.
const (
	fateWaiting uint8 = iota
	fateAnswered
	fateGivenUp
)

// window is what a client knows about the packets of one flow. Numbers begin
// with 0.
type window struct {
	size       uint64
	base, next uint64 // those before base are answered or given up
	sent       [remembered]int64
	fate       [remembered]uint8
}

// room returns how many packets may be sent.
func (w *window) room() int { return int(w.size - (w.next - w.base)) }

// add notes that the next packet is sent.
func (w *window) add(now int64) {
	w.sent[w.next%remembered], w.fate[w.next%remembered] = now, fateWaiting
	w.next++
}

// expire gives up packets that were sent before a time.
func (w *window) expire(before int64) {
	for ; w.base < w.next; w.base++ {
		i := w.base % remembered
		if w.fate[i] == fateWaiting {
			if w.sent[i] >= before {
				return
			}
			w.fate[i] = fateGivenUp
		}
	}
}

// Impossible answers.
var (
	errNeverSent = errors.New("soak: an answer to a packet that was never sent")
	errTwice     = errors.New("soak: a second answer to a packet")
	errForgotten = errors.New("soak: an answer to a packet that the window has forgotten")
)

// answer notes an answer.
func (w *window) answer(number uint64) error {
	switch {
	case number >= w.next:
		return errNeverSent
	case w.next-number > remembered:
		return errForgotten
	}
	// One that was given up may still be answered.
	if w.fate[number%remembered] == fateAnswered {
		return errTwice
	}
	w.fate[number%remembered] = fateAnswered
	for w.base < w.next && w.fate[w.base%remembered] != fateWaiting {
		w.base++
	}
	return nil
}

// oldest returns when the oldest packet without an answer was sent.
func (w *window) oldest() (sent int64, waiting bool) {
	if w.base == w.next {
		return 0, false
	}
	return w.sent[w.base%remembered], true
}
