// SPDX-License-Identifier: Apache-2.0

package sched

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
)

// Rounded is a plan of the paper's algorithm.
type Rounded struct {
	Plan *Plan
	Cost float64
	// Excess is the largest share of a switch's memory that the rounding took, before the repair.
	Excess float64
	// Moved is the number of parts that the repair moved, to another switch or to the server.
	Moved int
}

// Paper makes a plan by the paper's Algorithm 1, KRGS, and repairs it where the rounding has
// exceeded the memory of a switch, which the paper allows up to a factor. It knows no parents.
//
// Equation (4) counts, for each part at a switch, the links from there to the server once for each
// worker but one; the links from workers to switches are not in it. Its relaxation is therefore a
// fractional knapsack: the densest parts go to the switches that are farthest from the server, and
// no solver of linear programs is needed. Where parts are equally dense, or switches equally far,
// there are many optima. This is the one in which such parts have the same shares of such switches,
// in proportion to the memory; rounding draws a switch for each.
func Paper(p *Problem, seed uint64) (*Rounded, error) {
	if err := p.check(); err != nil {
		return nil, err
	}
	for i, s := range p.Switches {
		if s.Parent != Server {
			return nil, fmt.Errorf("%w: switch %d has a parent, which the paper's algorithm does not know", ErrProblem, i)
		}
	}
	k := &krgs{Problem: p, rng: rand.New(rand.NewPCG(seed, 0)), to: make([]int, len(p.Parts))}
	k.order()
	k.round(k.relax())
	r := &Rounded{}
	r.Moved, r.Excess = k.repair()
	r.Plan = &Plan{Sets: make([]Set, len(p.Parts)), To: make([][]int, len(p.Parts))}
	for g, s := range k.to {
		if s != Server {
			r.Plan.Sets[g] = 1 << s
		}
		// In the relaxation each worker sends as much of a part to a switch as that holds of it, so
		// line 17 of Algorithm 1 gives all workers of a part the same switch.
		r.Plan.To[g] = slices.Repeat([]int{s}, len(p.Workers))
	}
	r.Cost = p.Cost(r.Plan)
	return r, nil
}

type krgs struct {
	*Problem
	rng      *rand.Rand
	parts    []int // by density, highest first, without those that are not worth their memory
	switches []int // by links to the server, most first
	to       []int // for each part its switch, or Server
}

func (k *krgs) order() {
	for g, part := range k.Parts {
		if float64(len(k.Workers))*part.Push > k.Harvest*float64(part.Size) {
			k.parts = append(k.parts, g)
		}
	}
	slices.SortStableFunc(k.parts, func(a, b int) int {
		return cmp.Compare(k.Parts[b].density(), k.Parts[a].density())
	})
	for s := range k.Switches {
		k.switches = append(k.switches, s)
	}
	slices.SortStableFunc(k.switches, func(a, b int) int { return cmp.Compare(k.Switches[b].Links, k.Switches[a].Links) })
}

// runs cuts a list after each run of members that are alike.
func runs(list []int, alike func(a, b int) bool) (all [][]int) {
	for _, v := range list {
		if last := len(all) - 1; last >= 0 && alike(all[last][0], v) {
			all[last] = append(all[last], v)
		} else {
			all = append(all, []int{v})
		}
	}
	return all
}

// relax returns the share of each part at each switch. A part for which not enough memory is left
// has none: the floor in line 6 of Algorithm 1 leaves it to the server.
func (k *krgs) relax() [][]float64 {
	shares := make([][]float64, len(k.Parts))
	for g := range shares {
		shares[g] = make([]float64, len(k.Switches))
	}
	left := make([]float64, len(k.Switches))
	total := 0.0
	for s, sw := range k.Switches {
		left[s] = float64(sw.Memory)
		total += left[s]
	}
	distances := runs(k.switches, func(a, b int) bool { return k.Switches[a].Links == k.Switches[b].Links })
	for _, alike := range runs(k.parts, func(a, b int) bool { return k.Parts[a].density() == k.Parts[b].density() }) {
		size := 0.0
		for i, g := range alike {
			if size+float64(k.Parts[g].Size) > total {
				alike = alike[:i]
				break
			}
			size += float64(k.Parts[g].Size)
		}
		total -= size
		wanted := size
		for _, near := range distances {
			room := 0.0
			for _, s := range near {
				room += left[s]
			}
			taken := min(room, wanted)
			if taken <= 0 {
				continue
			}
			wanted -= taken
			for _, s := range near {
				part := taken * left[s] / room
				left[s] -= part
				for _, g := range alike {
					shares[g][s] = part / size
				}
			}
		}
	}
	return shares
}

// round is step 2 of Algorithm 1. The shares of a part add up to 1 or to 0, so that k(g) is 1 and
// all of them are in one knapsack, or the server sums the part.
func (k *krgs) round(shares [][]float64) {
	for g := range k.Parts {
		k.to[g] = Server
		sum := 0.0
		for _, x := range shares[g] {
			sum += x
		}
		if sum < 0.5 {
			continue
		}
		draw := k.rng.Float64() * sum
		for _, s := range k.switches {
			if shares[g][s] == 0 {
				continue
			}
			k.to[g] = s // the last one, if rounding errors leave a rest
			if draw -= shares[g][s]; draw < 0 {
				break
			}
		}
	}
}

// repair moves parts off switches that have too many, the least dense ones first, each to the
// switch farthest from the server that has room, or else to the server.
func (k *krgs) repair() (moved int, excess float64) {
	left := make([]int, len(k.Switches))
	for s, sw := range k.Switches {
		left[s] = sw.Memory
	}
	for g, s := range k.to {
		if s != Server {
			left[s] -= k.Parts[g].Size
		}
	}
	for s, sw := range k.Switches {
		if used := sw.Memory - left[s]; used > 0 {
			excess = max(excess, float64(used)/float64(sw.Memory))
		}
	}
	for _, g := range slices.Backward(k.parts) {
		from, size := k.to[g], k.Parts[g].Size
		if from == Server || left[from] >= 0 {
			continue
		}
		left[from] += size
		k.to[g] = Server
		moved++
		for _, s := range k.switches {
			if left[s] >= size {
				k.to[g] = s
				left[s] -= size
				break
			}
		}
	}
	return moved, excess
}
