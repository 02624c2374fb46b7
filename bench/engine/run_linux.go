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
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/bench/baselines"
	"github.com/libra-ina/libra/bench/child"
	"github.com/libra-ina/libra/bench/harness"
	"github.com/libra-ina/libra/internal/sys"
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
	r := &run{
		cfg: cfg, steps: harness.Steps{Progress: cfg.Progress},
		report: &Report{Machine: machine(), Rounds: cfg.Rounds, Duration: cfg.Duration},
	}
	defer func() { err = errors.Join(err, harness.Close(r.xdp)) }()
	if err := r.findBaselines(ctx); err != nil {
		return nil, err
	}
	err = r.measureAll(ctx)
	r.report.judge()
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
	groups := map[int][]group{} // by MTU
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
			mtu := plainMTU
			if size > maxPlain {
				mtu = jumboMTU
			}
			groups[mtu] = append(groups[mtu], g)
		}
	}
	for _, mtu := range slices.Sorted(maps.Keys(groups)) {
		if err := r.onBed(ctx, mtu, groups[mtu]); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) onBed(ctx context.Context, mtu int, groups []group) (err error) {
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

// A process runs the tested program.
type process interface {
	// enter is called with phaseMeasure and phaseStop at the limits of the measurement.
	enter(phase uint32) error
	// received returns how many frames reached the program's memory.
	received() (uint64, error)
	// finish ends the process and returns what it noted.
	finish(ctx context.Context) (notes, error)
	// kill ends the process after an error.
	kill()
}

// notes are what a program knows about its measurement.
type notes struct {
	cpu       sys.Usage
	roundTrip []uint32 // ns
	drops     map[string]uint64
}

func (r *run) measure(ctx context.Context, b *bed, baseline string, test Test, size int) (s Sample, err error) {
	if baseline == EchoInPush {
		baseline, test = Libra, Echo
	}
	undo, err := b.prepare(test, baseline)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, undo()) }()
	start := r.startProgram
	if baseline == DPDK {
		start = startTestpmd
	}
	p, err := start(ctx, b, baseline, test, size)
	if err != nil {
		return s, err
	}
	defer func() {
		if err != nil {
			p.kill()
		}
	}()
	quiet := func() error { return nil }
	if test == Receive {
		frame, err := buildFrame(b.opposite, b.tested, size)
		if err != nil {
			return s, err
		}
		quiet = sync.OnceValue(b.generate(frame).stop)
		defer func() { err = errors.Join(err, quiet()) }()
	}
	if err := harness.Sleep(ctx, r.cfg.WarmUp); err != nil {
		return s, err
	}
	if err := p.enter(phaseMeasure); err != nil {
		return s, err
	}
	before, after, err := harness.Window(ctx, r.cfg.Duration,
		func() (reading, error) { return b.read(test, p) },
		func(before, after reading) bool { return after.frames != before.frames })
	if err != nil {
		return s, err
	}
	// A process cannot release its socket while a flood keeps the kernel busy.
	if err := errors.Join(p.enter(phaseStop), quiet()); err != nil {
		return s, err
	}
	n, err := p.finish(ctx)
	if err != nil {
		return s, err
	}
	return newSample(before, after, n), nil
}

// reading is the state of the counters at a moment.
type reading struct {
	at     time.Time
	frames uint64
	cpu    sys.Usage // of this process, if it is what is tested
	napi   [2]uint64 // ns; of the tested and of the opposite end
	lost   map[string]uint64
}

func (b *bed) read(test Test, p process) (r reading, err error) {
	if r.lost, err = b.losses(); err != nil {
		return r, err
	}
	for i, pid := range b.threads {
		if r.napi[i], err = sys.TaskTime(pid); err != nil {
			return r, err
		}
	}
	r.at = time.Now()
	if test == Transmit {
		r.frames, err = b.arrived()
	} else {
		r.frames, err = p.received()
	}
	return r, err
}

func newSample(before, after reading, n notes) Sample {
	frames := float64(after.frames - before.frames)
	tested := float64(after.napi[0] - before.napi[0])
	opposite := float64(after.napi[1] - before.napi[1])
	s := Sample{
		PPS: frames / after.at.Sub(before.at).Seconds(),
		Cost: Cost{
			NsUser:     harness.Quotient(float64(n.cpu.User), frames),
			NsKernel:   harness.Quotient(float64(n.cpu.Kernel)+tested, frames),
			NsOpposite: harness.Quotient(opposite, frames),
		},
		drops: harness.Difference(before.lost, after.lost),
	}
	harness.Add(&s.drops, n.drops)
	if len(n.roundTrip) > 0 {
		s.P50ns, s.P99ns = new(float64(harness.Quantile(n.roundTrip, 0.5))), new(float64(harness.Quantile(n.roundTrip, 0.99)))
	}
	return s
}
