// SPDX-License-Identifier: Apache-2.0

package sched

import (
	"cmp"
	"math"
	"slices"
)

// maxNodes bounds the exact search: it gives up when it has tried this number of sets.
const maxNodes = 200_000

// tolerance is the share of a plan's cost by which another has to be better.
const tolerance = 1e-9

// A candidate is a set that a part may have, with what it costs more, at the prices of the bound,
// than the best set of that part.
type candidate struct {
	set   Set
	extra float64
}

// exact looks for better plans by branch and bound. What a plan costs above the bound is at least
// the sum of its sets' extras, so most sets are in no plan that is better than one that is known.
// With few switches or parts this leaves so little that the search ends, and then no plan is
// better.
type exact struct {
	*dual
	state      *search
	candidates [][]candidate // by part, in order of their extras
	order      []int         // parts in the order in which they are decided
	most       float64       // what a plan may cost that is better
	nodes      int
	found      []Set // the best plan, if any is better than that at the start
}

// refine returns a plan that costs less than a cost, or nil, and whether no other costs less than
// the result.
func (d *dual) refine(cost float64) (better []Set, complete bool) {
	e := &exact{
		dual: d, state: d.newSearch(make([]Set, len(d.Parts))), candidates: make([][]candidate, len(d.Parts)),
		most: cost * (1 - tolerance),
	}
	copy(d.prices, d.best)
	d.price()
	for g, part := range d.Parts {
		sets := d.usefulFor(part.density())
		cost := func(i int) float64 { return float64(part.Push*sets[i].push) + float64(d.sizes[g]*d.priced[i]) }
		least := math.Inf(1)
		for i := range sets {
			least = min(least, cost(i))
		}
		for i, u := range sets {
			if extra := cost(i) - least; d.bound+extra < e.most {
				e.candidates[g] = append(e.candidates[g], candidate{u.set, extra})
			}
		}
		if e.nodes += len(e.candidates[g]); e.nodes > maxNodes {
			return nil, false
		}
		slices.SortStableFunc(e.candidates[g], func(a, b candidate) int { return cmp.Compare(a.extra, b.extra) })
		e.order = append(e.order, g)
	}
	slices.SortStableFunc(e.order, func(a, b int) int { return len(e.candidates[a]) - len(e.candidates[b]) })
	complete = e.decide(0, d.bound)
	return e.found, complete
}

// decide tries the sets of a part, and for each those of the parts after it. Low is a bound of what
// plans with the sets before it cost. It returns false when it gives up.
func (e *exact) decide(depth int, low float64) bool {
	if depth == len(e.order) {
		if cost := e.total(e.state.sets); cost < e.most {
			e.found, e.most = slices.Clone(e.state.sets), cost*(1-tolerance)
		}
		return true
	}
	g := e.order[depth]
	for _, c := range e.candidates[g] {
		if low+c.extra >= e.most {
			break
		}
		if e.nodes++; e.nodes > maxNodes {
			return false
		}
		if !e.state.fits(g, c.set) {
			continue
		}
		e.state.put(g, c.set)
		complete := e.decide(depth+1, low+c.extra)
		e.state.put(g, 0)
		if !complete {
			return false
		}
	}
	return true
}
