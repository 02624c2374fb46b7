// SPDX-License-Identifier: Apache-2.0

package sched

import (
	"errors"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// The paper's Figure 2: three fragments at three switches, 25 links in all, 13 without those
// between the workers and their switches, and three fragments at the server. Equation (4) finds it,
// too.
func TestFigure2(t *testing.T) {
	n, p := figure2(t)
	solution := mustSolve(t, p)
	if solution.Cost != 25 || solution.Bound != 25 {
		t.Errorf("cost %v, bound %v, want 25", solution.Cost, solution.Bound)
	}
	plans := []*Plan{solution.Plan}
	for seed := range uint64(20) {
		r, err := Paper(p, seed)
		if err != nil || r.Cost != 25 || r.Excess > 3 {
			t.Fatalf("the paper's algorithm: %+v, %v", r, err)
		}
		plans = append(plans, r.Plan)
	}
	for _, plan := range plans {
		transfers, atServer := 0.0, 0.0
		for _, link := range n.Traffic(p, plan) {
			if link.A == n.Server || link.B == n.Server {
				atServer += link.Push + link.Harvest
			}
			if n.Graph.host[link.B] && link.B != n.Server {
				continue // the first link of a worker
			}
			transfers += link.Push + link.Harvest
		}
		if transfers != 13 || atServer != 3 {
			t.Errorf("%v transfers, %v at the server, want 13 and 3: %+v", transfers, atServer, plan)
		}
	}
}

// walked is the cost of a plan by walking the graph: each byte over each link, by a search of its
// own, with the pushes of each worker to the nearest of the switches that hold a part.
func walked(n *Network, p *Problem, plan *Plan) (cost float64) {
	links := func(from, to Node) int {
		reached := map[Node]int{from: 0}
		for queue := []Node{from}; len(queue) > 0; queue = queue[1:] {
			at := queue[0]
			if at == to {
				return reached[at]
			}
			if n.Graph.host[at] && at != from {
				continue
			}
			for _, next := range n.Graph.links[at] {
				if _, seen := reached[next]; !seen {
					reached[next] = reached[at] + 1
					queue = append(queue, next)
				}
			}
		}
		panic("no path")
	}
	for g, part := range p.Parts {
		for _, w := range n.Workers {
			best := p.Direct * float64(links(w, n.Server))
			for s := range plan.Sets[g].All() {
				best = min(best, float64(links(w, n.Switches[s])))
			}
			cost += part.Push * best
		}
		for s := range plan.Sets[g].All() {
			to := n.Server
			if n.Parents != nil && n.Parents[s] != Server {
				to = n.Switches[n.Parents[s]]
			}
			cost += p.Harvest * float64(part.Size*links(n.Switches[s], to))
		}
	}
	return cost
}

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-6*(1+math.Abs(a)+math.Abs(b)) }

// valid fails unless a plan keeps what plans promise.
func valid(t *rapid.T, p *Problem, plan *Plan) {
	for s, used := range p.Used(plan) {
		if used > p.Switches[s].Memory {
			t.Errorf("switch %d: %d of %d are used", s, used, p.Switches[s].Memory)
		}
	}
	for g, set := range plan.Sets {
		for s := range set.All() {
			if parent := p.Switches[s].Parent; parent != Server && !set.Has(parent) {
				t.Errorf("part %d: switch %d holds it, its parent %d does not", g, s, parent)
			}
		}
		for w, to := range plan.To[g] {
			if to != Server && !set.Has(to) {
				t.Errorf("part %d: worker %d sends it to switch %d, which does not hold it", g, w, to)
			}
		}
	}
}

func TestSolutions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, p := drawProblem(t, 6, 8, 12)
		s, err := Solve(p)
		if err != nil {
			t.Fatal(err)
		}
		valid(t, p, s.Plan)
		if s.Bound > s.Cost {
			t.Errorf("bound %v, cost %v", s.Bound, s.Cost)
		}
		if cost := walked(n, p, s.Plan); !near(cost, s.Cost) || !near(cost, p.Cost(s.Plan)) {
			t.Errorf("cost %v, %v by walking the graph", s.Cost, cost)
		}
		sum := 0.0
		for _, link := range n.Traffic(p, s.Plan) {
			sum += link.Push + link.Harvest
		}
		if !near(sum, s.Cost) {
			t.Errorf("cost %v, %v over all links", s.Cost, sum)
		}
		if none := p.Cost(p.Nowhere()); s.Cost > none*(1+1e-12) {
			t.Errorf("cost %v, %v without any switch", s.Cost, none)
		}
		again, err := Solve(p)
		if diff := cmp.Diff(s, again); diff != "" || err != nil {
			t.Errorf("not the same again: %v\n%s", err, diff)
		}
	})
}

// exhaustive tries all sets for all parts.
func exhaustive(p *Problem) float64 {
	best := math.Inf(1)
	sets := make([]Set, len(p.Parts))
	var try func(g int)
	try = func(g int) {
		if g < len(sets) {
			for set := range Set(1) << len(p.Switches) {
				sets[g] = set
				try(g + 1)
			}
			return
		}
		plan := p.assign(sets)
		for s, used := range p.Used(plan) {
			if used > p.Switches[s].Memory {
				return
			}
		}
		for _, set := range sets {
			for s := range set.All() {
				if parent := p.Switches[s].Parent; parent != Server && !set.Has(parent) {
					return
				}
			}
		}
		best = min(best, p.Cost(plan))
	}
	try(0)
	return best
}

func TestSmallProblemsAreSolvedExactly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		_, p := drawProblem(t, 3, 4, 4)
		s, err := Solve(p)
		if err != nil {
			t.Fatal(err)
		}
		if want := exhaustive(p); !near(s.Cost, want) || !near(s.Bound, want) {
			t.Errorf("cost %v, bound %v, the best plan costs %v", s.Cost, s.Bound, want)
		}
	})
}

// The exact search finds the best plan when the one that it knows is the worst.
func TestExactSearch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		_, p := drawProblem(t, 3, 4, 4)
		if len(p.Parts) == 0 {
			return
		}
		d := newDual(newTable(p))
		worst := p.Cost(p.Nowhere())
		d.descend(d.densities(2), worst, func([]Set) float64 { return worst })
		better, complete := d.refine(worst)
		want := exhaustive(p)
		if !complete || better == nil && !near(want, worst) || better != nil && !near(d.total(better), want) {
			t.Errorf("%v, complete: %t; the best plan costs %v, none %v", better, complete, want, worst)
		}
	})
}

// The bound holds without the exact search, too, and for parts between two classes of density.
func TestBoundOfPrices(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		_, p := drawProblem(t, 3, 4, 4)
		tab := newTable(p)
		want := exhaustive(p)
		for most := 2; most <= 4 && len(p.Parts) > 0; most++ {
			d := newDual(tab)
			d.descend(d.densities(most), want, func([]Set) float64 { return want })
			if d.bound > want*(1+1e-9)+1e-9 {
				t.Errorf("%d densities: bound %v, the best plan costs %v", most, d.bound, want)
			}
		}
	})
}

// Plans of the size of the paper's simulations are at most 1 % above the bound on average, and 2 %
// at worst.
func TestGap(t *testing.T) {
	worst, sum, n := 0.0, 0.0, 0
	for seed := range uint64(3) {
		for _, exponent := range []float64{0, 1} {
			p := fill(fatTree(t, seed, 40), 60, 4, 64, exponent)
			s := mustSolve(t, p)
			if s.Bound > s.Cost {
				t.Errorf("bound %v, cost %v", s.Bound, s.Cost)
			}
			for i, used := range p.Used(s.Plan) {
				if used > p.Switches[i].Memory {
					t.Errorf("switch %d: %d of %d are used", i, used, p.Switches[i].Memory)
				}
			}
			worst, sum, n = max(worst, s.Gap()), sum+s.Gap(), n+1
		}
	}
	if mean := sum / float64(n); mean > 0.01 || worst > 0.02 {
		t.Errorf("%.2f %% above the bound on average, %.2f %% at worst", 100*mean, 100*worst)
	}
}

// Of equally near switches, workers get the one that has less to add.
func TestTiesGoToTheLeastLoaded(t *testing.T) {
	p := &Problem{
		Switches: []Switch{{Memory: 4, Parent: Server, Links: 1}, {Memory: 4, Parent: Server, Links: 1}},
		Direct:   1, Harvest: 0.01, Parts: []Part{{1, 1}, {1, 1}, {1, 1}, {1, 1}},
	}
	for range 6 {
		p.Workers = append(p.Workers, Worker{ToServer: 3, Links: []int{1, 1}})
	}
	s := mustSolve(t, p)
	used := p.Used(s.Plan)
	if used[0] != 2 || used[1] != 2 {
		t.Errorf("memory used %v, want 2 of each", used)
	}
	both := p.assign([]Set{3, 3, 3, 3})
	load := map[int]int{}
	for _, to := range both.To {
		for _, s := range to {
			load[s]++
		}
	}
	if load[0] != 12 || load[1] != 12 {
		t.Errorf("pushes %v, want 12 to each", load)
	}
}

func TestBadProblems(t *testing.T) {
	_, good := figure2(t)
	for name, spoil := range map[string]func(p *Problem){
		"17 switches":       func(p *Problem) { p.Switches = make([]Switch, MaxSwitches+1) },
		"circular parents":  func(p *Problem) { p.Switches[0].Parent, p.Switches[1].Parent = 1, 0 },
		"own parent":        func(p *Problem) { p.Switches[2].Parent = 2 },
		"no such parent":    func(p *Problem) { p.Switches[0].Parent = 3 },
		"negative memory":   func(p *Problem) { p.Switches[0].Memory = -1 },
		"no size":           func(p *Problem) { p.Parts[1].Size = 0 },
		"push of no number": func(p *Problem) { p.Parts[1].Push = math.NaN() },
		"missing distance":  func(p *Problem) { p.Workers[1].Links = nil },
		"no path":           func(p *Problem) { p.Workers[1].ToServer = Unreachable },
		"no direct bytes":   func(p *Problem) { p.Direct = 0 },
		"endless harvests":  func(p *Problem) { p.Harvest = math.Inf(1) },
	} {
		_, p := figure2(t)
		spoil(p)
		if _, err := Solve(p); !errors.Is(err, ErrProblem) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := Paper(p, 1); !errors.Is(err, ErrProblem) {
			t.Errorf("%s: the paper's algorithm: %v", name, err)
		}
	}
	good.Switches[0].Parent = 2
	if _, err := Paper(good, 1); !errors.Is(err, ErrProblem) {
		t.Errorf("parents: %v", err)
	}
	var g Graph
	n := &Network{Graph: &g, Server: g.AddHost(), Workers: []Node{g.AddHost()}}
	if _, err := n.Problem(); !errors.Is(err, ErrProblem) {
		t.Errorf("a worker without a link: %v", err)
	}
	n.Workers, n.Switches = nil, []Node{g.AddSwitch()}
	if _, err := n.Problem(); !errors.Is(err, ErrProblem) {
		t.Errorf("a switch without a link: %v", err)
	}
	// No switches, and no parts, are problems like others.
	n.Switches = nil
	p := mustProblem(t, n)
	if s := mustSolve(t, p); s.Cost != 0 || s.Gap() != 0 {
		t.Errorf("%+v", s)
	}
}
