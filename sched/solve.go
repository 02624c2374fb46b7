// SPDX-License-Identifier: Apache-2.0

package sched

import "encoding/binary"

// Solution is a plan with its cost, and a lower bound of the cost of every plan.
type Solution struct {
	Plan  *Plan
	Cost  float64
	Bound float64
}

// Gap is how much the cost exceeds the bound, as a share of the bound.
func (s *Solution) Gap() float64 {
	if s.Bound <= 0 {
		return 0
	}
	return s.Cost/s.Bound - 1
}

// Solve finds a plan of low cost, and a bound. It tries the greedy plan and those that the prices
// of the bound suggest, each with a local search, and then looks for better ones by branch and
// bound as far as that goes. The error is [ErrProblem].
func Solve(p *Problem) (*Solution, error) {
	if err := p.check(); err != nil {
		return nil, err
	}
	t := newTable(p)
	best := t.newSearch(make([]Set, len(p.Parts)))
	best.greedy()
	best.improve()
	cost := t.total(best.sets)
	seen := map[string]bool{}
	try := func(sets []Set) float64 {
		key := keyOf(sets)
		if seen[key] {
			return cost
		}
		seen[key] = true
		s := t.newSearch(sets)
		s.repair()
		s.improve()
		if c := t.total(s.sets); c < cost {
			best, cost = s, c
		}
		return cost
	}
	d := newDual(t)
	if len(p.Parts) > 0 {
		d.descend(d.densities(maxDensities), cost, try)
		d.descend(d.densities(len(p.Parts)), cost, try)
	}
	better, complete := d.refine(cost)
	if better != nil {
		best = t.newSearch(better)
	}
	plan := p.assign(best.sets)
	s := &Solution{Plan: plan, Cost: p.Cost(plan)}
	if s.Bound = min(d.bound, s.Cost); complete {
		s.Bound = s.Cost
	}
	return s, nil
}

// keyOf tells lists of sets apart.
func keyOf(sets []Set) string {
	var key []byte
	for _, s := range sets {
		key = binary.BigEndian.AppendUint32(key, uint32(s))
	}
	return string(key)
}
