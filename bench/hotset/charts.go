package hotset

import (
	"fmt"
	"slices"

	"github.com/libra-ina/libra/bench/harness"
)

// Charts returns precision (Figure 15 of the paper), recirculations (Figure 16)
// and lanes. Colours tell logs apart, dashes and glyphs variants.
func (r *Report) Charts() []harness.Chart {
	return []harness.Chart{r.precisionChart(), r.packetChart(), r.laneChart()}
}

func (r *Report) precisionChart() harness.Chart {
	rates := r.rates()
	for i := range rates {
		rates[i] *= 100
	}
	c := harness.Chart{
		Name: "precision", Title: "Hot parameters found in a sample", Legend: harness.BottomRight,
		X: harness.Axis{Label: "sampled rows (%)", Log: true, Ticks: harness.Ticks("%.3g", rates...), Room: 1.05},
		Y: harness.Axis{Label: "|Hg ∩ Hs| / |Hg| (%)", Max: 100},
	}
	steps := harness.Distinct(r.Precision, func(q Precision) int { return q.Step })
	for _, q := range r.Precision {
		s := harness.Series{Name: fmt.Sprintf("%s, step %d", q.Log, q.Step), Colour: r.logNumber(q.Log), Variant: slices.Index(steps, q.Step)}
		for _, v := range q.Rates {
			s.Points = append(s.Points, harness.Point{X: 100 * v.Rate, Y: 100 * v.Median})
		}
		c.Series = append(c.Series, s)
	}
	c.Series = append(c.Series, harness.Series{
		Name: "paper: at least", Kind: harness.Dots, Colour: harness.Paper, Points: []harness.Point{{X: 4, Y: 80}, {X: 8, Y: 90}},
	})
	return c
}

func (r *Report) logNumber(name string) int {
	return slices.IndexFunc(r.Logs, func(l Log) bool { return l.Name == name })
}

// packetChart is of combined batches.
func (r *Report) packetChart() harness.Chart {
	c := harness.Chart{
		Name: "recirculations", Title: "Recirculations of a packet, keys combined within a batch", Legend: harness.TopRight,
		Y: harness.Axis{Label: "mean recirculations", Room: 1.4},
	}
	combined := slices.DeleteFunc(slices.Clone(r.Packets), func(p Packets) bool { return !p.Combined })
	harness.AddBars(&c, combined,
		func(p Packets) string { return p.Log }, func(p Packets) string { return string(p.Method) },
		func(p Packets) []harness.Part {
			return []harness.Part{{Name: string(p.Method), Colour: slices.Index(methods, p.Method), Height: p.Recirculations}}
		})
	return c
}

func (r *Report) laneChart() harness.Chart {
	c := harness.Chart{
		Name: "lanes", Title: "Unfilled lanes of lane-aligned frames", Legend: harness.TopRight,
		X: harness.Axis{Label: "pairs in a batch, hot and cold", Log: true, Room: 1.1},
		Y: harness.Axis{Label: "unfilled lanes (%)", Max: 100},
	}
	for i, l := range r.Logs {
		for variant, combined := range []bool{true, false} {
			c.Series = append(c.Series, harness.Series{
				Name: l.Name + ", " + form(combined), Colour: i, Variant: variant,
				Points: harness.Points(r.Lanes,
					func(q Lanes) bool { return q.Log == l.Name && q.Combined == combined && q.Batches > 0 },
					func(q Lanes) (x, y float64) { return float64(q.Size), 100 * q.LaneAligned }),
			})
		}
	}
	return c
}
