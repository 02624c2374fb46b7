package push

import (
	"fmt"
	"slices"
	"strings"

	"github.com/libra-ina/libra/bench/harness"
)

// Charts returns for each batch size the rates, with the smallest and the largest
// round (push-rate-BATCH), and the parts of the CPU time of a pair (push-cpu-BATCH).
// There is a group of bars for each number of workers.
func (r *Report) Charts() (charts []harness.Chart) {
	workers := func(res Result) string { return fmt.Sprint(res.Workers) }
	baseline := func(res Result) string { return res.Baseline }
	for _, batch := range harness.Distinct(r.Results, func(res Result) int { return res.Batch }) {
		results := slices.DeleteFunc(slices.Clone(r.Results), func(res Result) bool { return res.Batch != batch })
		names := harness.Distinct(results, baseline)
		chart := func(name, title, unit string, parts func(Result) []harness.Part) {
			c := harness.Chart{
				Name: fmt.Sprintf("push-%s-%d", name, batch), Title: fmt.Sprintf("pushes of %d pairs: %s", batch, title),
				X: harness.Axis{Label: "workers"}, Y: harness.Axis{Label: unit, Room: 1.35},
			}
			harness.AddBars(&c, results, workers, baseline, parts)
			charts = append(charts, c)
		}
		chart("rate", "rate of all workers together", "million pairs per second", func(res Result) []harness.Part {
			return []harness.Part{{
				Name: res.Baseline, Colour: slices.Index(names, res.Baseline),
				Height: res.PairsPerSecond / 1e6, Low: res.Min / 1e6, High: res.Max / 1e6,
			}}
		})
		chart("cpu", "CPU time; from left to right "+strings.Join(names, ", "), "ns per pair", func(res Result) []harness.Part {
			return []harness.Part{
				{Name: "worker", Colour: 0, Height: res.NsWorker},
				{Name: "kernel", Colour: 1, Height: res.NsKernel},
				{Name: "aggregator", Colour: 2, Height: res.NsAggregator},
				{Name: "ps", Colour: 3, Height: res.NsServer},
			}
		})
	}
	return charts
}
