// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/internal/test/bedtest"
)

// Arguments that make the test binary another process.
const (
	childArgument   = "child-process"
	harnessArgument = "harness-process"
)

// eventLimit bounds the wait for an event that a test expects, on a machine that is busy with
// other programs, too.
const eventLimit = 2 * time.Minute

func TestMain(m *testing.M) {
	bedtest.RunAs(childArgument, func(args []string) error { return RunChild(args[1:]) })
	bedtest.RunAs(harnessArgument, func(args []string) error {
		cfg := testConfig(args[0])
		cfg.Duration = time.Minute
		cfg.Progress = func(int, int, string) { fmt.Println("started") }
		_, err := Run(context.Background(), cfg)
		return err
	})
	// Under the race detector, every child would sleep for a second
	// before it ends.
	if err := os.Setenv("GORACE", "atexit_sleep_ms=0"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// testConfig is a short run whose children carry a mark in their command lines.
func testConfig(mark string) Config {
	c := Defaults()
	c.Sizes, c.Rounds, c.Duration, c.WarmUp = []int{190}, 1, 30*time.Millisecond, 30*time.Millisecond
	c.ChildCommand = []string{os.Args[0], childArgument, mark}
	return c
}

// mustRun runs, and skips the test where privileges are missing.
func mustRun(t *testing.T, cfg Config) *Report {
	t.Helper()
	report, err := Run(t.Context(), cfg)
	bedtest.Check(t, err)
	return report
}

// checkMoved fails unless every baseline that can run has a plausible result in every
// test that it has a part in.
func checkMoved(t *testing.T, cfg Config, report *Report) {
	t.Helper()
	for _, u := range report.Unavailable {
		if u.Test != "" {
			t.Errorf("%s failed in %s at %d bytes: %s", u.Baseline, u.Test, u.Size, u.Reason)
		}
	}
	for _, baseline := range cfg.Baselines {
		if slices.ContainsFunc(report.Unavailable, func(u experiment.Unavailable) bool { return u.Baseline == baseline && u.Install != "" }) {
			continue
		}
		for _, test := range cfg.Tests {
			for _, size := range cfg.Sizes {
				if excluded(baseline, test, size) != "" {
					continue
				}
				i := slices.IndexFunc(report.Results, func(r Result) bool {
					return r.Baseline == baseline && r.Test == test && r.Size == size
				})
				if i < 0 {
					t.Errorf("%s has no result in %s at %d bytes", baseline, test, size)
					continue
				}
				checkResult(t, report.Results[i])
			}
		}
	}
}

func checkResult(t *testing.T, r Result) {
	t.Helper()
	if r.PPS <= 0 || r.PPSMin > r.PPS || r.PPS > r.PPSMax || len(r.Samples) != 1 {
		t.Errorf("%s of %s at %d bytes: rate %v in [%v, %v] of %d rounds", r.Test, r.Baseline, r.Size, r.PPS, r.PPSMin, r.PPSMax, len(r.Samples))
	}
	if timed := r.P50ns != nil && r.P99ns != nil && *r.P50ns > 0 && *r.P50ns <= *r.P99ns; timed != (r.Test == RequestResponse) {
		t.Errorf("%s of %s at %d bytes: round-trip times %v and %v", r.Test, r.Baseline, r.Size, r.P50ns, r.P99ns)
	}
}

func TestEveryBaselineMovesFrames(t *testing.T) {
	cfg := testConfig("every-baseline")
	report := mustRun(t, cfg)
	checkMoved(t, cfg, report)
	for _, u := range report.Unavailable {
		t.Logf("%s: %s", u.Baseline, u.Reason)
	}
	if len(report.Ratios) == 0 || len(report.Targets) == 0 {
		t.Errorf("%d ratios, %d targets", len(report.Ratios), len(report.Targets))
	}
}

func TestJumboFrames(t *testing.T) {
	cfg := testConfig("jumbo")
	cfg.Sizes = []int{jumboSize}
	cfg.Baselines = []string{Libra, Libxdp}
	cfg.Tests = []Test{Receive, Echo}
	checkMoved(t, cfg, mustRun(t, cfg))
}

func TestPushesAreAppliedAtTheAggregator(t *testing.T) {
	cfg := testConfig("push")
	cfg.Sizes = []int{minHot, 512, maxHot}
	cfg.Baselines = []string{Libra, Unprepared, Bare, EchoInPush}
	cfg.Tests = []Test{Push}
	report := mustRun(t, cfg)
	checkMoved(t, cfg, report)
	for _, r := range report.Results {
		if n := r.Drops["aggregator: refused"]; n != 0 {
			t.Errorf("%s at %d bytes: the aggregator refused %d frames", r.Baseline, r.Size, n)
		}
	}
	if len(report.Targets) != 4 {
		t.Errorf("targets %+v, want two at each of two sizes", report.Targets)
	}
	if !slices.ContainsFunc(report.Unavailable, func(u experiment.Unavailable) bool { return u.Baseline == Libra }) {
		t.Error("the report does not say that 512 bytes were not measured")
	}
}

func TestBaselineThatFailsDoesNotEndTheRun(t *testing.T) {
	cfg := testConfig("failing")
	cfg.Baselines = []string{Libra, UDP}
	cfg.Tests = []Test{Transmit}
	cfg.ChildCommand = []string{"/bin/sh", "-c", "echo not today >&2; exit 7"}
	report := mustRun(t, cfg)
	if len(report.Results) != 0 || len(report.Unavailable) != 2 {
		t.Fatalf("%d results, unavailable: %v", len(report.Results), report.Unavailable)
	}
	if reason := report.Unavailable[0].Reason; !bytes.Contains([]byte(reason), []byte("not today")) {
		t.Errorf("reason %q lacks the child's own words", reason)
	}
}

func TestInterruptedRunLeavesNoChild(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	mark := fmt.Sprintf("interrupted-%d", os.Getpid()) // other packages are tested meanwhile
	cfg := testConfig(mark)
	cfg.Baselines = []string{UDP, Libra}
	cfg.Duration = time.Minute
	cfg.Progress = func(int, int, string) { time.AfterFunc(300*time.Millisecond, cancel) }
	report, err := Run(ctx, cfg)
	bedtest.SkipDenied(t, err)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted run returned %v", err)
	}
	if report == nil {
		t.Error("an interrupted run reports what it has")
	}
	if left := bedtest.Processes(t, mark); len(left) > 0 {
		t.Errorf("processes %v are left", left)
	}
}

func TestKilledRunLeavesNoChild(t *testing.T) {
	mark := fmt.Sprintf("killed-%d", os.Getpid())
	harness := exec.Command(os.Args[0], harnessArgument, mark)
	out, err := harness.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := harness.Start(); err != nil {
		t.Fatal(err)
	}
	started := make([]byte, 1)
	_, readErr := out.Read(started)
	for len(bedtest.Processes(t, mark)) < 2 && readErr == nil { // the harness and a child
		time.Sleep(5 * time.Millisecond)
	}
	if err := harness.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = harness.Wait()
	if readErr != nil {
		t.Skip("the harness needs privileges that are missing")
	}
	bedtest.Ended(t, mark)
}

func TestConfigIsChecked(t *testing.T) {
	for name, spoil := range map[string]func(*Config){
		"test":       func(c *Config) { c.Tests = []Test{"receiv"} },
		"small size": func(c *Config) { c.Sizes = []int{63} },
		"big size":   func(c *Config) { c.Sizes = []int{9015} },
		"baseline":   func(c *Config) { c.Baselines = []string{"netmap"} },
		"rounds":     func(c *Config) { c.Rounds = 0 },
		"duration":   func(c *Config) { c.Duration = 1 },
		"warm-up":    func(c *Config) { c.WarmUp = -1 },
		"CPU":        func(c *Config) { c.CPUs = [2]int{0, 1 << 20} },
	} {
		c := Defaults()
		spoil(&c)
		if _, err := Run(t.Context(), c); !errors.Is(err, experiment.ErrConfig) {
			t.Errorf("wrong %s: error %v", name, err)
		}
	}
	if c := Defaults(); c.checkFields() != nil {
		t.Errorf("the defaults: %v", c.checkFields())
	}
}
