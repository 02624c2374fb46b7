// SPDX-License-Identifier: Apache-2.0

package codec

import (
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/libra-ina/libra/internal/report/experiment"
)

// Every method is measured and brings values back, and the codec's codes are the shortest, the
// shorter the larger the bound. How fast it is, is for 'libra bench codec' to say.
func TestEverythingIsMeasured(t *testing.T) {
	c := Defaults()
	c.Values, c.Rounds = 10_000, 1
	r, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	ratios := map[string]float64{}
	for _, res := range r.Results {
		ratios[label(res.Method, res.Bound)] = res.Ratio
		if res.Encode <= 0 || res.Decode <= 0 || math.IsNaN(res.Line) || len(res.Gains) != len(c.Lines) {
			t.Errorf("%+v", res)
		}
	}
	ten := ratios["codec 2^-10"]
	if ten < 8 || ten != ratios["plain 2^-10"] || ratios["codec 2^-6"] < ten || ratios[Zstd] > 2 || ratios[Snappy] > 2 || ratios[Snappy] == 0 {
		t.Errorf("%v", ratios)
	}
	perBound := 6
	if len(r.Unavailable) > 0 {
		t.Log(r.Unavailable)
		perBound = 4
		if u := r.Unavailable[0]; u.Baseline != ZFP || u.Reason == "" {
			t.Errorf("%+v", u)
		}
	} else if z := ratios["zfp 2^-10"]; z < 2 || z > ten {
		t.Errorf("%v", ratios)
	}
	if len(r.Targets) != perBound*len(c.Bounds) {
		t.Errorf("%+v", r.Targets)
	}
	if err := experiment.WriteTables(t.Output(), r); err != nil {
		t.Error(err)
	}
	if charts := r.Charts(); len(charts) != 1 || charts[0].Name != "codec" {
		t.Errorf("%d charts", len(charts))
	}
	if r.DropTargets(); r.Targets != nil {
		t.Error("targets remain")
	}
}

// Targets compare within rounds, and gains follow from medians.
func TestReport(t *testing.T) {
	r := &Report{Results: []Result{
		{Method: Codec, Bound: 10, Samples: []Sample{{4, 8, 10}, {2, 4, 10}, {4, 4, 10}}},
		{Method: Plain, Bound: 10, Samples: []Sample{{1, 1, 10}, {1, 2, 10}, {2, 2, 10}}},
		{Method: ZFP, Bound: 10, Samples: []Sample{{1, 1, 8}, {0.25, 1, 8}}},
		{Method: Snappy, Samples: []Sample{{0.5, 1, 1}}},
	}}
	r.finish([]float64{8})
	got := experiment.Pick(r.Targets, func(t experiment.Target) float64 { return t.Got })
	if !slices.Equal(got, []float64{4, 4, 2, 2, 6, 1.25}) {
		t.Errorf("%+v", r.Targets)
	}
	if ours := r.Results[0]; math.Abs(ours.Line-8*0.9/0.5) > 1e-9 || math.Abs(ours.Gains[0].Time-0.6) > 1e-9 {
		t.Errorf("%+v", ours)
	}
	if snappy := r.Results[3]; snappy.Line != 0 || snappy.Gains[0] != (Gain{8, 4}) {
		t.Errorf("%+v", snappy)
	}
}

// Values that come back changed end a run.
func TestMeasureChecks(t *testing.T) {
	values := make([]float32, 3)
	encode := func(dst []byte, _ []float32) []byte { return append(dst, 1) }
	for want, m := range map[string]method{
		"value 1 was 0 and came back as 0.25": here(Codec, 2, values, encode, func(values []float32, _ []byte) error {
			values[1] = 0.25
			return nil
		}),
		"value 2 was 0 and came back as NaN": here(Codec, 2, values, encode, func(values []float32, _ []byte) error {
			values[1], values[2] = 0.2, float32(math.NaN())
			return nil
		}),
		"broken": here(Zstd, 0, values, encode, func([]float32, []byte) error { return errors.New("broken") }),
	} {
		if _, err := m.measure(t.Context()); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func TestConfigRefusesNonsense(t *testing.T) {
	for field, change := range map[string]func(*Config){
		"values": func(c *Config) { c.Values = 0 }, "bound": func(c *Config) { c.Bounds = []int{10, 15} },
		"line-rate": func(c *Config) { c.Lines = []float64{10, 0} }, "rounds": func(c *Config) { c.Rounds = 0 },
	} {
		c := Defaults()
		change(&c)
		var wrong *experiment.ConfigError
		if _, err := Run(t.Context(), c); !errors.As(err, &wrong) || wrong.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}
