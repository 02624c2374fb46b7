// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"slices"
	"time"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/ps"
)

// harvests brings the sums of the banks to the store, as package control and the server's
// process do, over a stream that breaks: the harvest or its acknowledgement is lost, and
// the harvest comes again.
func (s *sim) harvests(a *actor) {
	rng := s.random(streamHarvest)
	broken := func() bool { return !s.healed && rng.Float64() < s.plan.broken }
	for number := uint64(1); !s.over; number++ {
		a.park("between harvests", s.ended, time.Now().Add(time.Duration(rng.Int64N(int64(s.plan.harvest)))))
		last := s.ended()
		if last {
			a.park("the last harvest", s.calm, time.Time{})
		}
		bank, err := s.model.Swap(job)
		if err != nil {
			s.fail("swap: %v", err)
			return
		}
		var h ps.Harvest
		for rank, sum := range bank.Slots {
			if sum != 0 {
				h.Ranks, h.Sums = append(h.Ranks, uint32(rank)), append(h.Sums, sum)
			}
		}
		h.Instance, h.Number = 1, number
		for applied := false; ; {
			a.sleep("harvest on its way", time.Duration(rng.IntN(2000))*time.Microsecond)
			if s.over {
				return
			}
			if broken() {
				if s.options.fault == clearsEarly {
					break
				}
				continue
			}
			if s.options.fault == harvestsTwice {
				h.Number++
			}
			if applied, err = s.apply(a, bank, h, applied, rng.IntN(8) == 0); err != nil {
				if !s.over {
					s.fail("harvest %d: %v", number, err)
				}
				return
			}
			a.sleep("harvest acknowledged", time.Duration(rng.IntN(2000))*time.Microsecond)
			if s.over {
				return
			}
			if !broken() {
				break
			}
		}
		if err := s.model.Clear(bank); err != nil {
			s.fail("clear: %v", err)
			return
		}
		s.ledger.spent = nil
		s.result.Harvests++
		if last {
			return
		}
	}
}

// apply adds a harvest to the open step, once, and ends the step. The store may be replaced by one
// that has its checkpoint.
func (s *sim) apply(a *actor, bank *aggregator.Bank, h ps.Harvest, before, resume bool) (applied bool, err error) {
	a.doing = "Server.Do"
	called := s.ps.Do(context.Background(), func() {
		var fresh bool
		if fresh, err = s.store.ApplyHarvest(h, s.ledger.keys[:s.plan.hot]); err != nil {
			return
		}
		if fresh == before {
			s.fail("harvest %d: fresh is %v, it was applied before is %v", h.Number, fresh, before)
		}
		s.ledger.spent = bank
		pending := map[int][]int64{}
		for key, sums := range s.store.Pending() {
			pending[s.ledger.index[key]] = slices.Clone(sums)
		}
		s.store.Commit()
		s.ledger.commit(pending)
		row := make([]float32, s.plan.dim)
		for at := range pending {
			s.store.Read(s.ledger.keys[at:][:1], row)
			if want := s.ledger.weights[at*s.plan.dim:][:s.plan.dim]; !equal(row, want) {
				s.fail("key %d has the weights %v, not %v", s.ledger.keys[at], row, want)
			}
		}
		if resume {
			s.resume()
		}
	})
	a.yield("applied")
	if called != nil {
		return before, called
	}
	return true, err
}
