// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"time"

	"github.com/libra-ina/libra/simulation/world"
)

// isLossless reports whether no frame is lost or overtaken by many. Queues that are briefly full
// count as losses of a few frames.
func (s *workersLife) isLossless() bool {
	const lossy = Loss | Reorder | Corrupt | Partition | Crash | Evict | Queue
	lost := s.Net.Traffic().Overrun
	for _, h := range s.peerHosts() {
		lost += h.Link().Stats().NoRoom
	}
	return s.plan.kinds&lossy == 0 && lost == 0
}

// countRepeat counts a repeated frame, and checks that a worker repeats few to a silent peer: only
// the oldest, at doubling timeouts.
func (s *workersLife) countRepeat(w *world.Host, peer *heard) {
	silent := time.Since(peer.since)
	if silent < world.LeastTimeout {
		return
	}
	peer.repeated++
	if s.isLossless() && peer.repeated > 2+world.Timeouts(silent) {
		s.Fail("%s has repeated %d frames to a peer that has answered nothing for %v, although none was lost",
			w.Name(), peer.repeated, silent)
	}
}

// checkRepeats checks at the end that workers have repeated little if nothing was lost: only frames
// that later ones had overtaken, whose answers came first, and those that a pause delayed. An ERROR
// covers no other frames, so that quiet ones before a refused frame are repeated: lives with
// refusals are left out.
func (s *workersLife) checkRepeats() {
	if !s.isLossless() || s.result.Denied > 0 {
		return
	}
	most := 0
	for _, h := range s.peerHosts() {
		most += len(s.workers) * h.Timeouts()
		for _, w := range s.workers {
			most += s.Net.Overtaken(w.host, h)
		}
	}
	for _, w := range s.workers {
		most += 2 * w.host.Timeouts()
	}
	if n := s.repeated; n > most {
		s.Fail("workers have repeated %d frames, although none was lost; those overtaken or delayed by pauses excuse %d",
			n, most)
	}
}
