// SPDX-License-Identifier: Apache-2.0

package aggregator

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/internal/num/zipf"
	"github.com/libra-ina/libra/internal/report"
	"github.com/libra-ina/libra/internal/report/chart"
	"github.com/libra-ina/libra/internal/report/experiment"
)

// TestDefaultSkew holds the default exponents to the paper's two tasks
// (the paper's §3.1): their top 30,000 take "over half" and "about 70%".
func TestDefaultSkew(t *testing.T) {
	for i, want := range []float64{0.5, 0.7} {
		const keys = 1 << 20
		if share := zipf.New(keys, Defaults().Exponents[i]).Share(paperHot); share < want || share > want+0.03 {
			t.Errorf("exponent %v gives the hot parameters %.3f of the updates, want %v or little more", Defaults().Exponents[i], share, want)
		}
	}
}

func TestBound(t *testing.T) {
	for _, c := range []struct{ share, aggregator, server, want float64 }{
		{0, 100, 20, 20},
		{0.5, 100, 20, 40},      // the server is the slower one
		{0.95, 100, 20, 105.26}, // the aggregator is
		{1, 100, 20, 100},
	} {
		if got := bound(c.share, c.aggregator, c.server); math.Abs(got-c.want) > 0.01 {
			t.Errorf("share %v: %v, want %v", c.share, got, c.want)
		}
	}
}

// measured is a report with known figures.
func measured() *Report {
	r := &Report{Rounds: 3}
	add := func(a aggregator.Arithmetic, m aggregator.Mode, stripes int, samples ...float64) {
		r.add(Result{Arithmetic: a.String(), Mode: m.String(), Stripes: stripes, Hot: 1000, Pairs: 22 * stripes, Samples: samples})
	}
	add(aggregator.Exact, aggregator.Combine, 1, 198, 150, 260)
	add(aggregator.Exact, aggregator.Combine, 10, 880, 881, 800) // 4.0 at the median
	add(aggregator.Fixed, aggregator.Combine, 10, 880, 890, 100) // beside it: 1, 1.01, 0.125
	add(aggregator.LUT, aggregator.Combine, 10, 5720, 5000, 6000)
	add(aggregator.Exact, aggregator.Sync, 10, 10, 10, 10) // no target
	for _, a := range []aggregator.Arithmetic{aggregator.Exact, aggregator.LUT} {
		r.Rates = append(r.Rates, Rate{Distribution: "Zipf 1", Arithmetic: a.String(), Hot: paperHot, Pairs: experiment.Spread{Median: 200e6 / float64(a+1)}})
	}
	r.Systems = []System{
		{Distribution: "Zipf 1", Server: experiment.Spread{Median: 20e6}, Samples: []float64{20e6, 10e6, 21e6}, HarvestedSamples: []float64{20e6, 10e6, 21e6}},
		{Distribution: "Zipf 1", Hot: paperHot, HotShare: 0.75, Server: experiment.Spread{Median: 25e6}, Samples: []float64{100e6, 60e6, 84e6}, HarvestedSamples: []float64{90e6, 50e6, 63e6}, Sums: 29_999, Harvest: experiment.Spread{Median: 1.5e6}},
	}
	r.Negotiations = []Delay{
		{Backend: "udp", Workers: 2, Arithmetic: "exact", Iterations: 10, Reduce: experiment.Spread{Median: 100e3, Min: 90e3, Max: 110e3}, Total: experiment.Spread{Median: 100e3, Min: 90e3, Max: 110e3}},
		{Backend: "udp", Workers: 2, Arithmetic: "fixed", Iterations: 10, Negotiate: experiment.Spread{Median: 30e3, Min: 20e3, Max: 40e3}, Slowest: 77e3, Reduce: experiment.Spread{Median: 100e3, Min: 90e3, Max: 110e3}, Total: experiment.Spread{Median: 130e3, Min: 110e3, Max: 150e3}},
	}
	r.finish()
	return r
}

func TestTargets(t *testing.T) {
	want := map[string]experiment.Verdict{
		"exact, 10 stripes, ns a pair":                     {Want: 4, Got: 4, Met: true, AtMost: true},
		"exact, 1 stripe, ns a frame":                      {Want: 200, Got: 198, Met: true, AtMost: true},
		"fixed, 10 stripes, time divided by that of exact": {Want: 1, Got: 1, Met: true, AtMost: true},
		"lut, 10 stripes, ns a pair":                       {Want: 25, Got: 26, AtMost: true},
	}
	r := measured()
	if len(r.Targets) != len(want) {
		t.Errorf("targets %+v", r.Targets)
	}
	for _, g := range r.Targets {
		what := strings.TrimPrefix(g.What, "combine, 1,000 hot: ")
		if diff := cmp.Diff(want[what], g.Verdict); diff != "" {
			t.Errorf("%s: %s", g.What, diff)
		}
	}
}

func TestSystems(t *testing.T) {
	r := measured()
	alone, both := r.Systems[0], r.Systems[1]
	if alone.Bound != 20e6 || alone.Speedup != 1 || alone.Relative != 0.2 {
		t.Errorf("server alone: %+v", alone)
	}
	if alone.Harvested != 20e6 || alone.HarvestedSpeedup != 1 || both.Harvested != 63e6 || both.HarvestedSpeedup != 4.5 { // 4.5, 5, 3
		t.Errorf("with harvests: %+v, %+v", alone, both)
	}
	if both.Bound != 84e6 || both.Speedup != 5 || both.Relative != 1 { // 5, 6 and 4
		t.Errorf("together: %+v", both)
	}
}

func TestReportAsJSON(t *testing.T) {
	text, err := json.Marshal(measured())
	if err != nil {
		t.Fatal(err)
	}
	var back map[string]any
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	first := back["results"].([]any)[0].(map[string]any)
	for field, want := range map[string]any{
		"arithmetic": "exact", "mode": "combine", "stripes": 1.0, "hot": 1000.0, "ns_per_frame": 198.0, "ns_per_pair": 9.0,
		"min_ns_per_pair": 150.0 / 22, "max_ns_per_pair": 260.0 / 22,
	} {
		if first[field] != want {
			t.Errorf("results[0].%s is %v, want %v", field, first[field], want)
		}
	}
	empty, err := report.MarshalJSON(&Report{Rounds: 1})
	if err != nil || strings.Contains(string(empty), "null") {
		t.Errorf("empty report is %s, %v: lists are to be lists", empty, err)
	}
}

func TestTablesAndCharts(t *testing.T) {
	r := measured()
	var out strings.Builder
	if err := experiment.WriteTables(&out, r); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"9.00 (6.82-11.82)", "missed", "200 (0-0)", "30 (20-40)", "77", "over 100 ms with 8 workers", "7.0 % for OA", "29999", "1.5", "4.50"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("tables do not contain %q:\n%s", want, out.String())
		}
	}
	paths, err := chart.Write(filepath.Join(t.TempDir(), "charts"), r.Charts())
	if err != nil || len(paths) != 5 {
		t.Fatalf("charts %v, %v", paths, err)
	}
	for i, label := range []string{"ns a pair", "million pairs", "paper, OA", "with harvests", "paper (SwitchML)"} {
		if svg, err := os.ReadFile(paths[i]); err != nil || !strings.Contains(string(svg), label) {
			t.Errorf("%s does not contain %q, %v", paths[i], label, err)
		}
	}
	if paths, err := chart.Write(t.TempDir(), (&Report{Rounds: 1}).Charts()); err != nil || paths != nil {
		t.Errorf("nothing was measured, but %v is drawn, %v", paths, err)
	}
}

func TestConfigIsChecked(t *testing.T) {
	for name, spoil := range map[string]func(*Config){
		"a test":                  func(c *Config) { c.Tests = []Test{"speed"} },
		"no stripes":              func(c *Config) { c.Stripes = []int{0} },
		"stripes":                 func(c *Config) { c.Stripes = []int{26} },
		"few hot parameters":      func(c *Config) { c.Hot = []int{100} },
		"hot parameters":          func(c *Config) { c.Hot = []int{70_000} },
		"few of a sweep":          func(c *Config) { c.Sweep = []int{219} },
		"many of a sweep":         func(c *Config) { c.Sweep = []int{1<<20 + 1} },
		"no time for harvests":    func(c *Config) { c.Harvest = 0 },
		"a negative exponent":     func(c *Config) { c.Exponents = []float64{-1} },
		"no exponent":             func(c *Config) { c.Exponents = []float64{math.NaN()} },
		"no worker":               func(c *Config) { c.Workers = []int{0} },
		"workers":                 func(c *Config) { c.Workers = []int{65} },
		"a backend":               func(c *Config) { c.Backends = []Backend{"auto"} },
		"parameters of a vector":  func(c *Config) { c.Parameters = -1 },
		"rounds":                  func(c *Config) { c.Rounds = 0 },
		"time of one measurement": func(c *Config) { c.Duration = -1 },
	} {
		c := Defaults()
		spoil(&c)
		if r, err := Run(t.Context(), c); !errors.Is(err, experiment.ErrConfig) || r != nil {
			t.Errorf("%s: report %v, error %v", name, r, err)
		}
	}
	c := Defaults()
	if err := c.check(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
}
