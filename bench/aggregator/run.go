// SPDX-License-Identifier: Apache-2.0

// Package aggregator measures what an aggregator costs and what it brings. It is
// what 'libra bench aggregator' runs, and part of 'libra lut study'; docs/benchmarks.md
// describes its tests.
package aggregator

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/wire"
)

// Run measures. When ctx is done, Run returns what it has and the cause. Cost
// and Throughput, and AF_XDP in Negotiation, need root; see Config.SkipDenied.
// Nothing is left behind, however the process ends.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	h := &run{
		cfg: cfg, report: &Report{Rounds: cfg.Rounds},
		progress: experiment.ProgressCounter{Progress: cfg.Progress},
	}
	defer h.report.finish()
	var parts []part
	for _, t := range cfg.Tests {
		switch t {
		case Cost:
			parts = append(parts, part{string(Cost),
				len(cfg.Modes) * len(cfg.Hot) * len(cfg.Arithmetics) * len(cfg.Stripes) * cfg.Rounds, h.cost})
		case Throughput:
			parts = append(parts, part{string(Throughput), h.throughputSteps(), h.throughput})
		case Negotiation:
			for _, b := range cfg.Backends {
				parts = append(parts, part{
					fmt.Sprintf("%s over %v", Negotiation, b), len(cfg.Workers) * len(cfg.Arithmetics) * cfg.Rounds,
					func(ctx context.Context) error { return h.negotiateOver(ctx, b) },
				})
			}
		}
	}
	for _, p := range parts {
		h.progress.Total += p.steps
	}
	for _, p := range parts {
		if err := h.skip(p, p.run(ctx)); err != nil {
			return h.report, fmt.Errorf("aggregator benchmark: %w", err)
		}
	}
	return h.report, nil
}

type run struct {
	cfg      Config
	report   *Report
	progress experiment.ProgressCounter
}

// part is what is measured or, for want of privileges, skipped as one.
type part struct {
	what  string
	steps int
	run   func(context.Context) error
}

// skip notes what could not be measured for want of privileges, if that is
// permitted, and returns every other error.
func (h *run) skip(p part, err error) error {
	if !h.cfg.SkipDenied || !errors.Is(err, fs.ErrPermission) && !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	h.report.Unavailable = append(h.report.Unavailable, experiment.Unavailable{What: p.what, Reason: err.Error()})
	h.progress.Total -= p.steps
	return nil
}

func (h *run) throughputSteps() int {
	c := h.cfg
	programs := (1 + len(c.Exponents)) * len(c.Arithmetics) * len(c.Sweep)
	servers := 0
	if slices.Contains(c.Arithmetics, aggregator.Exact) {
		servers = len(c.Exponents) * (1 + 2*len(c.Sweep)) // and the harvests of each
	}
	return (programs + servers) * c.Rounds
}

// Test is the name of a measurement; see docs/benchmarks.md.
type Test string

// The tests.
const (
	Cost        Test = "cost"
	Throughput  Test = "throughput"
	Negotiation Test = "negotiation"
)

// Tests returns all tests.
func Tests() []Test { return []Test{Cost, Throughput, Negotiation} }

// Arithmetics returns all arithmetics.
func Arithmetics() []aggregator.Arithmetic {
	return []aggregator.Arithmetic{aggregator.Exact, aggregator.LUT, aggregator.Fixed}
}

// Modes returns all modes.
func Modes() []aggregator.Mode {
	return []aggregator.Mode{aggregator.Combine, aggregator.FetchAdd, aggregator.Sync}
}

// What one measurement takes unless Config.Duration is given.
const (
	RunTime       = 15 * time.Millisecond  // a test run of the XDP program
	IterationTime = 200 * time.Millisecond // the iterations of workers in a round
)

// Backend is a kind of link that Negotiation measures.
type Backend string

// The backends.
const (
	UDP   Backend = "udp"   // kernel UDP sockets and the Go aggregator
	AFXDP Backend = "afxdp" // AF_XDP sockets and the XDP aggregator
)

// Backends returns all backends.
func Backends() []Backend { return []Backend{UDP, AFXDP} }

// Config is what to measure; [Defaults] is everything.
type Config struct {
	Tests       []Test
	Arithmetics []aggregator.Arithmetic // arithmetics of the jobs

	// Modes, Stripes and Hot are what Cost combines with each other: modes of the
	// job, stripes of a frame and numbers of hot parameters.
	Modes   []aggregator.Mode
	Stripes []int
	Hot     []int

	// Sweep are the numbers of hot parameters of Throughput.
	Sweep []int
	// Exponents are those of the Zipf distributions of Throughput.
	Exponents []float64
	// Harvest is the time between two harvests in Throughput.
	Harvest time.Duration

	// Workers are the numbers of workers of Negotiation.
	Workers []int
	// Backends are the links of Negotiation.
	Backends []Backend
	// Parameters is the length of the vector that Negotiation reduces.
	Parameters int

	// Rounds is how often each measurement is repeated.
	Rounds int
	// Duration is about what one measurement takes; 0 means RunTime or
	// IterationTime.
	Duration time.Duration

	// SkipDenied leaves out, with a note in Report.Unavailable, what the process
	// lacks the privileges for. Otherwise that is an error.
	SkipDenied bool
	Progress   experiment.Progress // may be nil
}

// Defaults returns the configuration that measures everything. With its
// exponents, 30,000 of 2^20 parameters take about half and 70 % of the updates, as
// in the paper's two production tasks.
func Defaults() Config {
	return Config{
		Tests: Tests(), Arithmetics: Arithmetics(),
		Modes: Modes(), Stripes: []int{1, 2, 5, wire.DefaultStripes}, Hot: []int{1000, paperHot, aggregator.PageSlots},
		Sweep: []int{1000, 2000, 5000, 10_000, 20_000, paperHot, 40_000, 50_000, 2 * paperHot, aggregator.PageSlots,
			1 << 17, 1 << 18, 1 << 19, 1 << 20},
		Exponents: []float64{0.83, 0.97}, Harvest: 100 * time.Millisecond,
		Workers: []int{2, 4, 8}, Backends: Backends(), Parameters: paperHot,
		Rounds: 5,
	}
}

func (c *Config) check() error {
	leastHot := wire.Lanes * slices.Max(append(c.Stripes, wire.DefaultStripes)) // what the longest frame names
	return experiment.Check("aggregator benchmark",
		experiment.Known("measure", Tests(), c.Tests...),
		experiment.Known("backends", Backends(), c.Backends...),
		experiment.InRange("exponents", 0, 4, c.Exponents...),
		experiment.InRange("stripes", 1, wire.MaxStripes, c.Stripes...),
		experiment.InRange("hot", leastHot, aggregator.PageSlots, c.Hot...),
		experiment.InRange("sweep", leastHot, 1<<20, c.Sweep...),
		experiment.InRange("harvest", time.Millisecond, time.Minute, c.Harvest),
		experiment.InRange("workers", 1, aggregator.MaxWorkers, c.Workers...),
		experiment.InRange("parameters", 1, aggregator.PageSlots, c.Parameters),
		experiment.InRange("rounds", 1, 1000, c.Rounds),
		experiment.InRange("duration", 0, time.Minute, c.Duration),
	)
}
