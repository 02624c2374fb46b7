// SPDX-License-Identifier: Apache-2.0

package hotset

import (
	"fmt"
	"slices"

	"github.com/libra-ina/libra/internal/report"
	"github.com/libra-ina/libra/internal/report/chart"
	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/wire"
)

// Report is the outcome of a study. It marshals to one JSON object. Shares and
// precisions are between 0 and 1.
type Report struct {
	Logs      []Log       `json:"logs"`
	Precision []Precision `json:"precision"`
	Packets   []Packets   `json:"packets"`
	Lanes     []Lanes     `json:"lanes"`
	// Samples, MinGain and BatchRows are those of the Config.
	Samples   int     `json:"rounds"`
	MinGain   float64 `json:"min_gain"`
	BatchRows int     `json:"batch_rows"`
}

// Print writes the report for people, the paper's figures beside ours.
func (r *Report) Print(out *report.Printer) {
	r.printLogs(out)
	r.printPrecision(out)
	r.printPackets(out)
	r.printLanes(out)
}

func percent(share float64) string { return fmt.Sprintf("%.1f %%", 100*share) }

func form(combined bool) string {
	if combined {
		return "combined"
	}
	return "every update"
}

func (r *Report) printLogs(out *report.Printer) {
	rows := experiment.Pick(r.Logs, func(l Log) []any {
		return []any{l.Name, l.Rows, l.Updates, l.Parameters, percent(l.Top30K)}
	})
	rows = append(rows,
		[]any{"paper, Task 1 (§3.1)", "", "", "150 million", "over 50 %"},
		[]any{"paper, Task 2 (§3.1)", "", "", "9 million", "about 70 %"})
	out.Table("Training logs", []string{"log", "rows", "updates", "parameters", "updates of the top 30,000"}, rows)
}

func (r *Report) rates() []float64 {
	for _, p := range r.Precision {
		if len(p.Rates) > 0 {
			return experiment.Pick(p.Rates, func(q RatePrecision) float64 { return q.Rate })
		}
	}
	return nil
}

func (r *Report) printPrecision(out *report.Printer) {
	header := []string{"log", "step", "|Hg|", "share", "least"}
	paper := []any{"paper, all models (§5.3)", 1000, "", "", ""}
	for _, rate := range r.rates() {
		header = append(header, fmt.Sprintf("%% at %.3g %%", 100*rate))
		paper = append(paper, map[float64]string{0.04: "over 80", 0.08: "over 90"}[rate])
	}
	var rows [][]any
	for _, p := range r.Precision {
		row := []any{p.Log, p.Step, p.Hot, percent(p.Share), p.Least}
		for _, q := range p.Rates {
			row = append(row, fmt.Sprintf("%.1f (%.1f, %.1f)", 100*q.Median, 100*q.Min, 100*q.Max))
		}
		if p.Hot == 0 {
			row = append(row, "no step gains enough")
		}
		rows = append(rows, row)
	}
	out.Table("(A) Precision of hot parameters found in a sample, |Hg ∩ Hs| / |Hg|", header, append(rows, paper))
	out.Note("Each cell: median of %d samples (smallest, largest). Hg is found in the whole log, Hs in the sample, both by the rule of "+
		"§5.3: parameters are added, step by step, until a step gains less than %.3g %% of all updates. The paper's step is 1,000, for "+
		"logs of production size. \"least\" is how often the last parameter of Hg is updated in the whole log: a sample of 4 %% shows it "+
		"0.04 x least times. Where that is below 1, much of Hg is not in the sample at all and no method could find it; a log that is "+
		"smaller than the paper's asks for a smaller step.", r.Samples, 100*r.MinGain)
}

func (r *Report) printPackets(out *report.Printer) {
	rows := experiment.Pick(r.Packets, func(p Packets) []any {
		batches := float64(max(1, p.Batches))
		return []any{
			p.Log, form(p.Combined), p.Method, fmt.Sprintf("%.0f", float64(p.Pairs)/batches),
			fmt.Sprintf("%.1f", float64(p.Packets)/batches), percent(p.Unfilled()),
			fmt.Sprintf("%.3f", p.Recirculations), p.Worst, percent(p.None),
		}
	})
	rows = append(rows,
		[]any{"paper, both tasks (§5.4)", "", "random", "", "", "", "about 10"},
		[]any{"paper, both tasks (§5.4)", "", "heat-based, Algorithm 1", "", "", "", "below 1"})
	out.Table("(B) Recirculations of a packet", []string{
		"log", "batches", "placement and packing", "pairs a batch", "packets", "unfilled", "recirculations", "worst",
		"one pass",
	}, rows)
	out.Note("Mini-batches of %d rows, %d registers, packets of %d pairs (192 bytes; the paper does not give its number of registers). "+
		"A packet that carries n pairs of one register is recirculated n-1 times. \"Combined\" batches hold each key once, in ascending "+
		"order, as a worker pushes them; \"every update\" sends a pair for each occurrence, so that repeated keys meet in one packet "+
		"whatever the placement. Lane-aligned packets are stripes, whose lane j is wired to register j. Dense stripes are for "+
		"aggregators in memory (XDP), which never recirculate; the figure is what they would cost a switch.",
		r.BatchRows, registers, capacity)
}

func (r *Report) printLanes(out *report.Printer) {
	rows := experiment.Pick(r.Lanes, func(l Lanes) []any {
		if l.Batches == 0 {
			return []any{l.Log, form(l.Combined), l.Size}
		}
		return []any{l.Log, form(l.Combined), l.Size, fmt.Sprintf("%.0f", l.HotPairs), percent(l.LaneAligned),
			percent(l.Dense)}
	})
	out.Table("(C) Unfilled lanes of hot frames by batch size",
		[]string{"log", "batches", "size", "hot pairs a batch", "lane-aligned", "dense"}, rows)
	out.Note("Hot frames of up to %d stripes. The size counts all pairs of a batch, hot and cold. No figures: the log has no such batch.", wire.DefaultStripes)
}

// Charts returns precision (Figure 15 of the paper), recirculations (Figure 16)
// and lanes. Colours tell logs apart, dashes and glyphs variants.
func (r *Report) Charts() []chart.Chart {
	return []chart.Chart{r.precisionChart(), r.packetChart(), r.laneChart()}
}

func (r *Report) precisionChart() chart.Chart {
	rates := r.rates()
	for i := range rates {
		rates[i] *= 100
	}
	c := chart.Chart{
		Name: "precision", Title: "Hot parameters found in a sample", Legend: chart.TopLeft,
		X: chart.Axis{Label: "sampled rows (%)", Log: true, Ticks: chart.Ticks("%.3g", rates...), Room: 1.05},
		Y: chart.Axis{Label: "|Hg ∩ Hs| / |Hg| (%)"},
	}
	steps := experiment.Distinct(r.Precision, func(q Precision) int { return q.Step })
	for _, q := range r.Precision {
		s := chart.Series{Name: fmt.Sprintf("%s, step %d", q.Log, q.Step), Colour: r.logNumber(q.Log),
			Variant: slices.Index(steps, q.Step)}
		for _, v := range q.Rates {
			s.Points = append(s.Points, chart.Point{X: 100 * v.Rate, Y: 100 * v.Median})
		}
		c.Series = append(c.Series, s)
	}
	c.Series = append(c.Series, chart.Series{
		Name: "paper: at least", Kind: chart.Dots, Colour: chart.Paper, Points: []chart.Point{{X: 4, Y: 80}, {X: 8, Y: 90}},
	})
	// The legend stands above what 100 % reaches.
	c.Y.Max, c.Y.Ticks = 100/(1-0.04*min(float64(len(c.Series)), 18)), chart.Ticks("%d", 0, 20, 40, 60, 80, 100)
	return c
}

func (r *Report) logNumber(name string) int {
	return slices.IndexFunc(r.Logs, func(l Log) bool { return l.Name == name })
}

// packetChart is of combined batches.
func (r *Report) packetChart() chart.Chart {
	c := chart.Chart{
		Name: "recirculations", Title: "Recirculations of a packet, keys combined within a batch", Legend: chart.TopRight,
		Y: chart.Axis{Label: "mean recirculations", Room: 1.4},
	}
	combined := slices.DeleteFunc(slices.Clone(r.Packets), func(p Packets) bool { return !p.Combined })
	chart.AddBars(&c, combined,
		func(p Packets) string { return p.Log }, func(p Packets) string { return string(p.Method) },
		func(p Packets) []chart.Part {
			return []chart.Part{{Name: string(p.Method), Colour: slices.Index(methods, p.Method), Height: p.Recirculations}}
		})
	return c
}

func (r *Report) laneChart() chart.Chart {
	c := chart.Chart{
		Name: "lanes", Title: "Unfilled lanes of lane-aligned frames", Legend: chart.TopRight,
		X: chart.Axis{Label: "pairs in a batch, hot and cold", Log: true, Room: 1.1},
		Y: chart.Axis{Label: "unfilled lanes (%)", Max: 100},
	}
	for i, l := range r.Logs {
		for variant, combined := range []bool{true, false} {
			c.Series = append(c.Series, chart.Series{
				Name: l.Name + ", " + form(combined), Colour: i, Variant: variant,
				Points: chart.Points(r.Lanes,
					func(q Lanes) bool { return q.Log == l.Name && q.Combined == combined && q.Batches > 0 },
					func(q Lanes) (x, y float64) { return float64(q.Size), 100 * q.LaneAligned }),
			})
		}
	}
	return c
}
