// SPDX-License-Identifier: Apache-2.0

package codec

import (
	"fmt"

	"github.com/dustin/go-humanize/english"

	"github.com/libra-ina/libra/internal/report"
	"github.com/libra-ina/libra/internal/report/chart"
	"github.com/libra-ina/libra/internal/report/experiment"
)

// Sample is one measurement, of one core.
type Sample struct {
	Encode float64 `json:"encode_gb_per_s"` // of float32 values
	Decode float64 `json:"decode_gb_per_s"`
	Ratio  float64 `json:"ratio"` // of the values' length to that of the codes
	// Line is the rate of a line, in Gb/s, above which encoding, sending and decoding one after the other
	// take longer than sending the values. It is 0 or less if nothing is shorter.
	Line float64 `json:"line_gbps"`
}

// Result is what was measured of one method.
type Result struct {
	Method  string   `json:"method"`
	Sample           // medians over the rounds
	Samples []Sample `json:"samples"`

	ours bool
}

// Report is what was measured. It marshals to one JSON object.
type Report struct {
	CPU     string              `json:"arch"`
	Values  int                 `json:"values"`
	Rounds  int                 `json:"rounds"`
	Results []Result            `json:"results"`
	Targets []experiment.Target `json:"targets,omitempty"`
}

// finish completes the report when all is measured.
func (r *Report) finish() {
	for i := range r.Results {
		res := &r.Results[i]
		res.Sample = experiment.MedianOf(res.Samples)
		if !res.ours {
			continue
		}
		want := func(what string, least, got float64) {
			verdict := experiment.AtLeast(least, got)
			r.Targets = append(r.Targets, experiment.Target{What: res.Method + ": " + what, Verdict: verdict})
		}
		want("GB/s of encoding", 1.5, res.Encode)
		want("GB/s of decoding", 1.5, res.Decode)
	}
}

// DropTargets implements [experiment.WithTargets].
func (r *Report) DropTargets() { r.Targets = nil }

// Print writes the report for people.
func (r *Report) Print(out *report.Printer) {
	rows := experiment.Pick(r.Results, func(res Result) []any {
		return []any{
			res.Method, fmt.Sprintf("%.2f", res.Encode), fmt.Sprintf("%.2f", res.Decode), fmt.Sprintf("%.2f", res.Ratio),
			fmt.Sprintf("%.1f", max(0, res.Line)),
		}
	})
	out.Table(fmt.Sprintf("Shortening %s on one core (%s): medians of %s; all values came back within their bounds",
		english.Plural(r.Values, "gradient", ""), r.CPU, english.Plural(r.Rounds, "round", "")),
		[]string{"method", "encode GB/s", "decode GB/s", "ratio", "pays below Gb/s"}, rows)
	experiment.PrintTargets(out, r.Targets)
}

// Charts returns the rates of all methods (codec).
func (r *Report) Charts() []chart.Chart {
	c := chart.Chart{
		Name: "codec", Title: "shortening gradients on one core",
		X: chart.Axis{Label: "method"}, Y: chart.Axis{Label: "GB/s of float32", Room: 1.35},
	}
	type bar struct {
		method, what string
		rate         float64
		colour       int
	}
	var bars []bar
	for _, res := range r.Results {
		bars = append(bars, bar{res.Method, "encode", res.Encode, 0}, bar{res.Method, "decode", res.Decode, 1})
	}
	chart.AddBars(&c, bars, func(b bar) string { return b.method }, func(b bar) string { return b.what },
		func(b bar) []chart.Part {
			return []chart.Part{{Name: b.what, Colour: b.colour, Height: b.rate, Low: b.rate, High: b.rate}}
		})
	return []chart.Chart{c}
}
