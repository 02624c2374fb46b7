// SPDX-License-Identifier: Apache-2.0

package sched

import (
	"cmp"
	"math"
	"slices"
)

// The effort for the bound.
const (
	// maxDensities is the number of densities for which most iterations look for the best set: eight
	// classes of parts have nine ends.
	maxDensities = 9
	// fewest and most limit the number of iterations, and effort is the number of sets that all of
	// them together may look at.
	fewest, most, effort = 100, 4000, 60_000_000
	// searches is the number of iterations whose sets begin a local search.
	searches = 20
	// stallLimit is the number of iterations without a better bound after which steps are halved.
	stallLimit = 12
)

// dual is the Lagrangian relaxation of the memory: each switch has a price for a unit of it, and
// each part takes the set that is best at these prices. What that costs, less what the memory of
// all switches would cost, is a lower bound of every plan's cost, whatever the prices.
type dual struct {
	*table
	sizes  []float64
	prices []float64
	best   []float64 // the prices of the highest bound
	bound  float64

	useful []useful  // in order of above
	priced []float64 // scratch: harvests and prices of each of them, for a unit of size
}

// useful is a set that can be best, for parts that push more than a density.
type useful struct {
	set           Set
	push, harvest float64 // as in the table
	above         float64
}

func newDual(t *table) *dual {
	n := len(t.Switches)
	d := &dual{table: t, prices: make([]float64, n), best: make([]float64, n), bound: math.Inf(-1)}
	for _, p := range t.Parts {
		d.sizes = append(d.sizes, float64(p.Size))
	}
	d.findUseful()
	return d
}

// findUseful leaves out sets that are never best: those with a switch whose loss would save more of
// harvests than it costs of pushes. Prices can only be saved by it.
func (d *dual) findUseful() {
	top := 0.0
	for _, p := range d.Parts {
		top = max(top, p.density())
	}
	for set, harvests := range d.harvest {
		if math.IsInf(harvests, 0) {
			continue // without a parent
		}
		u := useful{Set(set), d.push[set], harvests, -1}
		for s := range u.set.All() {
			without := u.set &^ d.down[s]
			lost := d.push[without] - d.push[set]
			if lost <= 0 {
				u.above = math.Inf(1)
				break
			}
			u.above = max(u.above, (harvests-d.harvest[without])/lost)
		}
		if u.above < top {
			d.useful = append(d.useful, u)
		}
	}
	slices.SortStableFunc(d.useful, func(a, b useful) int { return cmp.Compare(a.above, b.above) })
	d.priced = make([]float64, len(d.useful))
}

// usefulFor returns the sets that can be best for a density.
func (d *dual) usefulFor(density float64) []useful {
	n, _ := slices.BinarySearchFunc(d.useful, density, func(u useful, density float64) int {
		return cmp.Compare(u.above, density)
	})
	return d.useful[:n]
}

// densities returns at most a number of densities, in ascending order, so that all parts are
// between the first and the last and about as many between any two neighbours.
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

// price adds up the prices of all useful sets.
func (d *dual) price() {
	const half = MaxSwitches / 2
	var low, high [1 << half]float64 // of the sets of the first switches, and of the others
	for i, sums := range []*[1 << half]float64{&low, &high} {
		prices := d.prices[min(i*half, len(d.prices)):min((i+1)*half, len(d.prices))]
		for set := 1; set < 1<<len(prices); set++ {
			sums[set] = sums[set&(set-1)] + prices[Set(set).first()]
		}
	}
	for i, u := range d.useful {
		d.priced[i] = u.harvest + low[u.set%(1<<half)] + high[u.set>>half]
	}
}

// bestSets finds the best set for each density at the present prices, and what it costs for a unit
// of size.
func (d *dual) bestSets(densities []float64) (sets []Set, costs []float64) {
	d.price()
	for _, density := range densities {
		best, least := Set(0), math.Inf(1)
		for i, u := range d.usefulFor(density) {
			if c := float64(density*u.push) + d.priced[i]; c < least {
				best, least = u.set, c
			}
		}
		sets, costs = append(sets, best), append(costs, least)
	}
	return sets, costs
}

// relax solves the relaxation at the present prices. It returns its value, a subgradient, and a set
// for each part. The best cost of a part is a concave function of its density, so between two
// densities whose best sets are known it is not below the straight line between them: the value is
// a bound for all parts, not for their classes only.
func (d *dual) relax(densities []float64) (value float64, slope []float64, choice []Set) {
	sets, costs := d.bestSets(densities)
	slope = make([]float64, len(d.prices))
	for s := range slope {
		slope[s] = -float64(d.Switches[s].Memory)
		value += float64(d.prices[s] * slope[s])
	}
	choice = make([]Set, len(d.Parts))
	for g, part := range d.Parts {
		at, exact := slices.BinarySearch(densities, part.density())
		below, share := at, 1.0 // of the density at
		if !exact {
			below = at - 1
			share = (part.density() - densities[below]) / (densities[at] - densities[below])
		}
		value += float64(d.sizes[g] * (float64(share*costs[at]) + float64((1-share)*costs[below])))
		for s := range sets[at].All() {
			slope[s] += float64(share * d.sizes[g])
		}
		for s := range sets[below].All() {
			slope[s] += float64((1 - share) * d.sizes[g])
		}
		if choice[g] = sets[at]; share < 0.5 {
			choice[g] = sets[below]
		}
	}
	return value, slope, choice
}

// descend raises the bound by the subgradient method, with Polyak's steps. Reached is the cost of a
// plan; found gets the sets of some iterations, and returns the cost of the best plan so far.
func (d *dual) descend(densities []float64, reached float64, found func([]Set) float64) {
	iterations := min(most, max(fewest, effort/(len(d.useful)*len(densities)+1)))
	theta, stalled := 1.0, 0
	copy(d.prices, d.best)
	for i := range iterations {
		value, slope, sets := d.relax(densities)
		if value > d.bound {
			stalled, d.bound = 0, value
			copy(d.best, d.prices)
		} else if stalled++; stalled > stallLimit {
			stalled, theta = 0, theta/2
		}
		if i%(iterations/searches) == 0 || i == iterations-1 {
			reached = found(sets)
		}
		norm := 0.0
		for s := range slope {
			if d.prices[s] > 0 || slope[s] > 0 {
				norm += float64(slope[s] * slope[s])
			}
		}
		if norm == 0 || reached <= d.bound {
			return // the prices are best, or the plan is
		}
		step := theta * (reached - value) / norm
		for s := range slope {
			d.prices[s] = max(0, d.prices[s]+float64(step*slope[s]))
		}
	}
}
