package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/bench/baselines"
	"github.com/libra-ina/libra/bench/child"
	"github.com/libra-ina/libra/bench/harness"
)

// plainMTU and jumboMTU are the MTUs of the two beds.
const (
	plainMTU = maxPlain - 14
	jumboMTU = jumboSize - 14
)

// Run measures. It needs root; without, the error wraps a testbed.CapabilityError. A baseline that cannot be
// run is reported in Report.Unavailable and does not end the run. When ctx is done, Run
// returns what it has and the cause.
//
// Nothing is left behind, however the process ends.
func Run(ctx context.Context, cfg Config) (_ *Report, err error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	if cfg.ChildCommand, err = child.Command(cfg.ChildCommand, "engine"); err != nil {
		return nil, err
	}
	r := &run{cfg: cfg, steps: harness.Steps{Progress: cfg.Progress}, report: &Report{
		Machine: machine(), Rounds: cfg.Rounds, Duration: cfg.Duration,
		Results: []Result{}, Ratios: []Ratio{}, Targets: []Target{}, Unavailable: []harness.Unavailable{},
	}}
	defer func() { err = errors.Join(err, harness.Close(r.xdp)) }()
	if err := r.findBaselines(ctx); err != nil {
		return nil, err
	}
	err = r.measureAll(ctx)
	r.report.judge()
	return r.report, err
}

// machine describes where the run takes place. What cannot be found out stays empty.
func machine() Machine {
	m := Machine{CPUs: runtime.NumCPU(), GoVersion: runtime.Version()}
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		m.Kernel = unix.ByteSliceToString(name.Release[:])
	}
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return m
	}
	for line := range strings.Lines(string(info)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			m.CPU = strings.TrimSpace(value)
			break
		}
	}
	return m
}

// run is what one call of Run does.
type run struct {
	cfg       Config
	xdp       *baselines.Executable // of Libxdp
	baselines []string              // that can run
	report    *Report
	steps     harness.Steps
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
			r.unavailable(harness.Unavailable{Baseline: b, Reason: missing.Error(), Install: install})
			continue
		}
		r.baselines = append(r.baselines, b)
	}
	return nil
}

// unavailable notes once what is not measured.
func (r *run) unavailable(u harness.Unavailable) {
	if !slices.Contains(r.report.Unavailable, u) {
		r.report.Unavailable = append(r.report.Unavailable, u)
	}
}

// group is the baselines that take part in a test at a size.
type group struct {
	test      Test
	size      int
	baselines []string
}

// measureAll measures group after group, each on the bed for its size.
func (r *run) measureAll(ctx context.Context) error {
	var plain, jumbo []group
	for _, size := range r.cfg.Sizes {
		for _, test := range r.cfg.Tests {
			g := group{test: test, size: size}
			for _, b := range r.baselines {
				if reason := excluded(b, test, size); reason != "" {
					r.unavailable(harness.Unavailable{Baseline: b, Reason: reason})
					continue
				}
				g.baselines = append(g.baselines, b)
			}
			r.steps.Total += len(g.baselines) * r.cfg.Rounds
			if size > maxPlain {
				jumbo = append(jumbo, g)
			} else {
				plain = append(plain, g)
			}
		}
	}
	if err := r.onBed(ctx, plainMTU, plain); err != nil {
		return err
	}
	return r.onBed(ctx, jumboMTU, jumbo)
}

func (r *run) onBed(ctx context.Context, mtu int, groups []group) (err error) {
	if len(groups) == 0 {
		return nil
	}
	b, err := newBed(ctx, r.cfg, mtu)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	for _, g := range groups {
		if err := r.measureGroup(ctx, b, g); err != nil {
			return fmt.Errorf("engine: %w", err)
		}
	}
	return nil
}

// measureGroup lets the baselines take turns. One that fails takes no further
// part; what it had reached does not count.
func (r *run) measureGroup(ctx context.Context, b *bed, g group) error {
	var subjects []*harness.Subject[Sample]
	for _, name := range g.baselines {
		subjects = append(subjects, &harness.Subject[Sample]{
			What:    fmt.Sprintf("%s, %d bytes, %s", g.test, g.size, name),
			Measure: func(ctx context.Context) (Sample, error) { return r.measure(ctx, b, name, g.test, g.size) },
		})
	}
	err := harness.TakeTurns(ctx, harness.Turns{Rounds: r.cfg.Rounds, Steps: &r.steps, DropFailed: true}, subjects)
	var results []Result
	for i, s := range subjects {
		switch {
		case s.Err != nil:
			r.unavailable(harness.Unavailable{Baseline: g.baselines[i], Test: string(g.test), Size: g.size, Reason: s.Err.Error()})
		case len(s.Samples) > 0:
			results = append(results, newResult(g.test, g.size, g.baselines[i], s.Samples))
		}
	}
	r.report.add(results)
	return err
}
