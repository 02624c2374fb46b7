// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

// Census counts the frames of a UMEM by state. The sum is
// UMEM.Frames().
type Census struct {
	Free     int `json:"free"`      // in a pool
	Yours    int `json:"yours"`     // with the program
	Filling  int `json:"filling"`   // in a fill or RX ring, or with the kernel between them
	InFlight int `json:"in_flight"` // in a TX or completion ring, or with the kernel between them
}

// Census counts the frames by the states that every operation checks. No goroutine may use a socket
// or a pool of the UMEM meanwhile.
func (u *UMEM) Census() Census {
	var count [1 << stateBits]int
	for _, st := range u.state {
		count[st&stateMask]++
	}
	return Census{
		Free: count[stateFree], Yours: count[stateYours],
		Filling: count[stateFilling], InFlight: count[stateInFlight],
	}
}

// RingCounts are the numbers of pending entries in a socket's rings.
type RingCounts struct {
	Fill       int `json:"fill"`       // frames that the kernel has not taken
	Rx         int `json:"rx"`         // packets that Receive has not returned
	Tx         int `json:"tx"`         // packets that the kernel has not taken
	Completion int `json:"completion"` // frames that Completed has not returned
}

// Rings counts the entries by the positions that program and kernel share, which allows a check of
// the frame states. With no packet in flight, the fill and RX rings of a UMEM's sockets together
// hold Census.Filling frames, and the TX and completion rings Census.InFlight. A missing frame is
// with the kernel, or lost. Each of the sockets that share a queue reports the common fill ring,
// and its own part of the completion ring.
func (s *Socket) Rings() (RingCounts, error) {
	if err := s.enterHalves(both); err != nil {
		return RingCounts{}, err
	}
	defer s.leaveHalves(both)
	var c RingCounts
	for _, r := range []struct {
		ring *ring
		n    *int
	}{{&s.fill.ring, &c.Fill}, {&s.rx.ring, &c.Rx}, {&s.tx.ring, &c.Tx}, {&s.completion.ring, &c.Completion}} {
		n := r.ring.producer.Load() - r.ring.consumer.Load()
		if n > r.ring.size {
			return c, ErrRingCorrupt
		}
		*r.n = int(n)
	}
	if s.mates != nil {
		n, ok := s.endedFrames(s.maxInFlight)
		if !ok {
			return c, ErrRingCorrupt
		}
		c.Completion = int(n)
	}
	return c, nil
}
