// SPDX-License-Identifier: Apache-2.0

package ring

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/libra-ina/libra/codec"
	"github.com/libra-ina/libra/internal/report/experiment"
)

// Figures are medians over the rounds, ratios those within rounds; and targets compare what they
// name.
func TestReport(t *testing.T) {
	samples := func(times ...float64) (s []Sample) {
		for _, x := range times {
			s = append(s, Sample{Seconds: x})
		}
		return s
	}
	r := &Report{Bound: 10, compared: subject{250, 4, RingCoded}, Results: []Result{
		{Rate: 250, Workers: 4, Method: RingCoded, Samples: samples(1, 2, 3)},
		{Rate: 250, Workers: 4, Method: Ring, Samples: samples(4, 4, 6)},
		{Rate: 250, Workers: 4, Method: Server, Samples: samples(10, 20, 30)},
		{Rate: 100, Workers: 4, Method: Ring, Samples: samples(1, 1, 1)},
		{Rate: 100, Workers: 8, Method: Ring, Samples: samples(2, 1, 1)},
		{Rate: 100, Workers: 4, Method: Server, Samples: samples(2, 2, 2)},
		{Rate: 100, Workers: 8, Method: Server, Samples: samples(3, 4, 5)},
	}}
	r.finish()
	want := map[string]experiment.Verdict{
		"4 workers, 250 Mb/s: time of ring-coded divided by that of ring":   {Want: 0.4, Got: 0.5, Met: false},
		"4 workers, 250 Mb/s: time of ring-coded divided by that of server": {Want: 0.15, Got: 0.1, Met: true},
		"100 Mb/s: time of ring with 8 workers divided by that with 4":      {Want: 1.4, Got: 1, Met: true},
		"100 Mb/s: time of server with 8 workers divided by that with 4":    {Want: 1.6, Got: 2, Met: true},
	}
	for _, target := range r.Targets {
		if w, ok := want[target.What]; !ok || w.Want != target.Want || w.Met != target.Met || math.Abs(w.Got-target.Got) > 1e-9 {
			t.Errorf("%+v, want %+v", target, w)
		}
		delete(want, target.What)
	}
	if len(want) > 0 {
		t.Errorf("no targets: %v", want)
	}
	if res := r.find(subject{250, 4, Server}); res.Ratio != 5 || res.Seconds != 20 {
		t.Errorf("%+v", res)
	}
	if r.DropTargets(); r.Targets != nil {
		t.Error("targets remain")
	}
}

func TestConfigRefusesNonsense(t *testing.T) {
	for field, change := range map[string]func(*Config){
		"values": func(c *Config) { c.Values = 0 }, "bound": func(c *Config) { c.Bound = 15 },
		"scale": func(c *Config) { c.Scale = 127 }, "workers": func(c *Config) { c.Workers = 1 },
		"growth": func(c *Config) { c.Growth = []int{4, 65} }, "line-rate": func(c *Config) { c.Rate = 0 },
		"growth-rate": func(c *Config) { c.GrowthRate = math.Inf(1) }, "operations": func(c *Config) { c.Operations = 0 },
		"rounds": func(c *Config) { c.Rounds = 0 },
	} {
		c := Defaults()
		change(&c)
		var wrong *experiment.ConfigError
		if err := c.checkFields(); !errors.As(err, &wrong) || wrong.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// The gradients have the shares of the paper's Table III.
func TestGradients(t *testing.T) {
	c, err := codec.New(codec.Config{Bound: 10})
	if err != nil {
		t.Fatal(err)
	}
	values := make([]float32, 200_000)
	Gradients(values, 3)
	tags := c.Count(values)
	for tag, share := range [4]float64{0.92, 0.065, 0.015, 0} {
		if got := float64(tags[tag]) / float64(len(values)); math.Abs(got-share) > 0.003 {
			t.Errorf("tag %d: %v, want %v", tag, got, share)
		}
	}
}

func TestCheck(t *testing.T) {
	sums := []float64{1, 2}
	for want, vectors := range map[string][][]float32{
		"":                                  {{1.25, 2}, {1.25, 2}},
		"value 1 is 2.5 at worker 1, and 2": {{1, 2}, {1, 2.5}},
		"value 0 is 1.5, want 1":            {{1.5, 2}, {1.5, 2}},
		"value 0 is NaN, want 1":            {{float32(math.NaN()), 2}},
	} {
		err := check(vectors, sums, 0.25)
		if (err == nil) != (want == "") || err != nil && !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
