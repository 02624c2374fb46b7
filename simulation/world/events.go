// SPDX-License-Identifier: Apache-2.0

package world

import "time"

// event is a function with its time.
type event struct {
	at    int64 // nanoseconds of the epoch
	order int
	fn    func()
	quiet bool // no goroutine continues because of it
}

func (e *event) isBefore(o *event) bool { return e.at < o.at || e.at == o.at && e.order < o.order }

// events is a heap, the first on top. The heap of package container/heap would allocate each event
// twice.
type events []event

// anyDue reports whether the first event is due.
func (e events) anyDue(now time.Time) bool { return len(e) > 0 && e[0].at <= now.UnixNano() }

func (e *events) pushEvent(one event) {
	*e = append(*e, one)
	h := *e
	i := len(h) - 1
	for ; i > 0 && one.isBefore(&h[(i-1)/2]); i = (i - 1) / 2 {
		h[i] = h[(i-1)/2]
	}
	h[i] = one
}

// popFirst removes the first event.
func (e *events) popFirst() event {
	h := *e
	first, last := h[0], h[len(h)-1]
	h[len(h)-1] = event{}
	h = h[:len(h)-1]
	*e = h
	i := 0
	for child := 1; child < len(h); child = 2*i + 1 {
		if child+1 < len(h) && h[child+1].isBefore(&h[child]) {
			child++
		}
		if !h[child].isBefore(&last) {
			break
		}
		h[i] = h[child]
		i = child
	}
	if len(h) > 0 {
		h[i] = last
	}
	return first
}
