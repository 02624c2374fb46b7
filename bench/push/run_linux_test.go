// SPDX-License-Identifier: Apache-2.0

package push

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/internal/test/bedtest"
)

// childArgument makes the test binary a child.
const childArgument = "child-process"

func TestMain(m *testing.M) {
	bedtest.RunAs(childArgument, func(args []string) error { return RunChild(args[1:]) })
	os.Exit(m.Run())
}

// testConfig is a short run whose children in Go carry a mark in their command lines.
func testConfig(mark string) Config {
	return Config{
		Workers: []int{2}, Batches: []int{256}, Baselines: Baselines(), Rounds: 1,
		Duration: 50 * time.Millisecond, WarmUp: 20 * time.Millisecond, Harvest: 10 * time.Millisecond, Loss: 0.1,
		ChildCommand: []string{os.Args[0], childArgument, mark},
	}
}

func TestEveryBaselineSumsExactly(t *testing.T) {
	report, err := Run(t.Context(), testConfig("exact"))
	bedtest.SkipDenied(t, err)
	if err != nil {
		t.Fatal(err) // wrong sums end a run
	}
	for _, baseline := range Baselines() {
		if slices.ContainsFunc(report.Unavailable, func(u experiment.Unavailable) bool { return u.Baseline == baseline }) {
			if _, err := exec.LookPath("c++"); err == nil && exists("/usr/include/zmq.h") {
				t.Errorf("unavailable: %v", report.Unavailable)
			}
			continue
		}
		if r := report.findResult(2, 256, baseline); r == nil || len(r.Samples) != 1 {
			t.Errorf("%s: result %+v, want one sample", baseline, r)
		} else if r.Fairness <= 0 || r.Fairness > 1.000001 || baseline == Lossy && r.Repeated < 0.05 {
			t.Errorf("%s: %+v", baseline, r.FrameStats)
		}
	}
}

// Jain's index is 1 of equal rates, and 1/n if one worker has all.
func TestFairness(t *testing.T) {
	before := reading{servers: 1, marks: make([]mark, 3)} // two workers and a server
	for want, pushes := range map[float64][2]uint64{1: {7, 7}, 0.5: {9, 0}, 0.9: {2, 1}} {
		after := reading{own: mark{At: 1e9}, marks: []mark{
			{At: 1e9, Pushes: pushes[0], Frames: 30, Repeated: 1}, {At: 1e9, Pushes: pushes[1], Frames: 10, Repeated: 3}, {At: 1e9},
		}}
		if s, _ := newSample(Libra, before, after, 2,
			func(_ int, from, to uint64) uint64 { return 256 * (to - from) }); s.Fairness != want || s.Repeated != 0.1 {
			t.Errorf("pushes %v: %+v, want a fairness of %v", pushes, s, want)
		}
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func TestInterruptedRunLeavesNothing(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	mark := fmt.Sprintf("interrupted-%d", os.Getpid()) // other packages are tested meanwhile
	cfg := testConfig(mark)
	cfg.Baselines = []string{Libra}
	cfg.Duration = time.Minute
	cfg.Progress = func(int, int, string) { time.AfterFunc(time.Second, cancel) }
	report, err := Run(ctx, cfg)
	bedtest.SkipDenied(t, err)
	if !errors.Is(err, context.Canceled) || report == nil {
		t.Errorf("interrupted run returned %v and %v", report, err)
	}
	if left := bedtest.Processes(t, cfg.ChildCommand[2]); len(left) > 0 {
		t.Errorf("processes %v are left", left)
	}
}

func TestFailingChildEndsTheRun(t *testing.T) {
	cfg := testConfig("failing")
	cfg.Baselines = []string{Libra}
	cfg.ChildCommand = []string{"/bin/sh", "-c", "echo not today >&2; exit 7"}
	_, err := Run(t.Context(), cfg)
	bedtest.SkipDenied(t, err)
	if err == nil || !strings.Contains(err.Error(), "not today") {
		t.Errorf("%v lacks the child's own words", err)
	}
}

// The study of scale tells every role's costs, whatever runs beside it, and leaves no control
// group.
func TestScaleTellsEveryRole(t *testing.T) {
	cfg := ScaleDefaults()
	short := testConfig("scale")
	cfg.Batches, cfg.Baselines = short.Batches, []string{Libra, ZeroMQTable}
	cfg.Rounds, cfg.Duration, cfg.WarmUp, cfg.ChildCommand = 1, 50*time.Millisecond, 20*time.Millisecond, short.ChildCommand
	report, err := Run(t.Context(), cfg)
	bedtest.Check(t, err)
	held := !slices.ContainsFunc(report.Unavailable, func(u experiment.Unavailable) bool { return strings.Contains(u.Reason, "cgroup2") })
	for _, res := range report.Results {
		r := res.Roles
		// Kernels tell user from kernel time by ticks, of which a process may see none here; what a
		// role took may all count as its harvests; and the bytes of so short a time are not those
		// of the pairs that are acknowledged in it.
		takes := func(c RoleCost) bool { return c.perPair()+c.Harvests > 0 }
		if !takes(r.Worker) || !takes(r.Server) || r.WorkerBytes <= 0 || r.ServerBytes <= 0 {
			t.Errorf("%s: %+v", res.Baseline, r)
		}
		if takes(r.Switch) != (res.Baseline == Libra) || (r.ServerBytes < r.WorkerBytes) != (res.Baseline == Libra) {
			t.Errorf("%s: %+v", res.Baseline, r)
		}
		if h := res.Samples[0].Held; held && (h == nil || h.PairsPerSecond <= 0 || h.WorkerCPUs <= 0 || h.ServerCPUs <= 0) {
			t.Errorf("%s: held %+v", res.Baseline, h)
		}
	}
	if held && len(report.Scale.Checks) != len(report.Results) {
		t.Errorf("checks %+v", report.Scale.Checks)
	}
	if left, _ := filepath.Glob(fmt.Sprintf("/sys/fs/cgroup/cpu/libra-bench-%d-*", os.Getpid())); left != nil {
		t.Errorf("control groups %v are left", left)
	}
}

func TestConfigIsChecked(t *testing.T) {
	for name, spoil := range map[string]func(*Config){
		"no worker":   func(c *Config) { c.Workers = []int{0} },
		"workers":     func(c *Config) { c.Workers = []int{1000} },
		"no server":   func(c *Config) { c.Servers = []int{0} },
		"servers":     func(c *Config) { c.Servers = []int{9} },
		"hot":         func(c *Config) { c.Hot = []int{Keys + 1} },
		"auto first":  func(c *Config) { c.Hot = []int{AutoHot} },
		"scale of 2":  func(c *Config) { *c = ScaleDefaults(); c.Servers = []int{2} },
		"empty batch": func(c *Config) { c.Batches = []int{0} },
		"batch":       func(c *Config) { c.Batches = []int{1 << 20} },
		"baseline":    func(c *Config) { c.Baselines = []string{"ps-lite"} },
		"rounds":      func(c *Config) { c.Rounds = -1 },
		"duration":    func(c *Config) { c.Duration = 1 },
		"warm-up":     func(c *Config) { c.WarmUp = -1 },
		"harvest":     func(c *Config) { c.Harvest = 1 },
		"line":        func(c *Config) { *c = ScaleDefaults(); c.Line = 0 },
		"scale":       func(c *Config) { *c = ScaleDefaults(); c.Workers = []int{1, 2} },
		"replay":      func(c *Config) { *c = ReplayDefaults(exampleTraces()); c.Baselines = []string{Unprepared, Agent} },
		"comparison":  func(c *Config) { *c = ScaleDefaults(); c.Baselines = []string{Libra, Lossy} },
	} {
		c := Defaults()
		spoil(&c)
		if _, err := Run(t.Context(), c); !errors.Is(err, experiment.ErrConfig) {
			t.Errorf("wrong %s: %v, want ErrConfig", name, err)
		}
	}
	for _, c := range []Config{Defaults(), ScaleDefaults()} {
		if err := c.checkFields(); err != nil {
			t.Errorf("the defaults: %v", err)
		}
	}
}

// Round trips on a machine that is too busy for all of them are measured all the same.
func TestTripsAreBounded(t *testing.T) {
	for trip, want := range map[time.Duration]int{time.Microsecond: roundTrips, time.Second: int(tripsLimit / time.Second), time.Minute: 1} {
		synctest.Test(t, func(t *testing.T) {
			var pushes atomic.Uint64
			p := pusher[int]{
				push: func(context.Context, int) (int, error) { return 0, nil },
				wait: func(context.Context, int) error { time.Sleep(trip); return nil },
			}
			if got, err := measureTrips(t.Context(), p, &pushes); got != trip || err != nil || pushes.Load() != uint64(want) {
				t.Errorf("%v and %v after %d trips of %v, want %d", got, err, pushes.Load(), trip, want)
			}
		})
	}
}

// Libra's sums are right with several servers, with hot rows of several pages, and with as many as
// auto chooses.
func TestVariantsSumExactly(t *testing.T) {
	cfg := testConfig("variants")
	cfg.Baselines = []string{Libra, Logged}
	cfg.Servers, cfg.Hot = []int{1, 3}, []int{HotKeys, 150_000, AutoHot}
	report, err := Run(t.Context(), cfg)
	bedtest.Check(t, err)
	if len(report.Results) != 2*3+1 {
		t.Fatalf("%d results", len(report.Results))
	}
	shares := map[int]float64{}
	for _, r := range report.Results {
		shares[r.Hot] = r.HotShare
		if r.Auto == (r.Hot == HotKeys || r.Hot == 150_000) || r.Hot < 1 || r.PairsPerSecond <= 0 {
			t.Errorf("%s: %+v", r.name(), r)
		}
	}
	if shares[150_000] <= shares[HotKeys] {
		t.Errorf("shares of hot pairs are %v", shares)
	}
}
