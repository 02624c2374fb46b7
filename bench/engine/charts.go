package engine

import (
	"fmt"
	"slices"

	"github.com/libra-ina/libra/bench/harness"
)

// Charts returns for each test that was measured the CPU time of a frame
// (cpu-TEST) and the rates (rate-TEST) or round-trip times (latency).
func (r *Report) Charts() (charts []harness.Chart) {
	for _, test := range Tests() {
		results := slices.DeleteFunc(slices.Clone(r.Results), func(res Result) bool { return res.Test != test })
		title := func(text string) string { return fmt.Sprintf("%s: %s", test, text) }
		charts = append(charts, bars(results, harness.Chart{
			Name: "cpu-" + string(test), Title: title("CPU time of the tested end, user (dark) and kernel (light)"),
			Y: harness.Axis{Label: "ns per frame"},
		}, func(res Result) (lower, upper harness.Point) {
			return harness.Point{Y: res.NsUser}, harness.Point{Y: res.NsUser + res.NsKernel}
		}))
		if test == RequestResponse {
			charts = append(charts, bars(results, harness.Chart{
				Name: "latency", Title: title("median (dark) and 99th percentile (light) of the round-trip time"),
				Y: harness.Axis{Label: "µs"},
			}, func(res Result) (lower, upper harness.Point) {
				return harness.Point{Y: *res.P50us}, harness.Point{Y: *res.P99us}
			}))
			continue
		}
		charts = append(charts, bars(results, harness.Chart{
			Name: "rate-" + string(test), Title: title("rate, median with smallest and largest round"),
			Y: harness.Axis{Label: "million frames per second"},
		}, func(res Result) (lower, upper harness.Point) {
			return harness.Point{Y: res.PPS / 1e6, Low: res.PPSMin / 1e6, High: res.PPSMax / 1e6}, harness.Point{}
		}))
	}
	return charts
}

// bars adds to a chart a group of bars for each size, and in it a bar for each
// baseline, of one part or of a lower and an upper one.
func bars(results []Result, c harness.Chart, parts func(Result) (lower, upper harness.Point)) harness.Chart {
	c.X.Label, c.Y.Room, c.Legend = "frame size in bytes", 1.35, harness.TopRight
	sizes := slices.Sorted(slices.Values(harness.Distinct(results, func(r Result) int { return r.Size })))
	for _, size := range sizes {
		c.X.Names = append(c.X.Names, fmt.Sprint(size))
	}
	names := harness.Distinct(results, func(r Result) string { return r.Baseline })
	for i, name := range names {
		place, width := harness.Beside(i, len(names))
		// Colours go by the place among all, so that they agree between charts.
		dark := harness.Series{Name: name, Kind: harness.Bars, Width: width, Colour: slices.Index(Baselines(), name)}
		light := dark
		light.Name, light.Variant = "", 1
		for _, r := range results {
			if r.Baseline != name {
				continue
			}
			lower, upper := parts(r)
			lower.X = float64(slices.Index(sizes, r.Size)) + place
			dark.Points = append(dark.Points, lower)
			if upper.Y > lower.Y {
				upper.X, upper.Foot = lower.X, lower.Y
				light.Points = append(light.Points, upper)
			}
		}
		c.Series = append(c.Series, dark, light)
	}
	return c
}
