// SPDX-License-Identifier: Apache-2.0

package sched

import (
	"math"
	"slices"
)

// Iterations of the subgradient method, and how often its sets begin a local search.
const (
	coarseIterations = 120
	fineIterations   = 16
	stallLimit       = 12
	searchEvery      = 6
)

// maxDensities is the number of densities for which the coarse iterations look for the best set:
// eight classes of parts have nine ends.
const maxDensities = 9

// dual is the Lagrangian relaxation of the memory: each switch has a price for a unit of it, and each
// part takes the set that is best at these prices. What that costs, less what the memory of all
// switches would cost, is a lower bound of every plan's cost, whatever the prices.
type dual struct {
	*table
	sizes  []float64
	prices []float64
	best   []float64 // the prices of the highest bound
	bound  float64

	priced []float64 // scratch: harvests and prices of each set, for a unit of size
}

func newDual(t *table) *dual {
	n := len(t.Switches)
	d := &dual{
		table: t, prices: make([]float64, n), best: make([]float64, n), bound: math.Inf(-1),
		priced: make([]float64, len(t.push)),
	}
	for _, p := range t.Parts {
		d.sizes = append(d.sizes, float64(p.Size))
	}
	return d
}

// densities returns at most a number of densities, in ascending order, so that all parts are between
// the first and the last and about as many between any two neighbours.
func (d *dual) densities(most int) []float64 {
	var all []float64
	for _, p := range d.Parts {
		all = append(all, p.density())
	}
	slices.Sort(all)
	if distinct := slices.Compact(slices.Clone(all)); len(distinct) <= most {
		return distinct
	}
	var ends []float64
	for i := range most {
		ends = append(ends, all[i*(len(all)-1)/(most-1)])
	}
	return slices.Compact(ends)
}

// bestSets finds the best set for each density at the present prices, and what it costs for a unit
// of size.
func (d *dual) bestSets(densities []float64) (sets []Set, costs []float64) {
	d.priced[0] = 0
	for set := 1; set < len(d.priced); set++ {
		d.priced[set] = d.priced[set&(set-1)] + d.prices[Set(set).first()]
	}
	for set, h := range d.harvest {
		d.priced[set] += h
	}
	for _, density := range densities {
		best, least := 0, math.Inf(1)
		priced := d.priced[:len(d.push)]
		for set, links := range d.push {
			if c := density*links + priced[set]; c < least {
				best, least = set, c
			}
		}
		sets, costs = append(sets, Set(best)), append(costs, least)
	}
	return sets, costs
}

// descend moves the prices along subgradients. The best cost of a part is a concave function of its
// density, so between two densities whose best sets are known it is not below the straight line
// between them: the bound holds for all parts, not for their classes only. Reached is the cost of a
// plan; found gets the sets of some iterations, and returns the cost of the best plan so far.
func (d *dual) descend(densities []float64, iterations int, reached float64, found func([]Set) float64) {
	theta, stalled := 1.0, 0
	copy(d.prices, d.best)
	slope := make([]float64, len(d.prices))
	choice := make([]Set, len(d.Parts))
	for i := range iterations {
		sets, costs := d.bestSets(densities)
		value := 0.0
		for s := range slope {
			slope[s] = -float64(d.Switches[s].Memory)
			value += d.prices[s] * slope[s]
		}
		for g, part := range d.Parts {
			at, exact := slices.BinarySearch(densities, part.density())
			below, share := at, 1.0 // of the density at
			if !exact {
				below = at - 1
				share = (part.density() - densities[below]) / (densities[at] - densities[below])
			}
			value += d.sizes[g] * (share*costs[at] + (1-share)*costs[below])
			for s := range sets[at].All() {
				slope[s] += share * d.sizes[g]
			}
			for s := range sets[below].All() {
				slope[s] += (1 - share) * d.sizes[g]
			}
			if choice[g] = sets[at]; share < 0.5 {
				choice[g] = sets[below]
			}
		}
		if value > d.bound {
			stalled, d.bound = 0, value
			copy(d.best, d.prices)
		} else if stalled++; stalled > stallLimit {
			stalled, theta = 0, theta/2
			copy(d.prices, d.best)
		}
		if i%searchEvery == 0 || i == iterations-1 {
			reached = found(slices.Clone(choice))
		}
		norm := 0.0
		for s := range slope {
			if d.prices[s] > 0 || slope[s] > 0 {
				norm += slope[s] * slope[s]
			}
		}
		if norm == 0 || reached <= d.bound {
			return // the prices are best, or the plan is
		}
		step := theta * (reached - value) / norm
		for s := range slope {
			d.prices[s] = max(0, d.prices[s]+step*slope[s])
		}
	}
}
