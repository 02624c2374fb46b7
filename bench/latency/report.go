// SPDX-License-Identifier: Apache-2.0

package latency

import (
	"fmt"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"

	"github.com/libra-ina/libra/internal/report"
	"github.com/libra-ina/libra/internal/report/chart"
	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/telemetry/breakdown"
)

// Libra is the name of what is compared with the baselines.
const Libra = "libra"

// The shares of updates that the paper's top 20,000 parameters have, of a recommendation and of a
// search application.
const (
	paperTop              = 20_000
	paperRecommendation   = 0.5
	paperSearch           = 0.7
	mostFor64, manySender = 1.3, 64
	leastJoined           = 0.95
)

// SenderSample is one measurement.
type SenderSample struct {
	Nanoseconds float64 `json:"server_cpu_ns"` // of the server, for a frame of one row
}

// SavingSample is what the server saves if the aggregator sums the hottest rows: shares of what the
// same pushes and pulls cost it without.
type SavingSample struct {
	Predicted   float64 `json:"predicted"`    // of server process, by the paper (§4): the hot share of the pushed rows
	PushProcess float64 `json:"push_process"` // of the server process of pushes
	Process     float64 `json:"process"`      // of that of pushes and pulls
	CPU         float64 `json:"cpu"`          // of the CPU time of its thread, with a harvest and a commit
}

// Senders is what a server's frames cost with so many senders.
type Senders struct {
	Program      string `json:"program"`
	Senders      int    `json:"senders"`
	SenderSample        // medians over the rounds
	// Ratio is the median over the rounds of the cost divided by that of the first number of senders.
	Ratio   float64        `json:"ratio"`
	Samples []SenderSample `json:"samples"`
}

// Report is what was measured. It marshals to one JSON object.
type Report struct {
	Workers int `json:"workers"`
	Batch   int `json:"batch"`
	Sample  int `json:"sample"`
	Frames  int `json:"frames"`
	Rounds  int `json:"rounds"`
	// Job is the medians of Jobs: the shares of the parts of frames' times.
	Job       JobSample         `json:"job"`
	Jobs      []JobSample       `json:"jobs"`
	Latencies []breakdown.Times `json:"latencies"`
	Saving    SavingSample      `json:"saving"` // medians of Savings
	Savings   []SavingSample    `json:"savings"`
	Senders   []Senders         `json:"senders"`
	Hot       []HotShare        `json:"hot,omitempty"`     // a log each
	Traffic   []Traffic         `json:"traffic,omitempty"` // a capture each

	Unavailable []experiment.Unavailable `json:"unavailable,omitempty"`
	Targets     []experiment.Target      `json:"targets,omitempty"`

	times *breakdown.Breakdown
}

// finish completes the report when all is measured.
func (r *Report) finish() {
	r.Job, r.Latencies = experiment.MedianOf(r.Jobs), r.times.All()
	if len(r.Savings) > 0 { // none, if it was interrupted
		r.Saving = experiment.MedianOf(r.Savings)
	}
	var measured []Senders
	for _, s := range r.Senders {
		if len(s.Samples) == 0 {
			continue
		}
		s.SenderSample = experiment.MedianOf(s.Samples)
		one := experiment.Find(r.Senders, func(o Senders) bool { return o.Program == s.Program })
		cost := func(s SenderSample) float64 { return s.Nanoseconds }
		n := min(len(s.Samples), len(one.Samples))
		s.Ratio = experiment.Ratios(experiment.Pick(s.Samples[:n], cost), experiment.Pick(one.Samples[:n], cost)).Median
		measured = append(measured, s)
		if s.Program == Libra && s.Senders == manySender && one.Senders == 1 {
			verdict := experiment.AtMost(mostFor64, s.Ratio)
			r.Targets = append(r.Targets, experiment.Target{What: "cost of a frame from 64 senders, of one's", Verdict: verdict})
		}
	}
	r.Senders = measured
	joined := experiment.AtLeast(leastJoined, r.Job.Joined)
	r.Targets = append(r.Targets, experiment.Target{What: "frames whose halves are joined", Verdict: joined})
}

// DropTargets implements [experiment.WithTargets].
func (r *Report) DropTargets() { r.Targets = nil }

// ops are the operations whose parts are shown.
func (s *JobSample) ops() []opShares {
	return []opShares{{"push, hot", &s.Hot}, {"push, cold", &s.Cold}, {"pull", &s.Pull}}
}

type opShares struct {
	name   string
	shares *Shares
}

// Print writes the report for people.
func (r *Report) Print(out *report.Printer) {
	breakdown.PrintTimes(out, fmt.Sprintf("Frames of %s in batches of %s, in all rounds (Fig. 4)",
		english.Plural(r.Workers, "worker", ""), english.Plural(r.Batch, "row", "")), r.Latencies)
	var rows [][]any
	for _, op := range r.Job.ops() {
		row := []any{op.name}
		for _, v := range op.shares.all() {
			row = append(row, fmt.Sprintf("%.1f %%", 100**v))
		}
		rows = append(rows, row)
	}
	out.Table(fmt.Sprintf("Parts of the mean time: medians of %s (Fig. 5; there, server process and network are the largest)",
		english.Plural(r.Rounds, "round", "")), append([]string{"of"}, partNames...), rows)
	percent := func(share float64) string { return fmt.Sprintf("%.1f %%", 100*share) }
	figures := [][]any{{"arithmetic, of the server process of a push", "at most 2.5 %", percent(r.Job.Arithmetic)}}
	if len(r.Savings) > 0 {
		predicted := percent(r.Saving.Predicted)
		figures = append(figures,
			[]any{"saved by the hot set, of server process: pushes", predicted, percent(r.Saving.PushProcess)},
			[]any{"of server process: pushes and pulls", predicted, percent(r.Saving.Process)},
			[]any{"of the server's CPU time", predicted, percent(r.Saving.CPU)})
	}
	out.Table(fmt.Sprintf("The server, by the paper and here: medians of %s", english.Plural(r.Rounds, "round", "")),
		[]string{"what", "paper", "measured"}, figures)
	r.printTraffic(out)
	if len(r.Senders) > 0 {
		out.Table(fmt.Sprintf("CPU time of the server for a frame of one row: medians of %s (Fig. 9; there, it grows linearly)",
			english.Plural(r.Rounds, "round", "")), []string{"program", "senders", "ns a frame", "of the first"},
			experiment.Pick(r.Senders, func(s Senders) []any {
				return []any{s.Program, s.Senders, fmt.Sprintf("%.0f", s.Nanoseconds), fmt.Sprintf("%.2f", s.Ratio)}
			}))
	}
	if len(r.Hot) > 0 {
		out.Table("Updates of the hottest parameters (Fig. 10; there, the top 20,000 have 50 % in a recommendation and 70 % in a search application)",
			[]string{"log", "parameters", "updates", "hottest", "share"}, experiment.Pick(r.Hot, func(h HotShare) []any {
				return []any{h.File, humanize.Comma(int64(h.Parameters)), humanize.Comma(int64(h.Updates)),
					humanize.Comma(int64(h.Top)),
					fmt.Sprintf("%.1f %%", 100*h.Share)}
			}))
	}
	experiment.PrintUnavailable(out, r.Unavailable)
	experiment.PrintTargets(out, r.Targets)
}

// Charts returns the distributions of the parts of each operation (latency-hot and so on), their
// shares (shares), the sizes of answers and the times between requests (answers, gaps), the cost by
// senders (senders) and the share of the hottest parameters (hot).
func (r *Report) Charts() []chart.Chart {
	all := r.times.CDFs()
	shares := chart.Chart{Name: "shares", Title: "parts of the mean time of a frame", X: chart.Axis{Label: "frames"},
		Y: chart.Axis{Label: "share", Room: 1.5}}
	chart.AddBars(&shares, r.Job.ops(), func(o opShares) string { return o.name }, func(opShares) string { return "" },
		func(o opShares) (parts []chart.Part) {
			for i, v := range o.shares.all() {
				parts = append(parts, chart.Part{Name: partNames[i], Colour: i, Height: *v})
			}
			return parts
		})
	all = append(append(all, shares), r.trafficCharts()...)
	if numbers := experiment.Distinct(r.Senders, func(s Senders) int { return s.Senders }); len(numbers) > 1 {
		c := chart.Chart{Name: "senders", Title: "what a frame of one row costs the server",
			X: chart.Axis{Label: "senders, or connections", Log: true},
			Y: chart.Axis{Label: "ns of CPU time", Log: true}}
		for i, program := range experiment.Distinct(r.Senders, func(s Senders) string { return s.Program }) {
			c.Series = append(c.Series, chart.Series{Name: program, Colour: i, Points: chart.Points(r.Senders,
				func(s Senders) bool { return s.Program == program },
				func(s Senders) (x, y float64) { return float64(s.Senders), s.Nanoseconds })})
		}
		all = append(all, c)
	}
	if len(r.Hot) > 0 {
		all = append(all, r.hotChart())
	}
	return all
}

func (r *Report) hotChart() chart.Chart {
	c := chart.Chart{Name: "hot", Title: "updates of the hottest parameters", Legend: chart.BottomRight,
		X: chart.Axis{Label: "hottest parameters"}, Y: chart.Axis{Label: "share of updates", Max: 1}}
	for i, h := range r.Hot {
		s := chart.Series{Name: h.File[strings.LastIndexByte(h.File, '/')+1:], Colour: i}
		for k, share := range h.Curve {
			s.Points = append(s.Points, chart.Point{X: float64(h.Top) * float64(k) / float64(len(h.Curve)-1), Y: share})
		}
		c.Series = append(c.Series, s)
	}
	if len(r.Hot) > 0 && r.Hot[0].Top == paperTop {
		for i, share := range []float64{paperRecommendation, paperSearch} {
			name := []string{"paper, recommendation", "paper, search"}[i]
			c.Series = append(c.Series, chart.Series{Name: name, Kind: chart.Dots,
				Colour: chart.Paper, Variant: i, Points: []chart.Point{{X: paperTop, Y: share}}})
		}
	}
	return c
}
