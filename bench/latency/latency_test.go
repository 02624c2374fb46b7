// SPDX-License-Identifier: Apache-2.0

package latency

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/packer/heat"
	"github.com/libra-ina/libra/telemetry"
	"github.com/libra-ina/libra/telemetry/breakdown"
)

func TestConfigRefusesNonsense(t *testing.T) {
	for field, change := range map[string]func(*Config){
		"workers": func(c *Config) { c.Workers = 65 }, "push-rows": func(c *Config) { c.Batch = 0 },
		"sample": func(c *Config) { c.Sample = 0 }, "duration": func(c *Config) { c.Duration = 1 },
		"senders": func(c *Config) { c.Senders = []int{1, 513} }, "frames": func(c *Config) { c.Frames = 1 },
		"rounds": func(c *Config) { c.Rounds = 0 }, "log-batch": func(c *Config) { c.LogBatch = 0 },
		"top": func(c *Config) { c.Top = 0 }, "baseline": func(c *Config) { c.Baselines = []string{"grpc"} },
	} {
		c := Defaults()
		change(&c)
		var wrong *experiment.ConfigError
		if err := c.checkFields(); !errors.As(err, &wrong) || wrong.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	c := Defaults()
	if err := c.checkFields(); err != nil {
		t.Error(err)
	}
}

// Shares are of the mean time of whole rows, and add up to 1. Frames that were sent again count
// neither there nor among those whose halves are joined.
func TestSharesOfRows(t *testing.T) {
	row := func(op telemetry.Op, state telemetry.State, scale time.Duration) telemetry.Row {
		r := telemetry.Row{State: state, ServerQueue: 2 * scale, ServerProcess: 3 * scale, Network: scale,
			Record: telemetry.Record{Op: op, Queue: 4 * scale, Process: 10 * scale, Total: 20 * scale}}
		if op == telemetry.Hot {
			r.Server, r.ServerQueue, r.ServerProcess, r.Network = telemetry.NoServer, 0, 0, 6*scale
		}
		return r
	}
	rows := []telemetry.Row{row(telemetry.Hot, telemetry.Whole, 1), row(telemetry.Cold, telemetry.Whole, 1), row(telemetry.Cold, telemetry.Whole, 100),
		row(telemetry.Pull, telemetry.Whole, 7), row(telemetry.Pull, telemetry.Half, 5), row(telemetry.Cold, telemetry.Resent, 9)}
	s, err := sampleOf(rows)
	if err != nil {
		t.Fatal(err)
	}
	want := Shares{Network: 0.05, ServerQueue: 0.1, ServerProcess: 0.15, WorkerQueue: 0.2, WorkerProcess: 0.5}
	near := func(a, b Shares) bool {
		for i, v := range a.all() {
			if math.Abs(*v-*b.all()[i]) > 1e-12 {
				return false
			}
		}
		return true
	}
	if !near(s.Cold, want) || !near(s.Pull, want) || !near(s.Hot, Shares{Network: 0.3, WorkerQueue: 0.2, WorkerProcess: 0.5}) || s.Joined != 0.75 {
		t.Errorf("%+v", s)
	}
	if _, err := sampleOf(rows[1:]); err == nil || !strings.Contains(err.Error(), "--sample") {
		t.Errorf("without hot frames: %v", err)
	}
}

// A log's share is that of its hottest parameters, each counted once in a batch.
func TestShareOfALog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log.libfm")
	text := ""
	for i := range 10 {
		text += fmt.Sprintf("1 7:1 8:1 %d:1\n", 100+i)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for batch, want := range map[int]float64{1: 20. / 30, 2: 10. / 20, 3: 8. / 18, 100: 2. / 12} {
		h, err := countLog(path, batch, 2)
		if err != nil || math.Abs(h.Share-want) > 1e-12 || h.Parameters != 12 || h.Top != 2 {
			t.Errorf("batches of %d: %+v, %v; want a share of %v", batch, h, err, want)
		}
		if h.Curve[0] != 0 || h.Curve[100] != h.Share || !slices.IsSorted(h.Curve) {
			t.Errorf("%v", h.Curve)
		}
	}
	if h, err := countLog(path, 1, 1000); err != nil || h.Share != 1 {
		t.Errorf("all of them: %+v, %v", h, err)
	}
	if _, err := shareOf(path, heat.Ranking{}, 1); err == nil {
		t.Error("a share of nothing")
	}
	if _, err := countLog(filepath.Join(t.TempDir(), "none"), 1, 1); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

// Costs are compared within rounds with those of the first number of senders, and judged.
func TestReportOfSenders(t *testing.T) {
	costs := func(all ...float64) (s []SenderSample) {
		for _, c := range all {
			s = append(s, SenderSample{c})
		}
		return s
	}
	r := &Report{Rounds: 3, times: breakdown.New(), Jobs: []JobSample{{Joined: 0.5}}, Senders: []Senders{
		{Program: Libra, Senders: 1, Samples: costs(100, 200, 300)}, {Program: Libra, Senders: 64, Samples: costs(150, 300, 900)},
		{Program: ZeroMQ, Senders: 1, Samples: costs(10, 10, 10)}, {Program: ZeroMQ, Senders: 64, Samples: costs(100, 100)},
		{Program: ZeroMQ, Senders: 512},
	}, Hot: []HotShare{{File: "a/b", Top: paperTop, Curve: []float64{0, 0.5}, Share: 0.5}}}
	r.finish()
	if len(r.Senders) != 4 || r.Senders[1].Ratio != 1.5 || r.Senders[1].Nanoseconds != 300 || r.Senders[3].Ratio != 10 {
		t.Errorf("%+v", r.Senders)
	}
	if len(r.Targets) != 2 || r.Targets[0].Met || r.Targets[1].Met {
		t.Errorf("%+v", r.Targets)
	}
	var text strings.Builder
	if err := experiment.WriteTables(&text, r); err != nil || !strings.Contains(text.String(), "of the first") {
		t.Errorf("%v: %s", err, text.String())
	}
	names := []string{}
	for _, c := range r.Charts() {
		names = append(names, c.Name)
	}
	if !slices.Equal(names, []string{"shares", "senders", "hot"}) {
		t.Errorf("charts %v", names)
	}
	if r.DropTargets(); r.Targets != nil {
		t.Error("targets remain")
	}
}
