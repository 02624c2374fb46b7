// SPDX-License-Identifier: Apache-2.0

package allreduce

import (
	"errors"
	"strings"
	"testing"

	"github.com/libra-ina/libra/internal/report/experiment"
)

// A figure is the median over the rounds, a ratio the median of those within rounds; and a target
// compares the figures that it names.
func TestReport(t *testing.T) {
	samples := func(times ...float64) (s []Sample) {
		for _, ns := range times {
			s = append(s, Sample{P1: ns / 2, P50: ns, P99: 4 * ns, Mean: 2 * ns})
		}
		return s
	}
	r := &Report{InFlight: 64, Results: []Result{
		{Workers: 4, Baseline: Libra, Samples: samples(10e3, 40e3, 20e3)},
		{Workers: 4, Baseline: MPI, Samples: samples(40e3, 100e3, 80e3)},
		{Workers: 4, Baseline: Reduce, Samples: samples(20e3, 50e3, 20e3)},
		{Workers: 4, Baseline: Lossy, Samples: samples(30e3, 120e3, 60e3)},
		{Workers: 2, Baseline: Reduce, Samples: samples(1e3)}, // libra was not measured
	}}
	for i := range r.Results[0].Samples {
		r.Results[0].Samples[i].Rate = 3e9 / r.Results[0].Samples[i].Mean
	}
	r.finish()
	if res := r.find(4, Libra); res.P50 != 20e3 || res.P99 != 80e3 || res.Ratio != 1 {
		t.Errorf("%+v", res)
	}
	if res := r.find(4, MPI); res.Ratio != 0.25 {
		t.Errorf("%+v", res)
	}
	if one, two := groupBytes(AckedOne, 23), groupBytes(Libra, 23); one != 2*22*8 || two != 2*one {
		t.Errorf("%d bytes a group in mode acked, %d in sync", one, two)
	}
	if res := r.find(2, Reduce); res.Ratio != 0 {
		t.Errorf("%+v", res)
	}
	want := map[string]experiment.Verdict{
		"p50 of libra divided by that of openmpi":       {Want: 0.5, Got: 0.25, Met: true},
		"p99 of libra divided by that of openmpi":       {Want: 1, Got: 0.25, Met: true},
		"p50 of libra divided by that of reduce":        {Want: 0.7, Got: 0.8},
		"mean of libra-lossy divided by that of libra":  {Want: 2, Got: 3},
		"rate with 64 in flight divided by that of one": {Want: 2, Got: 3, Met: true},
	}
	if len(r.Targets) != len(want) {
		t.Errorf("%+v", r.Targets)
	}
	for _, target := range r.Targets {
		got := target.Verdict
		w := want[strings.TrimPrefix(target.What, "4 workers: ")]
		if got.Met != w.Met || got.Want != w.Want || got.Got < w.Got-1e-9 || got.Got > w.Got+1e-9 {
			t.Errorf("%s: %+v, want %+v", target.What, got, w)
		}
	}
	if r.DropTargets(); r.Targets != nil {
		t.Error("targets remain")
	}
}

func TestConfigRefusesNonsense(t *testing.T) {
	for field, change := range map[string]func(*Config){
		"workers": func(c *Config) { c.Workers = nil }, "width": func(c *Config) { c.Width = 0 },
		"in-flight": func(c *Config) { c.InFlight = 257 }, "operations": func(c *Config) { c.Operations = 1 },
		"rounds": func(c *Config) { c.Rounds = 0 }, "loss": func(c *Config) { c.Loss = 1 },
		"baseline": func(c *Config) { c.Baselines = []string{"nccl"} },
	} {
		c := Defaults()
		change(&c)
		var wrong *experiment.ConfigError
		if err := c.checkFields(); !errors.As(err, &wrong) || wrong.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}
