package engine

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/libra-ina/libra/bench/harness"
)

// Charts returns for each test that was measured the CPU time of a frame
// (cpu-TEST) and the rates (rate-TEST) or round-trip times (latency).
func (r *Report) Charts() (charts []harness.Chart) {
	for _, test := range Tests() {
		results := slices.DeleteFunc(slices.Clone(r.Results), func(res Result) bool { return res.Test != test })
		slices.SortStableFunc(results, func(a, b Result) int { return cmp.Compare(a.Size, b.Size) })
		// A chart has a group of bars for each size, of one part or of a dark and a
		// light one.
		chart := func(name, title, unit string, parts func(Result) (dark, light harness.Part)) {
			c := harness.Chart{
				Name: name, Title: fmt.Sprintf("%s: %s", test, title), Legend: harness.TopRight,
				X: harness.Axis{Label: "frame size in bytes"}, Y: harness.Axis{Label: unit, Room: 1.35},
			}
			harness.AddBars(&c, results,
				func(res Result) string { return fmt.Sprint(res.Size) }, func(res Result) string { return res.Baseline },
				func(res Result) []harness.Part {
					dark, light := parts(res)
					// Colours go by the place among all, so that they agree between charts.
					dark.Name, dark.Colour = res.Baseline, slices.Index(Baselines(), res.Baseline)
					light.Colour, light.Variant = dark.Colour, 1
					if light.Height <= 0 {
						return []harness.Part{dark}
					}
					return []harness.Part{dark, light}
				})
			charts = append(charts, c)
		}
		chart("cpu-"+string(test), "CPU time of the tested end, user (dark) and kernel (light)", "ns per frame",
			func(res Result) (dark, light harness.Part) {
				return harness.Part{Height: res.NsUser}, harness.Part{Height: res.NsKernel}
			})
		if test == RequestResponse {
			chart("latency", "median (dark) and 99th percentile (light) of the round-trip time", "µs",
				func(res Result) (dark, light harness.Part) {
					return harness.Part{Height: *res.P50us}, harness.Part{Height: *res.P99us - *res.P50us}
				})
			continue
		}
		chart("rate-"+string(test), "rate, median with smallest and largest round", "million frames per second",
			func(res Result) (dark, light harness.Part) {
				return harness.Part{Height: res.PPS / 1e6, Low: res.PPSMin / 1e6, High: res.PPSMax / 1e6}, harness.Part{}
			})
	}
	return charts
}
