// SPDX-License-Identifier: Apache-2.0

package world

import "fmt"

// A life may decide the fate of single frames: it loses the next ones, or holds them, and delivers
// some of them when it likes.

// hold has the frames that are kept on a way, in the order in which they were sent.
type hold struct{ frames [][]byte }

// Lose makes the next frames from one host to another vanish.
func (n *Network) Lose(from, to *Host, frames int) { n.bursts[way{from, to}] += frames }

// Hold keeps what one host sends to another until it is delivered or the hold ends.
func (n *Network) Hold(from, to *Host) { n.holds[way{from, to}] = &hold{} }

// Held returns how many frames are kept.
func (n *Network) Held(from, to *Host) int {
	if h := n.holds[way{from, to}]; h != nil {
		return len(h.frames)
	}
	return 0
}

// Deliver delivers a kept frame, by its place among them from 0 on. With again the network keeps a
// copy.
func (n *Network) Deliver(from, to *Host, at int, again bool) error {
	h := n.holds[way{from, to}]
	if h == nil || at < 0 || at >= len(h.frames) {
		return fmt.Errorf("of %d kept frames from %s to %s, there is none at %d", n.Held(from, to), from.name, to.name, at)
	}
	payload := h.frames[at]
	if !again {
		h.frames = append(h.frames[:at], h.frames[at+1:]...)
	}
	n.w.quietly(0, func() { n.arrive(from, to, payload) })
	return nil
}

// Repeat makes a copy of a frame arrive that was sent before. The network owns the payload.
func (n *Network) Repeat(from, to *Host, payload []byte) {
	n.count.Late++
	n.w.traceFrame("copy", from, to, payload)
	n.w.quietly(0, func() { n.arrive(from, to, payload) })
}

// Release ends a hold: what was kept is delivered in order.
func (n *Network) Release(from, to *Host) {
	for n.Held(from, to) > 0 {
		_ = n.Deliver(from, to, 0, false)
	}
	delete(n.holds, way{from, to})
}
