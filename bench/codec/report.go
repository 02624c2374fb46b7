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
}

// Result is what was measured of one method.
type Result struct {
	Method  string   `json:"method"`
	Bound   int      `json:"bound,omitempty"` // E of an error below 2^-E; 0: nothing is lost
	Sample           // medians over the rounds
	Samples []Sample `json:"samples"`
	// Line is the rate of a line, in Gb/s, above which encoding, sending and decoding one after the
	// other take longer than sending the values. It is 0 or less if nothing is shorter.
	Line float64 `json:"line_gbps"`
	// Gains are the times that these take on some lines.
	Gains []Gain `json:"gains"`
}

// Gain is what shortening values does to the time to send them.
type Gain struct {
	Line float64 `json:"line_gbps"`
	// Time is that of encoding, sending and decoding one after the other, divided by that of sending
	// the values.
	Time float64 `json:"time"`
}

// Report is what was measured. It marshals to one JSON object.
type Report struct {
	CPU         string                   `json:"arch"`
	Values      int                      `json:"values"`
	Rounds      int                      `json:"rounds"`
	Results     []Result                 `json:"results"`
	Unavailable []experiment.Unavailable `json:"unavailable,omitempty"`
	Targets     []experiment.Target      `json:"targets,omitempty"`
}

// label is the name of a method in tables.
func label(method string, bound int) string {
	if bound == 0 {
		return method
	}
	return fmt.Sprintf("%s 2^-%d", method, bound)
}

// finish completes the report when all is measured.
func (r *Report) finish(lines []float64) {
	for i := range r.Results {
		res := &r.Results[i]
		res.Sample = experiment.MedianOf(res.Samples)
		coding := 1/res.Encode + 1/res.Decode // seconds for 8 Gb
		res.Line = 8 * (1 - 1/res.Ratio) / coding
		for _, line := range lines {
			res.Gains = append(res.Gains, Gain{line, 1/res.Ratio + line/8*coding})
		}
	}
	for _, res := range r.Results {
		if res.Method == Codec {
			r.addTargets(&res)
		}
	}
}

// addTargets compares package codec with what is wanted of it.
func (r *Report) addTargets(res *Result) {
	want := func(what string, least, got float64) {
		verdict := experiment.AtLeast(least, got)
		r.Targets = append(r.Targets, experiment.Target{What: fmt.Sprintf("2^-%d: %s", res.Bound, what), Verdict: verdict})
	}
	// beside takes ratios within rounds.
	beside := func(what string, least float64, method string, figure func(Sample) float64) {
		other := experiment.Find(r.Results, func(o Result) bool { return o.Method == method && o.Bound == res.Bound })
		if other != nil {
			n := min(len(res.Samples), len(other.Samples))
			want(fmt.Sprintf("%s divided by %s's", what, method), least, experiment.Ratios(
				experiment.Pick(res.Samples[:n], figure), experiment.Pick(other.Samples[:n], figure)).Median)
		}
	}
	encode := func(s Sample) float64 { return s.Encode }
	want("GB/s of encoding", 1.5, res.Encode)
	want("GB/s of decoding", 1.5, res.Decode)
	beside("rate of encoding", 3, Plain, encode)
	beside("rate of decoding", 2, Plain, func(s Sample) float64 { return s.Decode })
	beside("rate of encoding", 4, ZFP, encode)
	beside("ratio", 1, ZFP, func(s Sample) float64 { return s.Ratio })
}

// DropTargets implements [experiment.WithTargets].
func (r *Report) DropTargets() { r.Targets = nil }

// Print writes the report for people.
func (r *Report) Print(out *report.Printer) {
	rows := experiment.Pick(r.Results, func(res Result) []any {
		return []any{
			label(res.Method, res.Bound), fmt.Sprintf("%.2f", res.Encode), fmt.Sprintf("%.2f", res.Decode),
			fmt.Sprintf("%.2f", res.Ratio), fmt.Sprintf("%.1f", max(0, res.Line)),
		}
	})
	out.Table(fmt.Sprintf("Shortening %s on one core (%s): medians of %s; all values came back within their bounds",
		english.Plural(r.Values, "gradient", ""), r.CPU, english.Plural(r.Rounds, "round", "")),
		[]string{"method", "encode GB/s", "decode GB/s", "ratio", "pays below Gb/s"}, rows)
	if len(r.Results) > 0 && len(r.Results[0].Gains) > 0 {
		heads := []string{"method"}
		for _, g := range r.Results[0].Gains {
			heads = append(heads, fmt.Sprintf("%v Gb/s", g.Line))
		}
		out.Table("Time of encoding, sending and decoding, one after the other, divided by that of sending the values", heads,
			experiment.Pick(r.Results, func(res Result) []any {
				row := []any{label(res.Method, res.Bound)}
				for _, g := range res.Gains {
					row = append(row, fmt.Sprintf("%.2f", g.Time))
				}
				return row
			}))
		out.Note("The paper has trainings that take 2 to 4 times as long with snappy and SZ, at 10 Gb/s (Fig. 7).")
	}
	experiment.PrintUnavailable(out, r.Unavailable)
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
		name := label(res.Method, res.Bound)
		bars = append(bars, bar{name, "encode", res.Encode, 0}, bar{name, "decode", res.Decode, 1})
	}
	chart.AddBars(&c, bars, func(b bar) string { return b.method }, func(b bar) string { return b.what },
		func(b bar) []chart.Part {
			return []chart.Part{{Name: b.what, Colour: b.colour, Height: b.rate, Low: b.rate, High: b.rate}}
		})
	return []chart.Chart{c}
}
