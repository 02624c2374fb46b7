// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"fmt"
	"slices"
	"strings"

	"github.com/libra-ina/libra/internal/report"
	"github.com/libra-ina/libra/internal/report/chart"
	"github.com/libra-ina/libra/internal/report/experiment"
)

// figure is one of the paper's figures.
type figure struct {
	number  int
	name    string // of its charts
	title   string
	sweep   string
	schemes []string
	of      func(Point) Range
}

func figures() []figure {
	all := Schemes()
	plans := all[:len(all)-1]
	server, inside := func(p Point) Range { return p.Server }, func(p Point) Range { return p.InNetwork }
	traffic := func(p Point) Range { return p.Traffic }
	return []figure{
		{10, "server", "What reaches the server", ByWorkers, plans, server},
		{11, "in-network", "What is aggregated in the network", ByWorkers, plans[1:], inside},
		{12, "traffic", "Bytes times links", ByWorkers, all, traffic},
		{13, "deviation", "Bytes times links, by the deviation of the rates", ByDeviation, all, traffic},
	}
}

// Print writes the report for people, the paper's figures beside ours.
func (r *Report) Print(out *report.Printer) {
	out.Table("Figure 2: transfers of three fragments of four workers",
		[]string{"scheme", "at the server", "paper", "transfers", "paper", "with the workers' links"},
		experiment.Pick(r.Figure2, func(t Transfers) []any {
			return []any{t.Scheme, t.Server, t.PaperHas, t.Transfers, t.PaperMoved, t.All}
		}))
	for _, f := range figures() {
		r.printFigure(out, f)
	}
	out.Note("GB of 1000 MB, of one gradient of each worker: mean of %d placements (smallest, largest). Rates are normal around the links' rate and drawn again outside (0, 1], so none is above it; "+
		"deviation %g in Figures 10 to 12. Paths are shortest: any, or one over as many programmable switches as possible. The paper's "+
		"rows are what its text says.", r.Placements, DefaultDeviation)
	r.printCrossings(out)
	two := func(figure float64) string { return fmt.Sprintf("%.2f", figure) }
	out.Table("Plans and their lower bound", []string{
		"fabric", "MB", "plans", "above the bound, mean %", "largest %", "KRGS before its repair: memory taken, mean",
		"largest",
	}, experiment.Pick(r.Quality, func(q Quality) []any {
		return []any{q.Fabric, q.Model / mb, q.Plans, two(100 * q.Gap.Mean), two(100 * q.Gap.Max), two(q.Excess.Mean),
			two(q.Excess.Max)}
	}))
	out.Table("Where the paper's figures contradict its settings", []string{"where", "paper", "but"},
		experiment.Pick(r.Claims, func(c Claim) []any { return []any{c.Where, c.Paper, c.But} }))
}

func (r *Report) printFigure(out *report.Printer, f figure) {
	points := slices.DeleteFunc(slices.Clone(r.Points), func(p Point) bool {
		return p.Sweep != f.sweep || !slices.Contains(f.schemes, p.Scheme)
	})
	if len(points) == 0 {
		return
	}
	rows := experiment.Rows(points,
		func(p Point) []any { return []any{p.Fabric, p.Model / mb, p.Workers, p.Deviation} },
		func(p Point) []any {
			v := f.of(p)
			return []any{fmt.Sprintf("%.2f (%.2f, %.2f)", v.Mean/gb, v.Min/gb, v.Max/gb)}
		})
	for _, said := range readings {
		if said.figure != f.number {
			continue
		}
		row := []any{"paper, " + said.fabric, "", said.workers, ""}
		for _, scheme := range f.schemes {
			row = append(row, report.Cell("%.2f", said.of[scheme]))
		}
		rows = append(rows, row)
	}
	header := append([]string{"fabric", "MB", "workers", "deviation"}, f.schemes...)
	out.Table(fmt.Sprintf("Figure %d: %s, GB", f.number, f.title), header, rows)
}

func (r *Report) printCrossings(out *report.Printer) {
	if len(r.Crossings) == 0 {
		return
	}
	rows := experiment.Rows(r.Crossings,
		func(c Crossing) []any { return []any{c.Fabric, c.Model / mb, c.Workers, c.Scheme} },
		func(c Crossing) []any { return []any{c.String()} })
	out.Table("Deviations at which sharing memory costs more than a plan, on average",
		[]string{"fabric", "MB", "workers", "scheme", "than " + GOAT, "than " + Planned}, rows)
}

// Charts returns the paper's figures, for each fabric and model. Error bars are the smallest and
// largest.
func (r *Report) Charts() (all []chart.Chart) {
	fabrics := experiment.Distinct(r.Points, func(p Point) string { return p.Fabric })
	models := experiment.Distinct(r.Points, func(p Point) int { return p.Model })
	for _, f := range figures() {
		for _, fabric := range fabrics {
			for _, model := range models {
				all = append(all, r.chart(f, fabric, model))
			}
		}
	}
	return all
}

func (r *Report) chart(f figure, fabric string, model int) chart.Chart {
	file := strings.ReplaceAll(fabric, "–", "-")
	c := chart.Chart{
		Name:   fmt.Sprintf("%s-%s-%d", f.name, file, model/mb),
		Title:  fmt.Sprintf("%s: %s, %d MB", f.title, fabric, model/mb),
		Legend: chart.TopLeft,
		X:      chart.Axis{Label: "workers", Room: 1.05},
		Y:      chart.Axis{Label: "GB", Room: 1.6},
	}
	if f.sweep == ByDeviation {
		c.X.Label = "standard deviation of the rates"
	}
	for i, scheme := range f.schemes {
		s := chart.Series{Name: scheme, Colour: slices.Index(Schemes(), scheme), Variant: i}
		for _, p := range r.Points {
			if p.Fabric != fabric || p.Model != model || p.Sweep != f.sweep || p.Scheme != scheme {
				continue
			}
			v := f.of(p)
			at := chart.Point{X: float64(p.Workers), Y: v.Mean / gb, Low: v.Min / gb, High: v.Max / gb}
			if f.sweep == ByDeviation {
				at.X = p.Deviation
			}
			s.Points = append(s.Points, at)
		}
		if len(s.Points) > 0 {
			c.Series = append(c.Series, s)
		}
	}
	for i, said := range readings {
		if said.figure != f.number || said.fabric != fabric || len(c.Series) == 0 {
			continue
		}
		s := chart.Series{Name: "paper", Kind: chart.Dots, Colour: chart.Paper, Variant: i % 2}
		for _, scheme := range f.schemes {
			if gb := said.of[scheme]; gb > 0 {
				s.Points = append(s.Points, chart.Point{X: float64(said.workers), Y: gb})
			}
		}
		c.Series = append(c.Series, s)
	}
	return c
}
