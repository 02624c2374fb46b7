package retransmit

import (
	"math/bits"
	"time"
)

const (
	tickShift  = 16
	levelBits  = 6
	levelSlots = 1 << levelBits

	// wheelLevels covers every tick that a positive Time can have, so that a
	// deadline never needs clamping and the wheel never wraps around.
	wheelLevels = (63 - tickShift + levelBits - 1) / levelBits

	// Tick is the resolution of a [Wheel]: a timer fires at its deadline or
	// up to one tick later, never earlier.
	Tick = time.Duration(1 << tickShift)
)

// Wheel is a hierarchical timer wheel (Varghese and Lauck, SOSP 1987, scheme
// 7) over a fixed set of timers 0..n-1. Arming and cancelling are O(1), and a
// timer moves to a finer level at most once a level before it fires.
//
// Level k has 64 slots of 64^k ticks. A timer lies at the level of the highest
// 6-bit digit in which its deadline differs from the current tick. So every
// slot of a level lies after every slot of the finer levels, and within a
// level the slots ahead are those with larger numbers: the earliest deadline
// is found with one TrailingZeros per level and time may jump over empty slots.
//
// A Wheel is not safe for concurrent use.
type Wheel struct {
	cur      uint64 // the tick up to which time has advanced
	occupied [wheelLevels]uint64
	nodes    []wheelNode // the timers, then one list head per slot, then the due list's
	heads    int32       // index of the first list head
}

// wheelNode is a link of a circular list. Indices instead of pointers keep
// the nodes in one piece of memory that the garbage collector does not scan.
type wheelNode struct {
	prev, next int32
	list       int32 // head of the list that the timer is on; idle if none
	tick       uint64
}

const idle = -1

// NewWheel returns a wheel of n timers, none armed, at time 0.
func NewWheel(n int) *Wheel {
	w := &Wheel{nodes: make([]wheelNode, n+wheelLevels*levelSlots+1), heads: int32(n)}
	for i := range w.nodes {
		w.nodes[i] = wheelNode{prev: int32(i), next: int32(i), list: idle}
	}
	return w
}

// due returns the head of the list of timers that have fired.
func (w *Wheel) due() int32 { return int32(len(w.nodes) - 1) }

// Set arms a timer, or arms it anew if it was armed or has fired.
func (w *Wheel) Set(timer int, deadline Time) {
	w.Cancel(timer)
	w.nodes[timer].tick = (uint64(deadline) + 1<<tickShift - 1) >> tickShift
	w.link(int32(timer))
}

// Cancel disarms a timer, and takes it off the list of those that have fired.
func (w *Wheel) Cancel(timer int) {
	n := &w.nodes[timer]
	if n.list == idle {
		return
	}
	w.nodes[n.prev].next, w.nodes[n.next].prev = n.next, n.prev
	if n.prev == n.next && n.list != w.due() { // only the head is left
		slot := n.list - w.heads
		w.occupied[slot/levelSlots] &^= 1 << (slot % levelSlots)
	}
	n.list = idle
}

// link puts a timer at the end of the list that its tick belongs to. Lists are
// first in, first out, so timers with equal deadlines fire in the order in
// which they were set.
func (w *Wheel) link(timer int32) {
	n := &w.nodes[timer]
	n.list = w.due()
	if n.tick > w.cur {
		level := (bits.Len64(n.tick^w.cur) - 1) / levelBits
		slot := n.tick >> (level * levelBits) % levelSlots
		w.occupied[level] |= 1 << slot
		n.list = w.heads + int32(level*levelSlots) + int32(slot)
	}
	head := &w.nodes[n.list]
	n.prev, n.next = head.prev, n.list
	w.nodes[head.prev].next = timer
	head.prev = timer
}

// first returns the earliest occupied slot and the tick at which it begins.
func (w *Wheel) first() (level, slot int, tick uint64, ok bool) {
	for level, set := range &w.occupied {
		if set != 0 {
			slot := bits.TrailingZeros64(set)
			shift := level * levelBits
			block := w.cur >> shift >> levelBits << levelBits
			return level, slot, (block | uint64(slot)) << shift, true
		}
	}
	return 0, 0, 0, false
}

// Advance moves time forward and lets the timers fire whose deadline is not
// after now; [Wheel.Fired] returns them. A now before an earlier one has no
// effect.
func (w *Wheel) Advance(now Time) {
	target := uint64(now) >> tickShift
	if target <= w.cur {
		return // timers up to this tick have fired
	}
	for {
		level, slot, tick, ok := w.first()
		if !ok || tick > target {
			break
		}
		w.cur = tick
		w.occupied[level] &^= 1 << slot
		head := w.heads + int32(level*levelSlots+slot)
		for timer := w.nodes[head].next; timer != head; {
			next := w.nodes[timer].next
			w.link(timer) // to a finer level, or to the due list
			timer = next
		}
		w.nodes[head].prev, w.nodes[head].next = head, head
	}
	w.cur = target
}

// Fired returns the timer that has fired first, and false if none has. The
// timer stays fired until it is set or cancelled.
func (w *Wheel) Fired() (timer int, ok bool) {
	first := w.nodes[w.due()].next
	return int(first), first != w.due()
}

// Next returns the time to call [Wheel.Advance] again, and false if no timer
// is armed. It is never after the earliest deadline rounded up to a tick; for
// deadlines more than 64 ticks ahead it may be before it, by less than the
// distance from now.
func (w *Wheel) Next() (Time, bool) {
	if _, ok := w.Fired(); ok {
		return Time(w.cur << tickShift), true
	}
	_, _, tick, ok := w.first()
	return Time(tick << tickShift), ok
}
