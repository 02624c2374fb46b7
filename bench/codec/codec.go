// SPDX-License-Identifier: Apache-2.0

// Package codec measures how fast gradients are shortened and restored on one core, by package
// codec, zfp and general-purpose compression, and up to which rate of a line that pays. It is what
// 'libra bench codec' runs; docs/benchmarks.md describes it.
package codec

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/libra-ina/libra/bench/ring"
	"github.com/libra-ina/libra/codec"
	"github.com/libra-ina/libra/internal/report/experiment"
)

// Config is what to measure, and how often.
type Config struct {
	Values int
	Bounds []int     // of package codec and zfp
	Lines  []float64 // rates of lines, in Gb/s, of which it is said what shortening gains
	Rounds int

	// Progress, if not nil, is called before each measurement.
	Progress experiment.Progress
}

// Defaults returns the configuration that the documentation's figures are measured with.
func Defaults() Config {
	return Config{Values: 1 << 20, Bounds: []int{6, 8, 10}, Lines: []float64{0.25, 1, 10, 25, 100}, Rounds: 9}
}

func (c *Config) checkFields() error {
	return experiment.Check("codec", errors.Join(
		experiment.InRange("values", 1000, 100_000_000, c.Values),
		experiment.InRange("bound", codec.MinBound, codec.MaxBound, c.Bounds...),
		experiment.InRange("line-rate", 0.001, 1e6, c.Lines...),
		experiment.InRange("rounds", 1, 1000, c.Rounds)))
}

// Run measures. A value that comes back with a larger error than it may have ends the run; without
// a compiler and zfp's library, Report.Unavailable says so. When ctx is done, Run returns what it
// has, if anything, and the cause.
func Run(ctx context.Context, cfg Config) (_ *Report, err error) {
	if err := cfg.checkFields(); err != nil {
		return nil, err
	}
	r := &Report{CPU: runtime.GOARCH, Values: cfg.Values, Rounds: cfg.Rounds}
	values := make([]float32, cfg.Values)
	ring.Gradients(values, 0)
	methods, err := codecMethods(cfg.Bounds, values)
	if err != nil {
		return nil, err
	}
	z, missing, err := openZFP(ctx, values)
	switch {
	case err != nil:
		return nil, fmt.Errorf("codec: %w", err)
	case missing != nil:
		r.Unavailable = append(r.Unavailable, *missing)
	default:
		defer func() { err = errors.Join(err, z.close()) }()
		for _, bound := range cfg.Bounds {
			methods = append(methods, z.method(bound))
		}
	}
	lossless, err := losslessMethods(values)
	if err != nil {
		return nil, err
	}
	err = r.takeTurns(ctx, cfg, append(methods, lossless...))
	if len(r.Results) == 0 {
		return nil, err
	}
	r.finish(cfg.Lines)
	return r, err
}

// takeTurns measures each method once in each round.
func (r *Report) takeTurns(ctx context.Context, cfg Config, methods []method) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var subjects []*experiment.Subject[Sample]
	for _, m := range methods {
		subjects = append(subjects, &experiment.Subject[Sample]{What: label(m.name, m.bound), Measure: m.measure})
	}
	steps := experiment.ProgressCounter{Progress: cfg.Progress, Total: len(subjects) * cfg.Rounds}
	err := experiment.TakeTurns(ctx, cfg.Rounds, &steps, subjects)
	for i, s := range subjects {
		if len(s.Samples) > 0 {
			r.Results = append(r.Results, Result{Method: methods[i].name, Bound: methods[i].bound, Samples: s.Samples})
		}
	}
	if err != nil {
		return fmt.Errorf("codec: %w", err)
	}
	return nil
}
