// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/bench/baselines"
	"github.com/libra-ina/libra/bench/child"
	"github.com/libra-ina/libra/internal/report/experiment"
)

const (
	plainMTU = maxPlain - 14
	jumboMTU = jumboSize - 14
)

// Run measures. It needs root; without, the error wraps a testbed.CapabilityError. A baseline that
// cannot be run is reported in Report.Unavailable and does not end the run. When ctx is done, Run
// returns what it has and the cause.
//
// Nothing is left behind, however the process ends.
func Run(ctx context.Context, cfg Config) (_ *Report, err error) {
	if err := errors.Join(cfg.checkFields(), child.Command(&cfg.ChildCommand, "engine")); err != nil {
		return nil, err
	}
	r := &run{
		cfg: cfg, progress: experiment.ProgressCounter{Progress: cfg.Progress},
		report: &Report{Machine: machine(), Rounds: cfg.Rounds, Duration: cfg.Duration},
	}
	defer func() { err = errors.Join(err, experiment.Close(r.xdp)) }()
	if err := r.findBaselines(ctx); err != nil {
		return nil, err
	}
	err = r.measureAll(ctx)
	r.report.judgeResults()
	if errors.Is(err, fs.ErrPermission) && len(r.report.Results) == 0 {
		return nil, err
	}
	return r.report, err
}

// machine describes where the run takes place. What cannot be found out stays empty.
func machine() Machine {
	m := Machine{CPUs: runtime.NumCPU(), GoVersion: runtime.Version()}
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		m.Kernel = unix.ByteSliceToString(name.Release[:])
	}
	info, _ := os.ReadFile("/proc/cpuinfo")
	_, model, _ := strings.Cut(string(info), "\nmodel name")
	model, _, _ = strings.Cut(model, "\n")
	m.CPU = strings.Trim(model, "\t :")
	return m
}

type run struct {
	cfg       Config
	xdp       *baselines.Executable // of Libxdp
	baselines []string              // baselines that can run
	report    *Report
	progress  experiment.ProgressCounter
}

// findBaselines finds out which baselines can run, and builds the C program.
func (r *run) findBaselines(ctx context.Context) (err error) {
	for _, b := range r.cfg.Baselines {
		var missing error
		install := ""
		switch b {
		case Libxdp:
			install = baselines.XDP.Install
			if r.xdp, missing = baselines.XDP.Build(ctx); missing != nil && !errors.Is(missing, baselines.ErrBuild) {
				return missing
			}
		case DPDK:
			install = installTestpmd
			_, missing = exec.LookPath(testpmdCommand)
		}
		if missing != nil {
			experiment.AddUnavailable(&r.report.Unavailable,
				experiment.Unavailable{Baseline: b, Reason: missing.Error(), Install: install})
			continue
		}
		r.baselines = append(r.baselines, b)
	}
	return nil
}

// group is the baselines that take part in a test at a size.
type group struct {
	test      Test
	size      int
	baselines []string
}

// measureAll measures group after group, each on the bed for its size.
func (r *run) measureAll(ctx context.Context) error {
	groups := map[int][]group{} // by MTU
	for _, size := range r.cfg.Sizes {
		for _, test := range r.cfg.Tests {
			g := group{test: test, size: size}
			for _, b := range r.baselines {
				if reason := excluded(b, test, size); reason != "" {
					experiment.AddUnavailable(&r.report.Unavailable, experiment.Unavailable{Baseline: b, Reason: reason})
					continue
				}
				g.baselines = append(g.baselines, b)
			}
			r.progress.Total += len(g.baselines) * r.cfg.Rounds
			mtu := plainMTU
			if size > maxPlain {
				mtu = jumboMTU
			}
			groups[mtu] = append(groups[mtu], g)
		}
	}
	for _, mtu := range slices.Sorted(maps.Keys(groups)) {
		if err := r.onBeds(ctx, mtu, groups[mtu]); err != nil {
			return err
		}
	}
	return nil
}

// onBeds measures groups, each of whose baselines has a bed of its own.
func (r *run) onBeds(ctx context.Context, mtu int, groups []group) (err error) {
	var beds []*bed
	defer func() { err = errors.Join(err, experiment.Close(beds...)) }()
	for _, g := range groups {
		for len(beds) < len(g.baselines) {
			b, err := newBed(ctx, r.cfg, mtu)
			if err != nil {
				return err
			}
			beds = append(beds, b)
		}
		if err := r.measureGroup(ctx, beds, g); err != nil {
			return fmt.Errorf("engine: %w", err)
		}
	}
	return nil
}

// measureGroup measures the baselines of a group in rounds. One that fails takes no further
// part; what it had reached does not count.
func (r *run) measureGroup(ctx context.Context, beds []*bed, g group) error {
	var all []*runner
	for i, name := range g.baselines {
		all = append(all, newRunner(r, beds[i], name, g))
	}
	err := r.takeTurns(ctx, all, g.runsInSlices())
	var results []Result
	for _, w := range all {
		switch {
		case w.err != nil:
			experiment.AddUnavailable(&r.report.Unavailable,
				experiment.Unavailable{Baseline: w.baseline, Test: string(g.test), Size: g.size, Reason: w.err.Error()})
		case len(w.samples) > 0:
			results = append(results, newResult(g.test, g.size, w.baseline, w.samples))
		}
	}
	r.report.addResults(results)
	return err
}

// takeTurns runs all rounds. In slices, the programs of a round are alive together; else one
// begins when the one before has ended.
func (r *run) takeTurns(ctx context.Context, all []*runner, sliced bool) error {
	for range r.cfg.Rounds {
		left := slices.DeleteFunc(slices.Clone(all), func(w *runner) bool { return w.err != nil })
		size := 1
		if sliced {
			size = max(1, len(left))
		}
		for together := range slices.Chunk(left, size) {
			for _, w := range together {
				if ctx.Err() == nil {
					r.progress.Next(fmt.Sprintf("%s, %d bytes, %s", w.group.test, w.group.size, w.baseline))
					w.beginProgram(ctx)
				}
			}
			r.measureSlices(ctx, together, sliced)
			for _, w := range together {
				w.endProgram(ctx)
			}
			if ctx.Err() != nil {
				return fmt.Errorf("interrupted: %w", context.Cause(ctx))
			}
		}
	}
	return nil
}
