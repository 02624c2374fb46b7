// SPDX-License-Identifier: Apache-2.0

// Package schedule compares plans of several switches with in-network aggregation that shares the
// memory of each: the simulations in §IV-C of the GOAT paper (J. Fang et al., "GOAT: Gradient
// Scheduling with Collaborative In-Network Aggregation for Distributed Training"), by package
// sched, beside the paper's figures.
//
// The schemes:
//
//   - Geryon: no aggregation; each gradient takes a shortest path to the server.
//   - ATP and ESA: each fragment of a gradient has one unit of a switch's memory, which it shares
//     with others; see [sharing] for when a unit is released.
//   - GOAT: the paper's algorithm KRGS, with its rounding and a repair.
//   - Plans of [sched.Solve], and the lower bound of all plans.
package schedule

import (
	"context"
	"fmt"
	"slices"

	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/sched"
)

// Config is what to simulate.
type Config struct {
	// Placements is the number of random choices of the programmable switches and the hosts.
	Placements int
	// Workers are the numbers of workers of Figures 10 to 12, at DefaultDeviation.
	Workers []int
	// Deviations are the standard deviations of the workers' rates, of Figure 13.
	Deviations []float64
	// Models are sizes of the gradient of a worker, in MB.
	Models []int
	// Seed decides placements, paths and rates.
	Seed uint64
	// Progress, if not nil, is told of each placement.
	Progress experiment.Progress
}

// The settings of §IV-C.
const (
	DefaultDeviation = 0.2
	memory           = 64 // MB of a programmable switch
	programmable     = 5  // every fifth switch is
	partSize         = 4  // MB of a part; the paper gives none for AlexNet
)

// maxWorkers is the number of servers of the leaf–spine fabric without the parameter server.
const maxWorkers = leafSpineHosts - 1

// Defaults returns the paper's settings. The model has 221 MB by its text, and 240 by its figures.
func Defaults() Config {
	return Config{
		Placements: 20, Workers: []int{10, 20, 30, 35, 40}, Deviations: []float64{0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5},
		Models: []int{221, 240}, Seed: 1,
	}
}

func (c *Config) check() error {
	return experiment.Check("schedule study",
		experiment.InRange("placements", 1, 10_000, c.Placements),
		experiment.InRange("workers", 1, maxWorkers, c.Workers...),
		experiment.InRange("deviations", 0, 10, c.Deviations...),
		experiment.InRange("models", 1, 4096, c.Models...),
	)
}

// Run carries the simulations out. The error is [experiment.ErrConfig], or why ctx ended.
func Run(ctx context.Context, c Config) (*Report, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	for _, list := range []*[]int{&c.Workers, &c.Models} {
		*list = slices.Compact(slices.Sorted(slices.Values(*list)))
	}
	c.Deviations = slices.Compact(slices.Sorted(slices.Values(c.Deviations)))
	r := &Report{Placements: c.Placements, Seed: c.Seed}
	var err error
	if r.Figure2, err = figure2(); err != nil {
		return nil, fmt.Errorf("schedule study: Figure 2: %w", err)
	}
	steps := &experiment.ProgressCounter{Progress: c.Progress, Total: 2 * len(c.Models) * c.Placements}
	for _, f := range []*fabric{leafSpine(), fatTree()} {
		for _, model := range c.Models {
			s := &sweep{fabric: f, model: model, config: c, points: map[Point][]outcome{}}
			for i := range c.Placements {
				if ctx.Err() != nil {
					return nil, fmt.Errorf("schedule study: %w", context.Cause(ctx))
				}
				steps.Next(fmt.Sprintf("%s, %d MB, placement %d", f.name, model, i+1))
				if err := s.simulate(i); err != nil {
					return nil, fmt.Errorf("schedule study: %s, placement %d: %w", f.name, i+1, err)
				}
			}
			s.report(r)
		}
	}
	r.Claims = claims(r)
	return r, nil
}

// outcome is what one scheme does in one placement, in MB. A bound has only Traffic.
type outcome struct {
	server  float64 // bytes that reach the server
	traffic float64 // bytes times links
}

// sweep collects the outcomes on one fabric with one model.
type sweep struct {
	*fabric
	model  int
	config Config
	points map[Point][]outcome // by the fields of a Point that identify it
	order  []Point
	gaps   []float64 // of plans above the bound
	excess []float64 // of KRGS before the repair: share of a switch's memory
}

func (s *sweep) add(p Point, o outcome) {
	p.Fabric, p.Model = s.name, s.model*mb
	if s.points[p] == nil {
		s.order = append(s.order, p)
	}
	s.points[p] = append(s.points[p], o)
}

// simulate runs all schemes in one placement.
func (s *sweep) simulate(i int) error {
	most := max(s.sweepWorkers, slices.Max(append(slices.Clone(s.config.Workers), 0)))
	p := s.place(s.config.Seed, i, most)
	type setting struct {
		workers   int
		deviation float64
		sweep     string
	}
	var all []setting
	for _, n := range s.config.Workers {
		all = append(all, setting{n, DefaultDeviation, ByWorkers})
	}
	for _, d := range s.config.Deviations {
		all = append(all, setting{s.sweepWorkers, d, ByDeviation})
	}
	planned := map[int]map[string]outcome{} // by workers: the same for all rates
	for _, at := range all {
		if planned[at.workers] == nil {
			var err error
			if planned[at.workers], err = s.plan(p, i, at.workers); err != nil {
				return err
			}
		}
		outcomes, err := s.share(p, i, at.workers, at.deviation)
		if err != nil {
			return err
		}
		for _, scheme := range Schemes() {
			o, ok := planned[at.workers][scheme]
			if !ok {
				o = outcomes[scheme]
			}
			s.add(Point{Sweep: at.sweep, Workers: at.workers, Deviation: at.deviation, Scheme: scheme}, o)
		}
	}
	return nil
}

// plan returns the outcomes that do not depend on rates.
func (s *sweep) plan(p *placement, i, workers int) (map[string]outcome, error) {
	n := p.network
	n.Workers = n.Workers[:workers]
	problem, err := n.Problem()
	if err != nil {
		return nil, err
	}
	for i := range problem.Switches {
		problem.Switches[i].Memory = memory
	}
	for left := s.model; left > 0; left -= partSize {
		size := min(left, partSize)
		problem.Parts = append(problem.Parts, sched.Part{Push: float64(size), Size: size})
	}
	solution, err := sched.Solve(problem)
	if err != nil {
		return nil, err
	}
	rounded, err := sched.Paper(problem, s.config.Seed+uint64(i))
	if err != nil {
		return nil, err
	}
	s.gaps = append(s.gaps, solution.Gap())
	s.excess = append(s.excess, rounded.Excess)
	return map[string]outcome{
		Geryon:  {server: float64(workers * s.model), traffic: problem.Cost(problem.Nowhere())},
		GOAT:    {server: atServer(problem, rounded.Plan), traffic: rounded.Cost},
		Planned: {server: atServer(problem, solution.Plan), traffic: solution.Cost},
		Bound:   {traffic: solution.Bound},
	}, nil
}

// atServer is what reaches the server.
func atServer(p *sched.Problem, plan *sched.Plan) (sum float64) {
	for g, part := range p.Parts {
		sum += float64(plan.Sets[g].Len() * part.Size)
		for _, to := range plan.To[g] {
			if to == sched.Server {
				sum += part.Push
			}
		}
	}
	return sum
}

// share returns the outcomes of the schemes that share memory.
func (s *sweep) share(p *placement, i, workers int, deviation float64) (map[string]outcome, error) {
	order := arrivals(s.model, rates(s.config.Seed, i, workers, deviation))
	outcomes := map[string]outcome{}
	for _, scheme := range []string{ATPAny, ATPProgrammable, ESAAny, ESAProgrammable} {
		tree := p.any
		if scheme == ATPProgrammable || scheme == ESAProgrammable {
			tree = p.overProgrammable
		}
		sim := newSharing(p, tree, workers, memory, s.model, scheme == ESAAny || scheme == ESAProgrammable)
		for _, a := range order {
			sim.send(a.worker, a.fragment)
		}
		if sent := workers * s.model; sim.arrived != sent {
			return nil, fmt.Errorf("%s: %d fragments of %d arrived", scheme, sim.arrived, sent)
		}
		outcomes[scheme] = sim.outcome
	}
	return outcomes, nil
}
