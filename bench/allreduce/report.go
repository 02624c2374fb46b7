// SPDX-License-Identifier: Apache-2.0

package allreduce

import (
	"fmt"
	"slices"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/internal/report"
	"github.com/libra-ina/libra/internal/report/chart"
	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/transport/reducer"
	"github.com/libra-ina/libra/wire"
)

// Sample is one measurement: the times of operations one at a time, as the first worker sees them.
type Sample struct {
	P1   float64 `json:"p1_ns"`
	P50  float64 `json:"p50_ns"`
	P99  float64 `json:"p99_ns"`
	Mean float64 `json:"mean_ns"`
	// Rate is how many operations end in a second with many in flight; 0 if that was not measured.
	Rate float64 `json:"rate_per_s,omitempty"`
	// Repeated is the share of operations whose contribution the first worker sent again.
	Repeated float64 `json:"repeated,omitempty"`
}

// Result is what was measured of a number of workers with one baseline.
type Result struct {
	Workers  int    `json:"workers"`
	Baseline string `json:"baseline"`
	Sample          // medians over the rounds
	// GroupBytes is what the aggregator keeps of sums for one operation in flight: in one bank or two.
	// It is 0 where no aggregator does.
	GroupBytes int `json:"group_bytes,omitempty"`
	// Ratio is the median over the rounds of libra's p50 divided by this one's; 0 without libra.
	Ratio   float64  `json:"ratio"`
	Samples []Sample `json:"samples"`
}

// Report is what was measured. It marshals to one JSON object.
type Report struct {
	CPUs        int                      `json:"cpus"`
	Width       int                      `json:"width"`
	InFlight    int                      `json:"in_flight"`
	Operations  int                      `json:"operations"`
	Rounds      int                      `json:"rounds"`
	Loss        float64                  `json:"loss"`
	Results     []Result                 `json:"results"`
	Targets     []experiment.Target      `json:"targets,omitempty"`
	Unavailable []experiment.Unavailable `json:"unavailable,omitempty"`
}

// paper is the time of an all-reduce of 8 values in Fig. 8 of the P4SGD paper, in ns: FPGAs at a
// switch.
const paper = 1200

func (r *Report) find(workers int, baseline string) *Result {
	return experiment.Find(r.Results, func(res Result) bool { return res.Workers == workers && res.Baseline == baseline })
}

// finish completes the report when all is measured.
func (r *Report) finish() {
	for i := range r.Results {
		res := &r.Results[i]
		res.Sample = experiment.MedianOf(res.Samples)
		res.GroupBytes = groupBytes(res.Baseline, r.Width)
		if ours := r.find(res.Workers, Libra); ours != nil {
			res.Ratio = ratio(ours, res, func(s Sample) float64 { return s.P50 })
		}
	}
	r.addTargets()
}

// groupBytes returns the bytes of the sums of one operation, in all banks of its mode.
func groupBytes(baseline string, width int) int {
	if !ours(baseline) {
		return 0
	}
	mode := aggregator.Sync
	if baseline == Acked || baseline == AckedOne {
		mode = aggregator.Acked
	}
	const slot = 8
	return aggregator.JobConfig{Mode: mode}.Banks() * reducer.Shape{Width: width}.Stripes() * wire.Lanes * slot
}

// ratio returns the median of the ratios of a figure within rounds.
func ratio(a, b *Result, figure func(Sample) float64) float64 {
	n := min(len(a.Samples), len(b.Samples))
	return experiment.Ratios(experiment.Pick(a.Samples[:n], figure), experiment.Pick(b.Samples[:n], figure)).Median
}

// addTargets compares what was measured with what is wanted.
func (r *Report) addTargets() {
	p50 := func(s Sample) float64 { return s.P50 }
	p99 := func(s Sample) float64 { return s.P99 }
	want := func(what string, v experiment.Verdict) {
		r.Targets = append(r.Targets, experiment.Target{What: what, Verdict: v})
	}
	for _, workers := range experiment.Distinct(r.Results, func(res Result) int { return res.Workers }) {
		ours := r.find(workers, Libra)
		if ours == nil {
			continue
		}
		compare := func(what string, most float64, a, b *Result, figure func(Sample) float64) {
			want(fmt.Sprintf("%d workers: %s of %s divided by that of %s", workers, what, a.Baseline, b.Baseline),
				experiment.AtMost(most, ratio(a, b, figure)))
		}
		if mpi := r.find(workers, MPI); mpi != nil {
			if most, known := map[int]float64{2: 0.8, 4: 0.5, 8: 0.4}[workers]; known {
				compare("p50", most, ours, mpi, p50)
			}
			if workers == 4 || workers == 8 {
				compare("p99", 1, ours, mpi, p99)
			}
		}
		if reduce := r.find(workers, Reduce); reduce != nil {
			compare("p50", 0.7, ours, reduce, p50)
		}
		if lossy := r.find(workers, Lossy); lossy != nil {
			compare("mean", 2, lossy, ours, func(s Sample) float64 { return s.Mean })
		}
		if workers == 4 && r.InFlight == 64 {
			want("4 workers: rate with 64 in flight divided by that of one", experiment.AtLeast(2,
				experiment.Over(ours.Samples, func(s Sample) float64 { return s.Rate * s.Mean / 1e9 }).Median))
		}
	}
}

// DropTargets implements [experiment.WithTargets].
func (r *Report) DropTargets() { r.Targets = nil }

// Print writes the report for people.
func (r *Report) Print(out *report.Printer) {
	micro := func(ns float64) string { return fmt.Sprintf("%.1f", ns/1e3) }
	rows := experiment.Pick(r.Results, func(res Result) []any {
		return []any{
			res.Workers, res.Baseline, micro(res.P1), micro(res.P50), micro(res.P99), micro(res.Mean),
			fmt.Sprintf("%.2f", res.Ratio), report.Cell("%.0f", res.Rate/1e3), report.Cell("%.2f", 100*res.Repeated),
			report.Cell("%.0f", float64(res.GroupBytes)),
		}
	})
	out.Table(fmt.Sprintf("All-reduces of %s, in µs: medians of %s of %s operations on %s; all sums were right",
		english.Plural(r.Width, "value", ""), english.Plural(r.Rounds, "round", ""), humanize.Comma(int64(r.Operations)),
		english.Plural(r.CPUs, "CPU", "")),
		[]string{"workers", "baseline", "p1", "p50", "p99", "mean", "libra/baseline",
			fmt.Sprintf("1000/s, %d in flight", r.InFlight), "repeated %", "bytes a group"}, rows)
	out.Note("The paper's FPGAs take %.1f µs for 8 values at a switch.", paper/1e3)
	experiment.PrintTargets(out, r.Targets)
	experiment.PrintUnavailable(out, r.Unavailable)
}

// Charts returns the times for each number of workers (allreduce): medians, with the first and the
// last hundredth.
func (r *Report) Charts() []chart.Chart {
	baseline := func(res Result) string { return res.Baseline }
	names := experiment.Distinct(r.Results, baseline)
	c := chart.Chart{
		Name: "allreduce", Title: fmt.Sprintf("all-reduce of %s", english.Plural(r.Width, "value", "")),
		X: chart.Axis{Label: "workers"}, Y: chart.Axis{Label: "µs: median, first and last hundredth", Room: 1.35},
	}
	workers := func(res Result) string { return fmt.Sprint(res.Workers) }
	chart.AddBars(&c, r.Results, workers, baseline, func(res Result) []chart.Part {
		return []chart.Part{{
			Name: res.Baseline, Colour: slices.Index(names, res.Baseline),
			Height: res.P50 / 1e3, Low: res.P1 / 1e3, High: res.P99 / 1e3,
		}}
	})
	return []chart.Chart{c}
}
