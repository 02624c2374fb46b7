// SPDX-License-Identifier: Apache-2.0

package aggregator

import (
	"fmt"
	"slices"

	"github.com/dustin/go-humanize"

	"github.com/libra-ina/libra/bench/harness"
	"github.com/libra-ina/libra/wire"
)

// legendRoom is how much an axis grows for the legend.
const legendRoom = 1.6

// Charts returns cost, throughput, hot (Figures 13 and 14) and negotiation
// (Figure 17). Those without a measurement have no series.
func (r *Report) Charts() []harness.Chart {
	return []harness.Chart{r.costChart(), r.rateChart(), r.hotChart(), r.delayChart()}
}

// costChart has a colour for each arithmetic, and dashes and glyphs for each mode.
func (r *Report) costChart() harness.Chart {
	hot := paperHot
	if counts := harness.Distinct(r.Results, func(res Result) int { return res.Hot }); len(counts) > 0 && !slices.Contains(counts, hot) {
		hot = counts[0]
	}
	c := harness.Chart{
		Name: "cost", Title: fmt.Sprintf("Cost of a pair in the XDP program, %s hot parameters", humanize.Comma(int64(hot))),
		X: harness.Axis{
			Label: "stripes in a frame", Min: 0, Max: wire.MaxStripes * 1.05,
			Ticks: harness.Ticks("%d", harness.Distinct(r.Results, func(res Result) int { return res.Stripes })...),
		},
		Y: harness.Axis{Label: "ns a pair, median", Room: legendRoom},
	}
	for i, a := range harness.Distinct(r.Results, func(res Result) string { return res.Arithmetic }) {
		for j, m := range harness.Distinct(r.Results, func(res Result) string { return res.Mode }) {
			c.Series = append(c.Series, harness.Series{Name: a + ", " + m, Colour: i, Variant: j, Points: harness.Points(r.Results,
				func(res Result) bool { return res.Arithmetic == a && res.Mode == m && res.Hot == hot },
				func(res Result) (x, y float64) { return float64(res.Stripes), res.NsPerPair })})
		}
	}
	return c
}

func hotAxis() harness.Axis {
	return harness.Axis{Label: "hot parameters", Max: 70_000, Ticks: harness.Ticks("%d", 0, 10_000, 20_000, 30_000, 40_000, 50_000, 60_000)}
}

// rateChart has a colour for each arithmetic, and dashes and glyphs for each
// distribution.
func (r *Report) rateChart() harness.Chart {
	c := harness.Chart{
		Name: "throughput", Title: "Aggregation throughput of the XDP program on one CPU",
		X: hotAxis(), Y: harness.Axis{Label: "million pairs per second", Room: legendRoom},
	}
	for i, a := range harness.Distinct(r.Rates, func(q Rate) string { return q.Arithmetic }) {
		for j, d := range harness.Distinct(r.Rates, func(q Rate) string { return q.Distribution }) {
			c.Series = append(c.Series, harness.Series{Name: a + ", " + d, Colour: i, Variant: j, Points: harness.Points(r.Rates,
				func(q Rate) bool { return q.Arithmetic == a && q.Distribution == d },
				func(q Rate) (x, y float64) { return float64(q.Hot), q.Pairs.Median / 1e6 })})
		}
	}
	return c
}

// hotChart is Figure 14, with what the text has of Figure 13.
func (r *Report) hotChart() harness.Chart {
	c := harness.Chart{
		Name: "hot", Title: "Aggregator and parameter server together", Legend: harness.BottomRight,
		X: hotAxis(), Y: harness.Axis{Label: "throughput, by that with 30,000", Room: 1.1},
	}
	for i, d := range harness.Distinct(r.Systems, func(s System) string { return s.Distribution }) {
		c.Series = append(c.Series, harness.Series{Name: d, Colour: i, Variant: i, Points: harness.Points(r.Systems,
			func(s System) bool { return s.Distribution == d && s.Relative > 0 },
			func(s System) (x, y float64) { return float64(s.Hot), s.Relative })})
	}
	if len(c.Series) == 0 {
		return c
	}
	for i, g := range paperGain {
		c.Series = append(c.Series, harness.Series{
			Name: fmt.Sprintf("paper, %s: +%.1f %%", g.Task, 100*(g.Gain-1)), Kind: harness.Dots, Colour: harness.Paper, Variant: i,
			Points: []harness.Point{{X: paperHot, Y: 1}, {X: 2 * paperHot, Y: g.Gain}},
		})
	}
	return c
}

// delayChart is Figure 17.
func (r *Report) delayChart() harness.Chart {
	c := harness.Chart{
		Name: "negotiation", Title: "Delay of a scale's negotiation",
		X: harness.Axis{Label: "workers", Log: true, Min: 1, Max: 40, Ticks: harness.Ticks("%d", 1, 2, 4, 8, 16, 32)},
		Y: harness.Axis{Label: "ms in an iteration", Log: true, Min: 0.01, Max: 1000},
	}
	for i, b := range harness.Distinct(r.Negotiations, func(d Delay) string { return d.Backend }) {
		negotiated := func(d Delay) bool { return d.Backend == b && d.Negotiate.Median > 0 }
		c.Series = append(c.Series,
			harness.Series{Name: b + ", median", Colour: i, Points: harness.Points(r.Negotiations, negotiated,
				func(d Delay) (x, y float64) { return float64(d.Workers), d.Negotiate.Median / 1e6 })},
			harness.Series{Name: b + ", 99th percentile", Colour: i, Variant: 1, Points: harness.Points(r.Negotiations, negotiated,
				func(d Delay) (x, y float64) { return float64(d.Workers), d.Slowest / 1e6 })})
	}
	if len(c.Series) == 0 {
		return c
	}
	paper := harness.Series{Name: "paper (SwitchML)", Kind: harness.Dots, Colour: harness.Paper}
	for _, d := range paperDelay {
		paper.Points = append(paper.Points, harness.Point{X: float64(d.Workers), Y: d.Delay})
	}
	c.Series = append(c.Series, paper)
	return c
}
