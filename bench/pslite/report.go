// SPDX-License-Identifier: Apache-2.0

package pslite

import (
	"fmt"

	"github.com/dustin/go-humanize/english"

	"github.com/libra-ina/libra/internal/report"
	"github.com/libra-ina/libra/internal/report/experiment"
)

// Sample is one measurement. What a measure does not have is 0.
type Sample struct {
	// Push is the time of a push until its answer; of small pushes, the median.
	Push float64 `json:"push_s"`
	// Pull is the time of a pull; of several, the median.
	Pull float64 `json:"pull_s"`
	// Rate is that of all workers' acknowledged pairs together.
	Rate float64 `json:"pairs_per_s"`
}

// Result is what was measured of one program over one van.
type Result struct {
	Measure string `json:"measure"`
	Van     string `json:"van"`
	Sample         // medians over the rounds
	// Ratios are the medians over the rounds of what was measured divided by what it is over zmq.
	Ratios  Sample   `json:"ratios"`
	Samples []Sample `json:"samples"`
}

// Report is what was measured. It marshals to one JSON object.
type Report struct {
	CPUs    int                 `json:"cpus"`
	Workers int                 `json:"workers"`
	Pushes  int                 `json:"pushes"` // of a worker
	Apart   bool                `json:"apart"`  // a host for each process
	Backend string              `json:"backend"`
	Rounds  int                 `json:"rounds"`
	Results []Result            `json:"results"`
	Targets []experiment.Target `json:"targets,omitempty"`
}

// find returns what was measured, or nil if nothing was.
func (r *Report) find(measure, van string) *Result {
	return experiment.Find(r.Results, func(res Result) bool {
		return res.Measure == measure && res.Van == van && len(res.Samples) > 0
	})
}

// finish completes the report when all is measured. With targets, figures are compared with what is
// wanted.
func (r *Report) finish(targets bool) {
	for i := range r.Results {
		res := &r.Results[i]
		if len(res.Samples) == 0 {
			continue
		}
		res.Sample = experiment.MedianOf(res.Samples)
		if zmq := r.find(res.Measure, ZMQ); zmq != nil {
			for _, figure := range []func(*Sample) *float64{push, pull, rate} {
				*figure(&res.Ratios) = ratio(res, zmq, figure)
			}
		}
	}
	if targets {
		r.addTargets()
	}
}

// ratio returns the median of the ratios of a figure within rounds, and 0 if there is no such
// figure.
func ratio(a, b *Result, figure func(*Sample) *float64) float64 {
	of := func(s Sample) float64 { return *figure(&s) }
	n := min(len(a.Samples), len(b.Samples))
	if of(b.Samples[0]) == 0 {
		return 0
	}
	return experiment.Ratios(experiment.Pick(a.Samples[:n], of), experiment.Pick(b.Samples[:n], of)).Median
}

// addTargets compares what was measured with what is wanted.
func (r *Report) addTargets() {
	want := func(what string, verdict func(want, got float64) experiment.Verdict, limit float64, measure string,
		figure func(*Result) float64) {
		if res := r.find(measure, Libra); res != nil && figure(res) != 0 {
			r.Targets = append(r.Targets, experiment.Target{What: what, Verdict: verdict(limit, figure(res))})
		}
	}
	pushes := func(res *Result) float64 { return res.Ratios.Push }
	want("10 million pairs, none hot: time of a push divided by that over zmq", experiment.AtMost, 1.15, Cold, pushes)
	want("10 million pairs, none hot: time of a pull divided by that over zmq", experiment.AtMost, 1.15, Cold,
		func(res *Result) float64 { return res.Ratios.Pull })
	want("8 pairs, half hot: median time of a push divided by that over zmq", experiment.AtMost, 1.5, Small, pushes)
	want("4 workers, batches of 4,096: rate divided by that over zmq", experiment.AtLeast, 1.25, Batches,
		func(res *Result) float64 { return res.Ratios.Rate })
	want("ms for a pull of 8 hot keys meanwhile, median", experiment.AtMost, 30, Pulls,
		func(res *Result) float64 { return res.Pull * 1e3 })
}

// DropTargets implements [experiment.WithTargets].
func (r *Report) DropTargets() { r.Targets = nil }

// Print writes the report for people.
func (r *Report) Print(out *report.Printer) {
	rows := experiment.Pick(r.Results, func(res Result) []any {
		return []any{
			res.Measure, res.Van,
			report.Cell("%.3f", res.Push*1e3), report.Cell("%.2f", res.Ratios.Push),
			report.Cell("%.3f", res.Pull*1e3), report.Cell("%.2f", res.Ratios.Pull),
			report.Cell("%.2f", res.Rate/1e6), report.Cell("%.2f", res.Ratios.Rate),
		}
	})
	where := "on one host"
	if r.Apart {
		where = "on a host for each process"
	}
	out.Table(fmt.Sprintf("Programs of ps-lite %s (%s), %s of %s: medians of %s on %s; all sums were right", where,
		r.Backend, english.Plural(r.Workers, "worker", ""), english.Plural(r.Pushes, "push", "pushes"),
		english.Plural(r.Rounds, "round", ""), english.Plural(r.CPUs, "CPU", "")),
		[]string{"measure", "van", "push ms", "of zmq's", "pull ms", "of zmq's", "M pairs/s", "of zmq's"}, rows)
	experiment.PrintTargets(out, r.Targets)
}
