// SPDX-License-Identifier: Apache-2.0

package ring

import (
	"fmt"
	"slices"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"

	"github.com/libra-ina/libra/internal/report"
	"github.com/libra-ina/libra/internal/report/chart"
	"github.com/libra-ina/libra/internal/report/experiment"
)

// Sample is one measurement.
type Sample struct {
	// Seconds is the mean time of an operation, from when all workers begin until the last one has
	// the results.
	Seconds float64 `json:"time_s"`
	// Bytes are what all workers sent in an operation, as payloads, without repetitions; 0: it is not
	// known.
	Bytes float64 `json:"sent_bytes"`
	// Repeated is the share of the workers' frames that were sent again, where Bytes is known.
	Repeated float64 `json:"repeated"`
}

// Result is what was measured of one way to add.
type Result struct {
	Rate    float64 `json:"rate_mbps"`
	Workers int     `json:"workers"`
	Method  string  `json:"method"`
	Sample          // medians over the rounds
	// Ratio is the median over the rounds of the time divided by that of ring, at the same rate and
	// with as many workers.
	Ratio   float64  `json:"ratio"`
	Samples []Sample `json:"samples"`
}

// Report is what was measured. It marshals to one JSON object.
type Report struct {
	CPUs        int                      `json:"cpus"`
	Values      int                      `json:"values"`
	Bound       int                      `json:"bound"`
	Scale       int                      `json:"scale"`
	Operations  int                      `json:"operations"`
	Rounds      int                      `json:"rounds"`
	Results     []Result                 `json:"results"`
	Targets     []experiment.Target      `json:"targets,omitempty"`
	Unavailable []experiment.Unavailable `json:"unavailable,omitempty"`

	compared subject // the coded ring
	growth   []subject
}

// subject is what is measured.
type subject struct {
	rate    float64
	workers int
	method  string
}

func (r *Report) find(s subject) *Result {
	return experiment.Find(r.Results, func(res Result) bool {
		return res.Rate == s.rate && res.Workers == s.workers && res.Method == s.method
	})
}

// finish completes the report when all is measured.
func (r *Report) finish() {
	for i := range r.Results {
		res := &r.Results[i]
		res.Sample = experiment.MedianOf(res.Samples)
		if plain := r.find(subject{res.Rate, res.Workers, Ring}); plain != nil {
			res.Ratio = ratio(res, plain)
		}
	}
	r.addTargets()
}

// ratio returns the median of the ratios of times within rounds.
func ratio(a, b *Result) float64 {
	seconds := func(s Sample) float64 { return s.Seconds }
	n := min(len(a.Samples), len(b.Samples))
	return experiment.Ratios(experiment.Pick(a.Samples[:n], seconds), experiment.Pick(b.Samples[:n], seconds)).Median
}

// addTargets compares what was measured with what is wanted, at the configuration that it is wanted
// of.
func (r *Report) addTargets() {
	want := func(what string, verdict func(want, got float64) experiment.Verdict, limit float64, a, b subject) {
		if x, y := r.find(a), r.find(b); x != nil && y != nil {
			r.Targets = append(r.Targets, experiment.Target{What: what, Verdict: verdict(limit, ratio(x, y))})
		}
	}
	c := r.compared
	if c.workers == 4 && c.rate == 250 && r.Bound == 10 && r.Scale == 0 {
		const what = "4 workers, 250 Mb/s: time of ring-coded divided by that of "
		want(what+Ring, experiment.AtMost, 0.4, c, subject{c.rate, c.workers, Ring})
		want(what+Server, experiment.AtMost, 0.15, c, subject{c.rate, c.workers, Server})
	}
	at := func(workers int, method string) subject { return subject{100, workers, method} }
	want("100 Mb/s: time of ring with 8 workers divided by that with 4", experiment.AtMost, 1.4, at(8, Ring), at(4, Ring))
	want("100 Mb/s: time of server with 8 workers divided by that with 4", experiment.AtLeast, 1.6, at(8, Server),
		at(4, Server))
}

// DropTargets implements [experiment.WithTargets].
func (r *Report) DropTargets() { r.Targets = nil }

// Print writes the report for people.
func (r *Report) Print(out *report.Printer) {
	rows := experiment.Pick(r.Results, func(res Result) []any {
		repeated := fmt.Sprintf("%.2f", 100*res.Repeated)
		if res.Bytes == 0 {
			repeated = ""
		}
		return []any{
			fmt.Sprintf("%.0f", res.Rate), res.Workers, res.Method, fmt.Sprintf("%.1f", res.Seconds*1e3),
			report.Cell("%.2f", res.Ratio), report.Cell("%.1f", res.Bytes/1e6), repeated,
		}
	})
	out.Table(fmt.Sprintf("Adding vectors of %s, codes of bound %d and scale %d: medians of %s of %s on %s; all sums were right",
		english.Plural(r.Values, "value", ""), r.Bound, r.Scale, english.Plural(r.Rounds, "round", ""),
		english.Plural(r.Operations, "operation", ""), english.Plural(r.CPUs, "CPU", "")),
		[]string{"Mb/s", "workers", "method", "ms", "of ring's", "MB sent", "repeated %"}, rows)
	out.Note("The paper's coded ring takes 0.46 of its ring's time and 0.19 of its server's (Fig. 12, %s vectors on other lines).",
		humanize.Bytes(uint64(4*r.Values)))
	experiment.PrintTargets(out, r.Targets)
	experiment.PrintUnavailable(out, r.Unavailable)
}

// Charts returns the times of the comparison (ring), and for numbers of workers (ring-growth).
func (r *Report) Charts() []chart.Chart {
	method := func(res Result) string { return res.Method }
	names := experiment.Distinct(r.Results, method)
	draw := func(name, title string, fits func(Result) bool) chart.Chart {
		c := chart.Chart{
			Name: name, Title: title, X: chart.Axis{Label: "workers"}, Y: chart.Axis{Label: "ms for one vector", Room: 1.35},
		}
		var some []Result
		for _, res := range r.Results {
			if fits(res) {
				some = append(some, res)
			}
		}
		workers := func(res Result) string { return fmt.Sprint(res.Workers) }
		chart.AddBars(&c, some, workers, method, func(res Result) []chart.Part {
			times := experiment.Pick(res.Samples, func(s Sample) float64 { return s.Seconds * 1e3 })
			return []chart.Part{{
				Name: res.Method, Colour: slices.Index(names, res.Method),
				Height: res.Seconds * 1e3, Low: slices.Min(times), High: slices.Max(times),
			}}
		})
		return c
	}
	title := func(rate float64) string { return fmt.Sprintf("adding vectors at %.0f Mb/s", rate) }
	charts := []chart.Chart{draw("ring", title(r.compared.rate), func(res Result) bool {
		return res.Rate == r.compared.rate && res.Workers == r.compared.workers
	})}
	if len(r.growth) > 0 {
		charts = append(charts, draw("ring-growth", title(r.growth[0].rate), func(res Result) bool {
			return slices.Contains(r.growth, subject{res.Rate, res.Workers, res.Method})
		}))
	}
	return charts
}
