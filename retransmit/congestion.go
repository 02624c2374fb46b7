// SPDX-License-Identifier: Apache-2.0

package retransmit

// leastFrames is the smallest congestion bound of a flow: with fewer frames, no answer to a later
// frame would reveal a loss.
const leastFrames = 4

// congestion bounds the frames of a flow in the network below the window's size while the network
// loses frames. Each round trip the bound shrinks by half of the share of lost frames, and grows
// by one frame if it was reached. This is DCTCP's law (RFC 8257, section 3.3) with losses in place
// of ECN marks, which need switches that set them. All flows through one full queue lose the same
// share s, so all converge to 2/s frames.
//
// TCP halves its window at each loss, because it cannot repair many losses in a round trip; here
// each lost frame is known and retransmitted. Halving at the 1 % loss of a bad cable, which no
// lower rate repairs, would leave about ten frames of 512. This law leaves 200.
//
// Delay is not a signal: on machines that share their cores it reflects the scheduler more than a
// queue.
type congestion struct {
	bound   float64 // frames
	reached bool    // in this round trip
	lost    int     // in this round trip
	heard   int     // frames answered in this round trip
	round   uint32  // the round trip ends with the answer to this frame or a later one
}

// updateBound records the answer to frame seq; next is the number of the next new frame.
func (c *congestion) updateBound(seq, next uint32, size int) {
	c.heard++
	if newer(c.round, seq) {
		return
	}
	c.bound -= c.bound / 2 * float64(c.lost) / float64(c.lost+c.heard)
	if c.reached {
		c.bound++
	}
	c.bound = min(max(c.bound, leastFrames), float64(size))
	c.reached, c.lost, c.heard, c.round = false, 0, 0, next
}
