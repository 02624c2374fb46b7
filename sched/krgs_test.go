// SPDX-License-Identifier: Apache-2.0

package sched

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// The plans of the paper's algorithm fit after the repair, cost no less than the bound, and depend
// on nothing but the seed.
func TestPaper(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, p := drawProblem(t, 5, 6, 10)
		n.Parents = nil
		for s := range p.Switches {
			p.Switches[s].Parent = Server
			p.Switches[s].Links = n.Graph.Distances(n.Server)[n.Switches[s]]
		}
		seed := rapid.Uint64().Draw(t, "seed")
		r, err := Paper(p, seed)
		if err != nil {
			t.Fatal(err)
		}
		valid(t, p, r.Plan)
		solution, err := Solve(p)
		if err != nil || r.Cost < solution.Bound*(1-1e-9) {
			t.Errorf("cost %v, the bound is %v, %v", r.Cost, solution.Bound, err)
		}
		again, err := Paper(p, seed)
		if diff := cmp.Diff(r, again); diff != "" || err != nil {
			t.Errorf("not the same again: %v\n%s", err, diff)
		}
		for g, set := range r.Plan.Sets {
			if set.Len() > 1 {
				t.Errorf("part %d is at %d switches; in the relaxation its shares add up to 1 at most", g, set.Len())
			}
		}
	})
}

// The objective of the relaxation, as Equation (4) has it with fractions for x, y being x.
func (k *krgs) value(shares [][]float64) (sum float64) {
	for g, part := range k.Parts {
		for s, sw := range k.Switches {
			sum += shares[g][s] * float64(sw.Links) * (float64(len(k.Workers))*part.Push - k.Harvest*float64(part.Size))
		}
	}
	return sum
}

// No exchange of shares between two parts or two switches improves the relaxation, which is a
// transport problem, and nothing exceeds the memory.
func TestRelaxation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		_, p := drawProblem(t, 5, 6, 10)
		for s := range p.Switches {
			p.Switches[s].Parent = Server
		}
		k := &krgs{Problem: p, to: make([]int, len(p.Parts))}
		k.order()
		shares := k.relax()
		left := make([]float64, len(p.Switches))
		for s, sw := range p.Switches {
			left[s] = float64(sw.Memory)
			for g, part := range p.Parts {
				left[s] -= shares[g][s] * float64(part.Size)
			}
			if left[s] < -1e-9 {
				t.Errorf("switch %d: %v too much", s, -left[s])
			}
		}
		const step = 1e-3
		for g := range p.Parts {
			for from := range p.Switches {
				for to := range p.Switches {
					if shares[g][from] > step && left[to] > step*float64(p.Parts[g].Size) && p.Switches[to].Links > p.Switches[from].Links {
						t.Errorf("part %d: switch %d is farther than %d and has room", g, to, from)
					}
					for h := range p.Parts {
						if shares[g][from] <= step || shares[h][to] <= step {
							continue
						}
						before := k.value(shares)
						moved := func(sign float64) { // the same memory of both
							a, b := sign*step/float64(p.Parts[g].Size), sign*step/float64(p.Parts[h].Size)
							shares[g][from] -= a
							shares[g][to] += a
							shares[h][to] -= b
							shares[h][from] += b
						}
						moved(1)
						if after := k.value(shares); after > before+1e-7*(1+before) {
							t.Errorf("parts %d and %d exchange switches %d and %d: %v, before %v", g, h, from, to, after, before)
						}
						moved(-1)
					}
				}
			}
		}
	})
}

// Of 60 equal parts and memory for 64, the rounding gives some switch more than it has room for,
// and the repair finds places for the rest.
func TestRoundingExceedsMemory(t *testing.T) {
	p := &Problem{Direct: 1, Harvest: 1, Workers: make([]Worker, 8)}
	for s := range 4 {
		p.Switches = append(p.Switches, Switch{Memory: 64, Parent: Server, Links: 3})
		for w := range p.Workers {
			p.Workers[w].ToServer = 4
			p.Workers[w].Links = append(p.Workers[w].Links, 1+(s+w)%3)
		}
	}
	fill(p, 60, 4, 64, 0)
	exceeded := 0
	for seed := range uint64(20) {
		r, err := Paper(p, seed)
		if err != nil {
			t.Fatal(err)
		}
		if r.Excess > 1 {
			exceeded++
		}
		if (r.Excess > 1) != (r.Moved > 0) {
			t.Errorf("excess %v, %d parts moved", r.Excess, r.Moved)
		}
		for s, used := range p.Used(r.Plan) {
			if used > 64 {
				t.Errorf("switch %d: %d of 64", s, used)
			}
		}
		for g, set := range r.Plan.Sets {
			if set == 0 {
				t.Errorf("part %d is at no switch, though there is room", g)
			}
		}
	}
	if exceeded < 15 {
		t.Errorf("%d of 20 roundings exceed the memory", exceeded)
	}
}
