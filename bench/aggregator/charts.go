// SPDX-License-Identifier: Apache-2.0

package aggregator

import (
	"fmt"
	"slices"

	"github.com/dustin/go-humanize"

	"github.com/libra-ina/libra/internal/report/chart"
	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/wire"
)

// legendRoom is how much an axis grows for the legend.
const legendRoom = 1.6

// Charts returns cost, throughput, hot (Figures 13 and 14), together, which is the same by the
// server alone, with and without harvests, and negotiation (Figure 17). Those without a measurement
// have no series.
func (r *Report) Charts() []chart.Chart {
	return []chart.Chart{r.costChart(), r.rateChart(), r.hotChart(), r.togetherChart(), r.delayChart()}
}

// costChart has a colour for each arithmetic, and dashes and glyphs for each mode.
func (r *Report) costChart() chart.Chart {
	hot := paperHot
	if counts := experiment.Distinct(r.Results, func(res Result) int {
		return res.Hot
	}); len(counts) > 0 && !slices.Contains(counts, hot) {
		hot = counts[0]
	}
	stripes := experiment.Distinct(r.Results, func(res Result) int { return res.Stripes })
	c := chart.Chart{
		Name: "cost", Title: fmt.Sprintf("Cost of a pair in the XDP program, %s hot parameters", humanize.Comma(int64(hot))),
		X: chart.Axis{
			Label: "stripes in a frame", Min: 0, Max: 1.05 * float64(slices.Max(append(stripes, wire.DefaultStripes))),
			Ticks: chart.Ticks("%d", stripes...),
		},
		Y: chart.Axis{Label: "ns a pair, median", Room: legendRoom},
	}
	chart.AddCurves(&c, slices.DeleteFunc(slices.Clone(r.Results), func(res Result) bool { return res.Hot != hot }),
		func(res Result) string { return res.Arithmetic }, func(res Result) string { return res.Mode },
		func(res Result) (x, y float64) { return float64(res.Stripes), res.NsPerPair })
	return c
}

func hotAxis() chart.Axis {
	return chart.Axis{Label: "hot parameters", Log: true, Min: 800, Max: 1.4e6,
		Ticks: chart.Ticks("%d", 1000, 10_000, paperHot, 100_000, 1_000_000)}
}

// rateChart has a colour for each arithmetic, and dashes and glyphs for each
// distribution.
func (r *Report) rateChart() chart.Chart {
	c := chart.Chart{
		Name: "throughput", Title: "Aggregation throughput of the XDP program on one CPU",
		X: hotAxis(), Y: chart.Axis{Label: "million pairs per second", Room: legendRoom},
	}
	chart.AddCurves(&c, r.Rates, func(q Rate) string {
		return q.Arithmetic
	}, func(q Rate) string { return q.Distribution },
		func(q Rate) (x, y float64) { return float64(q.Hot), q.Pairs.Median / 1e6 })
	return c
}

// hotChart is Figure 14, with what the text has of Figure 13.
func (r *Report) hotChart() chart.Chart {
	c := chart.Chart{
		Name: "hot", Title: "Aggregator and parameter server together", Legend: chart.BottomRight,
		X: hotAxis(), Y: chart.Axis{Label: "throughput, by that with 30,000", Room: 1.1},
	}
	for i, d := range experiment.Distinct(r.Systems, func(s System) string { return s.Distribution }) {
		c.Series = append(c.Series, chart.Series{Name: d, Colour: i, Variant: i, Points: chart.Points(r.Systems,
			func(s System) bool { return s.Distribution == d && s.Hot > 0 && s.Relative > 0 },
			func(s System) (x, y float64) { return float64(s.Hot), s.Relative })})
	}
	if len(c.Series) == 0 {
		return c
	}
	for i, g := range paperGain {
		c.Series = append(c.Series, chart.Series{
			Name: fmt.Sprintf("paper, %s: +%.1f %%", g.Task, 100*(g.Gain-1)), Kind: chart.Dots, Colour: chart.Paper, Variant: i,
			Points: []chart.Point{{X: paperHot, Y: 1}, {X: 2 * paperHot, Y: g.Gain}},
		})
	}
	return c
}

// paperSpeedup is what the paper's Libra has of ps-lite's rate, in its own words.
var paperSpeedup = [2]float64{1.5, 4}

// togetherChart has aggregator and server beside the server alone.
func (r *Report) togetherChart() chart.Chart {
	c := chart.Chart{
		Name: "together", Title: "Aggregator and parameter server together", Legend: chart.TopLeft,
		X: hotAxis(), Y: chart.Axis{Label: "throughput, by that of the server alone", Room: legendRoom},
	}
	for i, d := range experiment.Distinct(r.Systems, func(s System) string { return s.Distribution }) {
		hot := func(s System) bool { return s.Distribution == d && s.Hot > 0 }
		c.Series = append(c.Series,
			chart.Series{Name: d + ", without harvests", Colour: i, Variant: 1, Points: chart.Points(r.Systems, hot,
				func(s System) (x, y float64) { return float64(s.Hot), s.Speedup })},
			chart.Series{Name: d + ", with harvests", Colour: i, Points: chart.Points(r.Systems, hot,
				func(s System) (x, y float64) { return float64(s.Hot), s.HarvestedSpeedup })})
	}
	if len(c.Series) == 0 {
		return c
	}
	paper := chart.Series{Name: "paper: 1.5 to 4 times ps-lite", Kind: chart.Dots, Colour: chart.Paper}
	for _, y := range paperSpeedup {
		paper.Points = append(paper.Points, chart.Point{X: paperHot, Y: y})
	}
	c.Series = append(c.Series, paper)
	return c
}

func (r *Report) delayChart() chart.Chart {
	c := chart.Chart{
		Name: "negotiation", Title: "Delay of a scale's negotiation",
		X: chart.Axis{Label: "workers", Log: true, Min: 1, Max: 40, Ticks: chart.Ticks("%d", 1, 2, 4, 8, 16, 32)},
		Y: chart.Axis{Label: "ms in an iteration", Log: true, Min: 0.01, Max: 1000},
	}
	for i, b := range experiment.Distinct(r.Negotiations, func(d Delay) string { return d.Backend }) {
		negotiated := func(d Delay) bool { return d.Backend == b && d.Negotiate.Median > 0 }
		c.Series = append(c.Series,
			chart.Series{Name: b + ", median", Colour: i, Points: chart.Points(r.Negotiations, negotiated,
				func(d Delay) (x, y float64) { return float64(d.Workers), d.Negotiate.Median / 1e6 })},
			chart.Series{Name: b + ", 99th percentile", Colour: i, Variant: 1, Points: chart.Points(r.Negotiations, negotiated,
				func(d Delay) (x, y float64) { return float64(d.Workers), d.Slowest / 1e6 })})
	}
	if len(c.Series) == 0 {
		return c
	}
	paper := chart.Series{Name: "paper (SwitchML)", Kind: chart.Dots, Colour: chart.Paper}
	for _, d := range paperDelay {
		paper.Points = append(paper.Points, chart.Point{X: float64(d.Workers), Y: d.Delay})
	}
	c.Series = append(c.Series, paper)
	return c
}
