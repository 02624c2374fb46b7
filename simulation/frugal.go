// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"math/bits"
	"time"
)

// leastTimeout is the timeout of a flow whose peer answers at once.
const leastTimeout = 5 * time.Millisecond

// timeouts returns the number of doubling timeouts in a time.
func timeouts(d time.Duration) int { return 1 + bits.Len64(uint64(d/leastTimeout)) }

// lossless reports whether no frame is lost or overtaken by many. Queues that are briefly full
// count as losses of a few frames.
func (s *sim) lossless() bool {
	const lossy = Loss | Reorder | Corrupt | Partition | Crash | Evict | Queue
	lost := s.net.count.Overrun
	for _, h := range s.peers() {
		lost += h.link.stats.NoRoom
	}
	return s.plan.kinds&lossy == 0 && lost == 0
}

// patient counts a repeated frame, and checks that a worker repeats few to a silent peer: only the
// oldest, at doubling timeouts.
func (s *sim) patient(w *host, peer *heard) {
	silent := time.Since(peer.since)
	if silent < leastTimeout {
		return
	}
	peer.repeated++
	if s.cluster == nil && s.lossless() && peer.repeated > 2+timeouts(silent) {
		s.fail("%s has repeated %d frames to a peer that has answered nothing for %v, although none was lost", w.name, peer.repeated, silent)
	}
}

// frugal checks at the end that workers have repeated little if nothing was lost. Some frames are
// overtaken, because a receiver gives some answers late.
func (s *sim) frugal() {
	if !s.lossless() {
		return
	}
	most := s.ledger.applied/32 + 8*len(s.workers)*(1+len(s.servers))
	for _, h := range s.peers() {
		most += len(s.workers) * h.timeouts
	}
	for _, w := range s.workers {
		most += 2 * w.host.timeouts
	}
	if n := s.net.repeated; n > most {
		s.fail("workers have repeated %d frames, although none was lost; pauses excuse %d", n, most)
	}
}
