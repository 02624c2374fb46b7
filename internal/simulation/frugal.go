// SPDX-License-Identifier: Apache-2.0

package simulation

import "time"

// leastTimeout is that of a flow whose peer answers at once.
const leastTimeout = 5 * time.Millisecond

// frugal checks that workers repeat little where nothing is lost nor overtaken by much: of a
// flow whose peer stands still, the oldest frame alone, at timeouts that double. Beyond that, queues
// that are full for a moment count as losses of a few frames.
func (s *sim) frugal() {
	const lossy = Loss | Reorder | Corrupt | Partition | Crash | Evict | Queue
	answers, timeouts := uint64(0), 0
	for _, h := range s.peers() {
		answers += h.link.stats.NoRoom
		timeouts += h.timeouts
	}
	if s.plan.kinds&lossy != 0 || answers+s.net.count.Overrun > 0 {
		return
	}
	most := s.ledger.applied/64 + len(s.workers)*(4+4*len(s.servers)+timeouts)
	for _, w := range s.workers {
		most += 2 * w.host.timeouts
	}
	if n := s.net.repeated; n > most {
		s.fail("workers have repeated %d frames, although none was lost; pauses excuse %d", n, most)
	}
}
