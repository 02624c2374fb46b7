// SPDX-License-Identifier: Apache-2.0

package pslite

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/libra-ina/libra/internal/report/experiment"
)

// Figures are medians over the rounds, ratios those within rounds, and targets compare what they
// name.
func TestReport(t *testing.T) {
	r := &Report{Results: []Result{
		{Measure: Cold, Van: Libra, Samples: []Sample{{Push: 1, Pull: 2}, {Push: 2, Pull: 3}, {Push: 3, Pull: 4}}},
		{Measure: Cold, Van: ZMQ, Samples: []Sample{{Push: 1, Pull: 1}, {Push: 1, Pull: 1}, {Push: 3, Pull: 4}}},
		{Measure: Small, Van: Libra, Samples: []Sample{{Push: 3e-6}}},
		{Measure: Small, Van: ZMQ, Samples: []Sample{{Push: 1e-6}}},
		{Measure: Batches, Van: Libra, Samples: []Sample{{Rate: 26}}},
		{Measure: Batches, Van: ZMQ, Samples: []Sample{{Rate: 20}}},
		{Measure: Pulls, Van: Libra, Samples: []Sample{{Rate: 26, Pull: 0.031}}},
		{Measure: Pulls, Van: ZMQ},
	}}
	r.finish(true)
	want := []experiment.Verdict{
		{Want: 1.15, Got: 1, Met: true}, {Want: 1.15, Got: 2}, {Want: 1.5, Got: 3}, {Want: 1.25, Got: 1.3, Met: true}, {Want: 30, Got: 31},
	}
	if len(r.Targets) != len(want) {
		t.Fatalf("%+v", r.Targets)
	}
	for i, w := range want {
		if got := r.Targets[i]; got.Want != w.Want || got.Met != w.Met || math.Abs(got.Got-w.Got) > 1e-9 {
			t.Errorf("%+v, want %+v", got, w)
		}
	}
	if res := r.find(Cold, Libra); res.Push != 2 || res.Pull != 3 || res.Ratios.Rate != 0 {
		t.Errorf("%+v", res)
	}
	if err := experiment.WriteTables(t.Output(), r); err != nil {
		t.Error(err)
	}
	if r.DropTargets(); r.Targets != nil {
		t.Error("targets remain")
	}
	other := Defaults()
	other.Apart = true
	if c := Defaults(); !c.asWanted() || other.asWanted() {
		t.Error("the targets are for the defaults")
	}
}

func TestFiguresAreRead(t *testing.T) {
	for measure, c := range map[string]struct {
		text string
		want Sample
	}{
		Cold:    {"worker 0 | [21:25] x.cc:62: num = 10, Push average time cost: 175.5ms\nworker 0 | num = 10, Pull average time cost: 285ms\n", Sample{Push: 0.1755, Pull: 0.285}},
		Small:   {"worker 0 | median_us 81.5\n", Sample{Push: 81.5e-6}},
		Batches: {"worker 3 | pairs_per_s 1e7\n", Sample{Rate: 1e7}},
		Pulls:   {"worker 3 | pairs_per_s 1e7\nworker 4 | pull_median_ms 8\n", Sample{Rate: 1e7, Pull: 0.008}},
	} {
		var s Sample
		if err := s.read(measure, []byte(c.text)); err != nil || math.Abs(s.Push-c.want.Push) > 1e-12 || math.Abs(s.Pull-c.want.Pull) > 1e-12 || s.Rate != c.want.Rate {
			t.Errorf("%s: %+v, %v", measure, s, err)
		}
		if err := s.read(measure, []byte("nothing")); err == nil || !strings.Contains(err.Error(), measure) {
			t.Errorf("%s: %v", measure, err)
		}
	}
}

func TestConfigRefusesNonsense(t *testing.T) {
	for field, change := range map[string]func(*Config){
		"measure": func(c *Config) { c.Measures = []string{"hot"} }, "backend": func(c *Config) { c.Backend = "zmq" },
		"workers": func(c *Config) { c.Workers = 0 }, "pushes": func(c *Config) { c.Pushes = 4001 },
		"small": func(c *Config) { c.Small = 0 }, "rounds": func(c *Config) { c.Rounds = 0 },
	} {
		c := Defaults()
		change(&c)
		var wrong *experiment.ConfigError
		if _, err := Run(t.Context(), c); !errors.As(err, &wrong) || wrong.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	c := Defaults()
	c.Built = t.TempDir()
	if _, err := Run(t.Context(), c); err == nil || !strings.Contains(err.Error(), "libra_van.so: no such file or directory: build it with 'make pslite PSLITE=DIR'") {
		t.Error(err)
	}
}
