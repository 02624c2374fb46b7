// SPDX-License-Identifier: Apache-2.0

package sched

import (
	"fmt"
	"iter"
	"math"
	"math/bits"
)

// MaxSwitches is the largest number of switches that aggregate: the cost of a part is tabulated for
// every set of them.
const MaxSwitches = 16

// Server stands for the server where an index of a switch could be.
const Server = -1

// Set is a set of switches: bit i is switch i.
type Set uint32

// Has reports whether a switch is in the set.
func (s Set) Has(i int) bool { return s>>i&1 != 0 }

// Len returns the number of switches in the set.
func (s Set) Len() int { return bits.OnesCount32(uint32(s)) }

// All lists the switches of the set in ascending order.
func (s Set) All() iter.Seq[int] {
	return func(yield func(int) bool) {
		for ; s != 0; s &= s - 1 {
			if !yield(s.first()) {
				return
			}
		}
	}
}

func (s Set) first() int { return bits.TrailingZeros32(uint32(s)) }

// Problem is what a plan depends on.
type Problem struct {
	Switches []Switch
	Workers  []Worker
	Parts    []Part
	// Direct is how many bytes a gradient has on its way to the server for each byte that it has on
	// its way to a switch.
	Direct float64
	// Harvest is the number of bytes of a harvest for each unit of a part's size.
	Harvest float64
}

// Switch is a switch that aggregates.
type Switch struct {
	Memory int // room for parts, in units of their size
	// Parent is the index of the switch that takes its harvests and adds them to its own, or [Server].
	// The parent must hold every part that the switch holds.
	Parent int
	Links  int // links between the switch and its parent, or the server
}

// Worker is a worker.
type Worker struct {
	ToServer int   // links between the worker and the server
	Links    []int // links between the worker and each switch
}

// Part is a part of the gradient that is scheduled as a whole.
type Part struct {
	Push float64 // bytes that each worker sends to a switch
	Size int     // memory that it takes of a switch
}

// density is what a part pushes for each unit of memory.
func (p Part) density() float64 { return p.Push / float64(p.Size) }

// Plan says who sums what.
type Plan struct {
	Sets []Set   // for each part, the switches that hold it
	To   [][]int // for each part and worker, the switch to which the worker sends it, or [Server]
}

// check refuses what has no plan.
func (p *Problem) check() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: "+format, append([]any{ErrProblem}, args...)...)
	}
	if n := len(p.Switches); n > MaxSwitches {
		return bad("%d switches; the limit is %d", n, MaxSwitches)
	}
	if !(p.Direct > 0 && p.Harvest >= 0) || math.IsInf(p.Direct+p.Harvest, 0) {
		return bad("%v bytes on the way to the server, %v of harvests", p.Direct, p.Harvest)
	}
	for i, s := range p.Switches {
		if s.Memory < 0 || s.Links < 0 || s.Parent < Server || s.Parent >= len(p.Switches) {
			return bad("switch %d: %+v", i, s)
		}
		steps := 0
		for at := i; at != Server; at = p.Switches[at].Parent {
			if steps++; steps > len(p.Switches) {
				return bad("switch %d is its own parent's parent", i)
			}
		}
	}
	for i, w := range p.Workers {
		if len(w.Links) != len(p.Switches) || w.ToServer < 0 {
			return bad("worker %d: %+v", i, w)
		}
	}
	for i, part := range p.Parts {
		if part.Size < 1 || !(part.Push >= 0) || math.IsInf(part.Push, 0) {
			return bad("part %d: %+v", i, part)
		}
	}
	return nil
}

// Cost returns the bytes times links of a plan: the paper's Equation (1).
func (p *Problem) Cost(plan *Plan) float64 {
	total := 0.0
	for g, part := range p.Parts {
		links := 0.0
		for w, to := range plan.To[g] {
			if to == Server {
				links += float64(p.Direct * float64(p.Workers[w].ToServer))
			} else {
				links += float64(p.Workers[w].Links[to])
			}
		}
		total += float64(part.Push * links)
		for s := range plan.Sets[g].All() {
			total += float64(p.Harvest * float64(part.Size*p.Switches[s].Links))
		}
	}
	return total
}

// Used returns the memory that a plan takes of each switch.
func (p *Problem) Used(plan *Plan) []int {
	used := make([]int, len(p.Switches))
	for g, set := range plan.Sets {
		for s := range set.All() {
			used[s] += p.Parts[g].Size
		}
	}
	return used
}

// Nowhere returns the plan without any switch.
func (p *Problem) Nowhere() *Plan { return p.assign(make([]Set, len(p.Parts))) }

// assign sends each worker's gradients to the nearest switch that holds their part, or to the
// server where that costs less. Of several nearest switches it takes the one with the fewest bytes
// so far.
func (p *Problem) assign(sets []Set) *Plan {
	plan := &Plan{Sets: sets, To: make([][]int, len(sets))}
	load := make([]float64, len(p.Switches))
	for g, set := range sets {
		plan.To[g] = make([]int, len(p.Workers))
		for w, worker := range p.Workers {
			to, least := Server, p.Direct*float64(worker.ToServer)
			for s := range set.All() {
				links := float64(worker.Links[s])
				if links < least || links == least && (to == Server || load[s] < load[to]) {
					to, least = s, links
				}
			}
			if plan.To[g][w] = to; to != Server {
				load[to] += p.Parts[g].Push
			}
		}
	}
	return plan
}
