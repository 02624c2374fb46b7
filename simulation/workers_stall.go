// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"time"

	"github.com/libra-ina/libra/simulation/world"
	"github.com/libra-ina/libra/wire"
)

// planStall suspends both peers of the workers while there is much to push, in every other life
// with pauses: for as long as a process waits for a CPU or, if workers give up silent peers, for
// nearly as long as they listen. With the kind Hostile, one worker's process is suspended at the
// end of that. Meanwhile a stranger floods it, and the peers answer after the flood: when the
// worker continues, more frames wait than it receives at a time, and the answers are not among the
// first.
func (s *workersLife) planStall() {
	rng, p := s.Named("stall"), &s.plan
	often, w, flood := rng.IntN(2) == 0, s.workers[rng.IntN(len(s.workers))], 64+rng.IntN(128)
	begin, lasts := time.Duration(rng.IntN(3000))*time.Microsecond, time.Duration(8+rng.IntN(43))*time.Millisecond
	late, later := 0.5+float64(0.5*rng.Float64()), 1+float64(0.3*rng.Float64())
	if !often || p.kinds&Pause == 0 {
		return
	}
	end := begin + lasts
	if limit := float64(p.flow.Silence); limit > 0 {
		end = begin + time.Duration(late*limit)
		if p.kinds&Hostile != 0 {
			awake := begin + time.Duration(later*limit)
			p.trouble = max(p.trouble, awake+time.Millisecond)
			s.After(end, func() { s.pauseHost(w.host); s.floodWorker(w, flood) })
			s.After(awake, w.host.Resume)
		}
	}
	for _, peer := range s.peerHosts() {
		s.After(begin, func() { s.pauseHost(peer) })
		s.After(end, peer.Resume)
	}
}

func (s *workersLife) pauseHost(h *world.Host) {
	s.result.Pauses++
	h.Pause()
}

// floodWorker makes a stranger send answers to a worker.
func (s *workersLife) floodWorker(to *worker, frames int) {
	answer := make([]byte, wire.HeaderLen)
	wire.Header{Type: wire.TypeAck, Job: job, Sender: to.sender}.Put(answer)
	for range frames {
		s.Net.Forge(s.servers[0].host, to.host, answer)
	}
}
