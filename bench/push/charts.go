package push

import (
	"fmt"
	"slices"
	"strings"

	"github.com/libra-ina/libra/bench/harness"
)

// Charts returns for each batch size the rates (push-rate-BATCH) and the CPU time
// of a pair (push-cpu-BATCH).
func (r *Report) Charts() (charts []harness.Chart) {
	for _, batch := range harness.Distinct(r.Results, func(res Result) int { return res.Batch }) {
		var g group
		for _, res := range r.Results {
			if res.Batch == batch {
				g.results = append(g.results, res)
			}
		}
		g.workers = harness.Distinct(g.results, func(res Result) int { return res.Workers })
		g.baselines = harness.Distinct(g.results, func(res Result) string { return res.Baseline })
		charts = append(charts, g.rateChart(batch), g.costChart(batch))
	}
	return charts
}

// group is the results of one batch size. A chart of it has a group of bars for
// each number of workers, and in it a bar for each baseline.
type group struct {
	results   []Result
	workers   []int
	baselines []string
}

// bar returns the place and the width of a result's bar.
func (g *group) bar(r Result) (x, width float64) {
	place, width := harness.Beside(slices.Index(g.baselines, r.Baseline), len(g.baselines))
	return float64(slices.Index(g.workers, r.Workers)) + place, width
}

// chart returns a chart without series.
func (g *group) chart(name, title, unit string) harness.Chart {
	c := harness.Chart{Name: name, Title: title, X: harness.Axis{Label: "workers"}, Y: harness.Axis{Label: unit, Room: 1.35}}
	for _, n := range g.workers {
		c.X.Names = append(c.X.Names, fmt.Sprint(n))
	}
	return c
}

// rateChart shows the rates, with the smallest and the largest round.
func (g *group) rateChart(batch int) harness.Chart {
	c := g.chart(fmt.Sprintf("push-rate-%d", batch),
		fmt.Sprintf("pushes of %d pairs: rate of all workers together", batch), "million pairs per second")
	for i, name := range g.baselines {
		s := harness.Series{Name: name, Kind: harness.Bars, Colour: i}
		for _, r := range g.results {
			if r.Baseline == name {
				var x float64
				x, s.Width = g.bar(r)
				s.Points = append(s.Points, harness.Point{X: x, Y: r.PairsPerSecond / 1e6, Low: r.Min / 1e6, High: r.Max / 1e6})
			}
		}
		c.Series = append(c.Series, s)
	}
	return c
}

// costChart shows the parts of the CPU time of a pair on top of each other.
func (g *group) costChart(batch int) harness.Chart {
	c := g.chart(fmt.Sprintf("push-cpu-%d", batch),
		fmt.Sprintf("pushes of %d pairs: CPU time; from left to right %s", batch, strings.Join(g.baselines, ", ")), "ns per pair")
	foot := make([]float64, len(g.results))
	for i, part := range []struct {
		name string
		ns   func(Cost) float64
	}{
		{"worker", func(c Cost) float64 { return c.NsWorker }},
		{"kernel", func(c Cost) float64 { return c.NsKernel }},
		{"aggregator", func(c Cost) float64 { return c.NsAggregator }},
		{"ps", func(c Cost) float64 { return c.NsServer }},
	} {
		s := harness.Series{Name: part.name, Kind: harness.Bars, Colour: i}
		for k, r := range g.results {
			var x float64
			x, s.Width = g.bar(r)
			top := foot[k] + part.ns(r.Cost)
			s.Points = append(s.Points, harness.Point{X: x, Foot: foot[k], Y: top})
			foot[k] = top
		}
		c.Series = append(c.Series, s)
	}
	return c
}
