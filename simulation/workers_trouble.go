// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"slices"
	"time"
)

// planTrouble plans the trouble, and its end.
func (s *workersLife) planTrouble() {
	p, rng := &s.plan, s.options.random(streamTrouble)
	hosts := s.peerHosts()
	for _, w := range s.workers {
		hosts = append(hosts, w.host)
	}
	span := int64(p.trouble)
	for n := range 2 + rng.IntN(most-2) {
		// As in the network, the number of draws is always the same.
		at, lasts := time.Duration(rng.Int64N(span)), time.Duration(rng.Int64N(span/4))
		a, b := hosts[rng.IntN(len(hosts))], hosts[rng.IntN(len(hosts))]
		w, where := s.workers[rng.IntN(len(s.workers))], rng.IntN(3)
		kind := [...]Kinds{Partition, Pause, Crash, Evict}[rng.IntN(4)]
		if p.kinds&kind == 0 || slices.Contains(s.options.Cut.Without, n) {
			continue
		}
		s.After(at, func() {
			if s.Healed() {
				return
			}
			s.Tell("%v of %s and %s, or worker %d\n", kind, a.Name(), b.Name(), w.sender)
			switch kind {
			case Partition:
				s.Net.Partition(a, b)
				s.After(lasts, func() { s.Net.Rejoin(a, b) })
			case Pause:
				s.result.Pauses++
				a.Pause()
				s.After(lasts, a.Resume)
			case Crash:
				s.crashWorker(w)
			case Evict:
				s.evictWorker(w, where)
			}
		})
	}
	s.After(p.trouble, s.Heal)
}

// silenceLimit is how long after the trouble a worker may still give up: the limit of silence,
// which may have begun before.
func (s *workersLife) silenceLimit() time.Duration {
	if s.plan.flow.Silence > 0 {
		return s.plan.flow.Silence
	}
	return 10 * time.Second
}
