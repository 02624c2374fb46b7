// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/simulation/world"
)

// bringHarvests brings the sums of the banks to the store, as package control and the server's
// process do, over a stream that breaks: the harvest or its acknowledgement is lost, and the
// harvest is repeated.
func (s *workersLife) bringHarvests(a *world.Actor) {
	rng := s.options.random(streamHarvest)
	for number := uint64(1); !s.Over(); number++ {
		a.Park("between harvests", s.workersEnded, time.Now().Add(time.Duration(rng.Int64N(int64(s.plan.harvest)))))
		last := s.workersEnded()
		if last {
			a.Park("the last harvest", s.isCalm, time.Time{})
		}
		if !s.bringHarvest(a, number, rng, func() bool { return rng.IntN(8) == 0 }) || last {
			return
		}
	}
}

// bringHarvest brings the sums of a bank to the store, and reports whether the life goes on. resume
// decides whether the stores are replaced.
func (s *workersLife) bringHarvest(a *world.Actor, number uint64, rng *rand.Rand, resume func() bool) bool {
	broken := func() bool { return !s.Healed() && rng.Float64() < s.plan.broken }
	bank, err := s.model.Swap(job)
	if err != nil {
		s.Fail("swap: %v", err)
		return false
	}
	if i := slices.Index(bank.Touched, 1); i >= 0 && s.options.fault == losesBlock {
		bank.Touched[i] = 0
	}
	var h ps.Harvest
	bank.All(func(first int, slots []int64) bool {
		for i, sum := range slots {
			if sum != 0 {
				h.Ranks, h.Sums = append(h.Ranks, uint32(first+i)), append(h.Sums, sum)
			}
		}
		return true
	})
	h.Instance, h.Number = 1, number
	for applied := false; ; {
		a.Sleep("harvest on its way", time.Duration(rng.IntN(2000))*time.Microsecond)
		if s.Over() {
			return false
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
		if applied, err = s.applyHarvest(a, bank, h, applied, resume()); err != nil {
			if !s.Over() {
				s.Fail("harvest %d: %v", number, err)
			}
			return false
		}
		a.Sleep("harvest acknowledged", time.Duration(rng.IntN(2000))*time.Microsecond)
		if s.Over() {
			return false
		}
		if !broken() {
			break
		}
	}
	if err := s.model.Clear(bank); err != nil {
		s.Fail("clear: %v", err)
		return false
	}
	s.ledger.spent = nil
	s.result.Harvests++
	return true
}

// applyHarvest adds a harvest to the open step of the first server, once, and ends the step there
// and at the others. Stores may be replaced by ones restored from their checkpoints.
func (s *workersLife) applyHarvest(
	a *world.Actor, bank *aggregator.Bank, h ps.Harvest, before, resume bool,
) (applied bool, err error) {
	err = s.servers[0].commitStep(a, resume, func() error {
		fresh, err := s.servers[0].store.ApplyHarvest(h, s.rows.keys)
		if err != nil {
			return err
		}
		if fresh == before {
			s.Fail("harvest %d: fresh is %v, it was applied before is %v", h.Number, fresh, before)
		}
		s.ledger.spent = bank
		return nil
	})
	if err != nil {
		return before, err
	}
	for i, v := range s.servers[1:] { // each at its own time, one of them from a checkpoint on
		this := resume && h.Number%uint64(len(s.servers)-1) == uint64(i)
		if err := v.commitStep(a, this, func() error { return nil }); err != nil {
			return true, err
		}
	}
	return true, nil
}
