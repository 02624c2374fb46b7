// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/sched"
)

// small is a study that takes little time.
func small() Config {
	c := Defaults()
	c.Placements, c.Workers, c.Deviations, c.Models = 2, []int{10}, []float64{0, 0.3}, []int{240}
	return c
}

func mustRun(t *testing.T, c Config) *Report {
	t.Helper()
	r, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// The figures in the paper's Figure 2 and its text.
func TestFigure2(t *testing.T) {
	rows, err := figure2()
	want := []Transfers{{"ATP", 7, 17, 29, 7, 17}, {GOAT, 3, 13, 25, 3, 13}, {Planned, 3, 13, 25, 3, 13}}
	if diff := cmp.Diff(want, rows); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

// The topologies have the sizes of §IV-C.
func TestFabrics(t *testing.T) {
	for _, c := range []struct {
		f                            *fabric
		switches, hosts, prog, links int
	}{{leafSpine(), 20, 50, 4, 4}, {fatTree(), 80, 192, 16, 6}} {
		p := c.f.place(1, 0, 40)
		if len(c.f.switches) != c.switches || len(c.f.hosts) != c.hosts || len(p.network.Switches) != c.prog {
			t.Errorf("%s: %d switches, %d of them programmable, %d hosts", c.f.name, len(c.f.switches), len(p.network.Switches), len(c.f.hosts))
		}
		far := 0
		for _, d := range c.f.graph.Distances(c.f.hosts[0]) {
			far = max(far, d)
		}
		if far != c.links {
			t.Errorf("%s: %d links between hosts at most, want %d", c.f.name, far, c.links)
		}
		distances := c.f.graph.Distances(p.network.Server)
		var over [2]int // programmable switches on the paths
		for _, w := range p.network.Workers {
			var own [2]int
			for i, tree := range [][]sched.Node{p.any, p.overProgrammable} {
				for at := w; at != p.network.Server; at = tree[at] {
					if distances[tree[at]] != distances[at]-1 {
						t.Fatalf("%s: a path is not the shortest", c.f.name)
					}
					if slices.Contains(p.network.Switches, at) {
						own[i]++
					}
				}
				over[i] += own[i]
			}
			if own[1] < own[0] {
				t.Errorf("%s: %d programmable switches on a path, and there is one with %d", c.f.name, own[1], own[0])
			}
		}
		if over[1] <= over[0] {
			t.Errorf("%s: paths over programmable switches have %d of them, others %d", c.f.name, over[1], over[0])
		}
	}
}

func TestRates(t *testing.T) {
	before := rates(1, 0, 40, 0.1)
	for _, deviation := range []float64{0, 0.2, 0.5, 3} {
		all := rates(1, 0, 40, deviation)
		for _, rate := range all {
			if !(rate > 0 && rate <= 1) || deviation == 0 && rate != 1 {
				t.Errorf("deviation %v: rate %v", deviation, rate)
			}
		}
		if diff := cmp.Diff(all[:10], rates(1, 0, 10, deviation)); diff != "" {
			t.Errorf("fewer workers have other rates:\n%s", diff)
		}
	}
	if diff := cmp.Diff(before, rates(1, 0, 40, 0.1)); diff != "" {
		t.Error(diff)
	}
}

// Whatever the order, each copy of a fragment reaches the server once, in some sum, and no unit
// stays taken. Without collisions and with equal rates, everything is summed.
func TestSharing(t *testing.T) {
	for _, f := range []*fabric{leafSpine(), fatTree()} {
		rapid.Check(t, func(t *rapid.T) {
			workers := rapid.IntRange(1, 30).Draw(t, "workers")
			units, fragments := rapid.IntRange(1, 8).Draw(t, "units"), rapid.IntRange(1, 30).Draw(t, "fragments")
			p := f.place(rapid.Uint64().Draw(t, "seed"), 0, workers)
			tree := rapid.SampledFrom([][]sched.Node{p.any, p.overProgrammable}).Draw(t, "tree")
			s := newSharing(p, tree, workers, units, fragments, rapid.Bool().Draw(t, "ESA"))
			left := make([]int, workers) // each worker sends in order
			for range workers * fragments {
				w := rapid.IntRange(0, workers-1).Draw(t, "worker")
				for left[w] == fragments {
					w = (w + 1) % workers
				}
				s.send(w, left[w])
				left[w]++
			}
			if s.arrived != workers*fragments {
				t.Errorf("%d of %d copies arrived", s.arrived, workers*fragments)
			}
			for i, units := range s.taken {
				for unit, fragment := range units {
					if fragment != free {
						t.Errorf("switch %d: unit %d still has fragment %d", i, unit, fragment)
					}
				}
			}
			if s.outcome.server > float64(workers*fragments) || s.outcome.server < float64(fragments) {
				t.Errorf("%v fragments at the server", s.outcome.server)
			}
		})
	}
}

// With ESA a later fragment takes the unit of an earlier one; with ATP it goes on itself.
func TestEviction(t *testing.T) {
	var g sched.Graph
	at := g.AddSwitch()
	p := &placement{network: sched.Network{Graph: &g, Server: g.AddHost(), Switches: []sched.Node{at}}}
	next := []sched.Node{p.network.Server, p.network.Server}
	for range 3 {
		p.network.Workers = append(p.network.Workers, g.AddHost())
		next = append(next, at)
	}
	for _, c := range []struct {
		evict bool
		order [][2]int // workers and their fragments
		want  float64
	}{
		// Fragment 1 goes on three times, fragment 0 once, complete.
		{false, [][2]int{{0, 0}, {1, 0}, {0, 1}, {1, 1}, {2, 0}, {2, 1}}, 4},
		// Two copies of fragment 0 in one, the third, and fragment 1, complete.
		{true, [][2]int{{0, 0}, {1, 0}, {0, 1}, {1, 1}, {2, 0}, {2, 1}}, 3},
		// The unit is free again when the rest of fragment 0 comes, which goes on nevertheless.
		{true, [][2]int{{0, 0}, {0, 1}, {1, 1}, {2, 1}, {1, 0}, {2, 0}}, 4},
	} {
		s := newSharing(p, next, 3, 1, 2, c.evict)
		for _, send := range c.order {
			s.send(send[0], send[1])
		}
		if s.outcome.server != c.want || s.arrived != 6 || s.taken[0][0] != free {
			t.Errorf("ESA %t, %v: %v fragments and %d copies at the server, want %v and 6", c.evict, c.order, s.outcome.server, s.arrived, c.want)
		}
	}
}

func TestSameSeedSameReport(t *testing.T) {
	a, b := mustRun(t, small()), mustRun(t, small())
	if diff := cmp.Diff(a, b); diff != "" {
		t.Error(diff)
	}
	c := small()
	c.Seed = 2
	if cmp.Equal(a.Points, mustRun(t, c).Points) {
		t.Error("another seed has the same figures")
	}
}

// What must hold in any report: Geryon is the dearest without aggregation, bounds are below plans,
// a gradient reaches the server once at least, and rates matter to nothing but shared memory.
func TestReport(t *testing.T) {
	r := mustRun(t, small())
	if len(r.Points) != 2*len(Schemes())*3 {
		t.Errorf("%d points", len(r.Points))
	}
	for _, p := range r.Points {
		of := func(scheme string) Point {
			return r.find(p.Fabric, p.Model, p.Sweep, p.Workers, p.Deviation, scheme)
		}
		bound, plan, goat, geryon := of(Bound), of(Planned), of(GOAT), of(Geryon)
		if bound.Traffic.Mean > plan.Traffic.Mean || plan.Traffic.Mean > goat.Traffic.Mean || plan.Traffic.Mean > geryon.Traffic.Mean {
			t.Errorf("%+v: bound, plan, GOAT and Geryon are not in this order", p)
		}
		if p.Scheme == Bound {
			continue
		}
		if p.Server.Min < float64(p.Model) || p.Server.Max > float64(p.Model*p.Workers) {
			t.Errorf("%+v: at the server", p)
		}
		if sum := p.Server.Mean + p.InNetwork.Mean; sum < float64(p.Model*p.Workers)*0.999 || sum > float64(p.Model*p.Workers)*1.001 {
			t.Errorf("%+v: server and network do not add up", p)
		}
		if at0 := r.find(p.Fabric, p.Model, ByDeviation, p.Workers, 0, p.Scheme); p.Sweep == ByDeviation {
			shared := strings.HasPrefix(p.Scheme, "ATP") || strings.HasPrefix(p.Scheme, "ESA")
			if shared && at0.Traffic.Mean > p.Traffic.Mean || !shared && at0.Traffic != p.Traffic {
				t.Errorf("%+v, at deviation 0 %+v", p, at0)
			}
		}
	}
	for _, q := range r.Quality {
		if q.Gap.Mean > 0.01 || q.Gap.Max > 0.02 || q.Gap.Min < 0 || q.Plans != 4 {
			t.Errorf("%+v: plans are to be 1 %% above the bound on average, 2 %% at most", q)
		}
	}
	if len(r.Crossings) != 16 {
		t.Errorf("%d crossings", len(r.Crossings))
	}
	var out strings.Builder
	if err := experiment.WriteTables(&out, r); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Figure 2", "Figure 10", "Figure 11", "Figure 12", "Figure 13", "paper, leaf–spine", "8.40", "Deviations at which", "8.4 GB are 240 MB each", "1.51 and 1.64"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	if charts := r.Charts(); len(charts) != 8 {
		t.Errorf("%d charts", len(charts))
	}
	if _, err := json.Marshal(r); err != nil {
		t.Error(err)
	}
}

func TestCrossing(t *testing.T) {
	s := &sweep{fabric: leafSpine(), model: 1, config: Config{Deviations: []float64{0, 0.1, 0.2}}}
	for want, traffic := range map[string][]float64{
		"always": {3, 3, 3}, "not up to it": {3, 3, 1}, "above 0.1, from 0.2 on": {3, 1, 3},
	} {
		r := &Report{}
		for i, d := range s.config.Deviations {
			for scheme, mean := range map[string]float64{ATPAny: traffic[i], GOAT: 2} {
				r.Points = append(r.Points, Point{
					Fabric: s.name, Model: mb, Sweep: ByDeviation, Workers: s.sweepWorkers, Deviation: d, Scheme: scheme,
					Traffic: Range{Mean: mean},
				})
			}
		}
		if c := s.crossing(r, ATPAny, GOAT); c.String() != want {
			t.Errorf("traffic %v: %q, want %q", traffic, c.String(), want)
		}
	}
}

func TestBadConfigurations(t *testing.T) {
	for field, spoil := range map[string]func(*Config){
		"placements": func(c *Config) { c.Placements = 0 },
		"workers":    func(c *Config) { c.Workers = []int{10, 50} },
		"deviations": func(c *Config) { c.Deviations = []float64{-0.1} },
		"models":     func(c *Config) { c.Models = []int{0} },
	} {
		c := small()
		spoil(&c)
		if _, err := Run(t.Context(), c); !errors.Is(err, experiment.ErrConfig) || !strings.Contains(err.Error(), field+": ") {
			t.Errorf("%s: %v", field, err)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	cancel(enough)
	if _, err := Run(ctx, small()); !errors.Is(err, enough) {
		t.Errorf("interrupted: %v", err)
	}
}
