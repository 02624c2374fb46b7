// SPDX-License-Identifier: Apache-2.0

package lossy

import (
	"fmt"
	"math"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"

	"github.com/libra-ina/libra/internal/report"
	"github.com/libra-ina/libra/internal/report/chart"
	"github.com/libra-ina/libra/internal/report/experiment"
)

// Report is the outcome of a study. It marshals to one JSON object.
type Report struct {
	Train   int `json:"train"` // images
	Test    int `json:"test"`
	Seeds   int `json:"seeds"`
	Epochs  int `json:"epochs"`
	Workers int `json:"workers"`
	Batch   int `json:"batch"`   // images of a worker's step
	Weights int `json:"weights"` // of the network

	Results []Result            `json:"results"`
	Lengths []Length            `json:"lengths"`
	Targets []experiment.Target `json:"targets"`
}

// Result is the outcome of a scheme.
type Result struct {
	Scheme string `json:"scheme"`
	What   string `json:"what"`
	// Accuracy is the share of test images that are recognised after each epoch, the mean over the
	// seeds.
	Accuracy []float64 `json:"accuracy"`
	// Final are the means and extremes of it after the last epoch.
	Final Range `json:"final"`
	// Points is the mean of the differences to [Lossless] with the same seed, in percentage points; 0
	// without it.
	Points float64 `json:"points"`
	// Bytes are what a worker sends in a step.
	Bytes float64 `json:"step_bytes"`
	// Ratio is how many times fewer bytes than float32 they are.
	Ratio float64 `json:"ratio"`
}

// Range is a figure over the seeds.
type Range struct {
	Mean float64 `json:"mean"`
	Min  float64 `json:"min"`
	Max  float64 `json:"max"`
}

// Length says how long the codes of a worker's gradients are, before they are divided by the number
// of workers: shares of values with codes of 2, 10, 18 and 34 bits, tags included.
type Length struct {
	Bound  int        `json:"bound"`
	Shares [4]float64 `json:"shares"`
	// Ratio is 32 bits divided by the mean of these, as the paper counts.
	Ratio float64 `json:"ratio"`

	counts [4]int
}

// tagBits are the bits of a code by its tag, as the paper counts them.
var tagBits = [4]float64{2, 10, 18, 34}

// paperShares is the paper's Table III for its digits, by bound.
var paperShares = map[int][4]float64{
	10: {0.920, 0.065, 0.015, 0}, 8: {0.957, 0.034, 0.009, 0}, 6: {0.981, 0.016, 0.004, 0},
}

func ratioOf(shares [4]float64) float64 {
	bits := 0.0
	for tag, share := range shares {
		bits += share * tagBits[tag]
	}
	return experiment.Quotient(32, bits)
}

func (r *Report) count(bound int, tags [4]int) {
	l := experiment.Find(r.Lengths, func(l Length) bool { return l.Bound == bound })
	if l == nil {
		r.Lengths = append(r.Lengths, Length{Bound: bound})
		l = &r.Lengths[len(r.Lengths)-1]
	}
	for tag, n := range tags {
		l.counts[tag] += n
	}
}

// finish makes results of what the trainings have reached.
func (r *Report) finish(runs map[string][]trained) {
	for i := range r.Lengths {
		l := &r.Lengths[i]
		all := 0
		for _, n := range l.counts {
			all += n
		}
		for tag, n := range l.counts {
			l.Shares[tag] = float64(n) / float64(all)
		}
		l.Ratio = ratioOf(l.Shares)
	}
	for _, s := range schemes() {
		if of := runs[s.name]; len(of) > 0 {
			r.Results = append(r.Results, r.resultOf(s, of, runs[Lossless]))
		}
	}
	for _, t := range []struct {
		bound  int
		points float64
	}{{10, 0.75}, {6, 1.5}} {
		name := CodedName(t.bound)
		if coded := experiment.Find(r.Results, func(res Result) bool { return res.Scheme == name }); coded != nil {
			r.Targets = append(r.Targets, experiment.Target{
				What:    fmt.Sprintf("%s: percentage points of accuracy below %s", name, Lossless),
				Verdict: experiment.AtMost(t.points, -coded.Points),
			})
		}
	}
}

func (r *Report) resultOf(s scheme, of, lossless []trained) Result {
	res := Result{Scheme: s.name, What: s.what, Final: Range{Min: math.Inf(1), Max: math.Inf(-1)}}
	for seed, t := range of {
		last := t.accuracy[len(t.accuracy)-1]
		if seed == 0 {
			res.Accuracy = make([]float64, len(t.accuracy))
		}
		share := 1 / float64(len(of))
		for epoch, a := range t.accuracy {
			res.Accuracy[epoch] += share * a
		}
		res.Final.Mean += share * last
		res.Final.Min, res.Final.Max = min(res.Final.Min, last), max(res.Final.Max, last)
		res.Bytes += share * t.bytes
		if seed < len(lossless) {
			res.Points += share * 100 * (last - lossless[seed].accuracy[len(t.accuracy)-1])
		}
	}
	res.Ratio = experiment.Quotient(r.plainBytes(), res.Bytes)
	return res
}

// plainBytes is what a worker sends of float32 in a step: all blocks but one, twice.
func (r *Report) plainBytes() float64 {
	return 4 * float64(r.Weights) * 2 * float64(r.Workers-1) / float64(r.Workers)
}

// DropTargets implements [experiment.WithTargets].
func (r *Report) DropTargets() { r.Targets = nil }

// Print writes the report for people.
func (r *Report) Print(out *report.Printer) {
	percent := func(share float64) string { return fmt.Sprintf("%.2f", 100*share) }
	out.Table(fmt.Sprintf("Accuracy after %s of %s", english.Plural(r.Epochs, "epoch", ""),
		english.Plural(r.Seeds, "seed", "")),
		[]string{"scheme", "accuracy %", "min", "max", "points", "KB a step", "ratio", "what"},
		experiment.Pick(r.Results, func(res Result) []any {
			return []any{
				res.Scheme, percent(res.Final.Mean), percent(res.Final.Min), percent(res.Final.Max),
				fmt.Sprintf("%+.2f", res.Points), humanize.CommafWithDigits(res.Bytes/1000, 1), fmt.Sprintf("%.1f", res.Ratio),
				res.What,
			}
		}))
	out.Note("%d workers with %d images each a step, %s images to train on, %s to test with; %s weights. Points are percentage "+
		"points beside %s with the same seed. KB of 1000 bytes that a worker sends in a step; codes are counted as they are.",
		r.Workers, r.Batch, humanize.Comma(int64(r.Train)), humanize.Comma(int64(r.Test)),
		humanize.Comma(int64(r.Weights)), Lossless)
	var rows [][]any
	add := func(bound int, who string, shares [4]float64, ratio float64) {
		rows = append(rows, []any{CodedName(bound), who, percent(shares[0]), percent(shares[1]), percent(shares[2]),
			percent(shares[3]), fmt.Sprintf("%.1f", ratio)})
	}
	for _, l := range r.Lengths {
		add(l.Bound, "here", l.Shares, l.Ratio)
		add(l.Bound, "paper", paperShares[l.Bound], ratioOf(paperShares[l.Bound]))
	}
	if len(rows) > 0 {
		out.Table("Codes of a worker's gradients, by length in % (Table III)",
			[]string{"bound", "", "2 bits", "10 bits", "18 bits", "34 bits", "ratio"}, rows)
	}
	experiment.PrintTargets(out, r.Targets)
}

// Charts returns the accuracy by epoch (codec-accuracy) and by bytes sent (codec-bytes).
func (r *Report) Charts() []chart.Chart {
	byEpoch := chart.Chart{
		Name: "codec-accuracy", Title: "images recognised", Legend: chart.BottomRight,
		X: chart.Axis{Label: "epoch"}, Y: chart.Axis{Label: "% of the test images", Min: 80, Max: 100},
	}
	byBytes := chart.Chart{
		Name: "codec-bytes", Title: "images recognised, by what a worker has sent", Legend: chart.BottomRight,
		X: chart.Axis{Label: "MB", Log: true}, Y: byEpoch.Y,
	}
	steps := float64(r.Train / (r.Workers * r.Batch))
	for i, res := range r.Results {
		series := chart.Series{Name: res.Scheme, Colour: i, Kind: chart.Lines}
		sent := series
		for epoch, a := range res.Accuracy {
			series.Points = append(series.Points, chart.Point{X: float64(epoch + 1), Y: 100 * a})
			sent.Points = append(sent.Points, chart.Point{X: float64(epoch+1) * steps * res.Bytes / 1e6, Y: 100 * a})
		}
		byEpoch.Series, byBytes.Series = append(byEpoch.Series, series), append(byBytes.Series, sent)
	}
	return []chart.Chart{byEpoch, byBytes}
}
