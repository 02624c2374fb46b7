// SPDX-License-Identifier: Apache-2.0

package codec

import (
	"errors"
	"math"
	"testing"

	"github.com/libra-ina/libra/internal/report/experiment"
)

// Every method is measured and brings values back, and the codec's codes are the shortest, the shorter the
// larger the bound. How fast it is, is for 'libra bench codec' to say.
func TestEverythingIsMeasured(t *testing.T) {
	c := Defaults()
	c.Values, c.Rounds = 10_000, 1
	r, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	ratios := map[string]float64{}
	for _, res := range r.Results {
		ratios[res.Method] = res.Ratio
		if res.Encode <= 0 || res.Decode <= 0 || math.IsNaN(res.Line) {
			t.Errorf("%+v", res)
		}
	}
	if ratios["2^-10"] < 8 || ratios["2^-6"] < ratios["2^-10"] || ratios[Zstd] > 2 || ratios[Snappy] > 2 || ratios[Snappy] == 0 {
		t.Errorf("%v", ratios)
	}
	if len(r.Targets) != 2*len(c.Bounds) {
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

// Values that come back changed end a run.
func TestMeasureChecks(t *testing.T) {
	m := method{
		encode: func(dst []byte, _ []float32) []byte { return append(dst, 1) },
		decode: func(values []float32, _ []byte) error { values[1] = 0.5; return nil }, bound: 0.25,
	}
	if _, err := m.measure(make([]float32, 3), nil, make([]float32, 3)); err == nil || err.Error() != "value 1 was 0 and came back as 0.5" {
		t.Error(err)
	}
	m.decode = func([]float32, []byte) error { return errors.New("broken") }
	if _, err := m.measure(make([]float32, 3), nil, make([]float32, 3)); err == nil || err.Error() != "broken" {
		t.Error(err)
	}
}

func TestConfigRefusesNonsense(t *testing.T) {
	for field, change := range map[string]func(*Config){
		"values": func(c *Config) { c.Values = 0 }, "bound": func(c *Config) { c.Bounds = []int{10, 15} },
		"rounds": func(c *Config) { c.Rounds = 0 },
	} {
		c := Defaults()
		change(&c)
		var wrong *experiment.ConfigError
		if _, err := Run(t.Context(), c); !errors.As(err, &wrong) || wrong.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}
