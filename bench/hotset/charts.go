package hotset

import (
	"fmt"

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
	steps := map[int]int{} // by place
	for _, q := range r.Precision {
		if _, ok := steps[q.Step]; !ok {
			steps[q.Step] = len(steps)
		}
		s := harness.Series{Name: fmt.Sprintf("%s, step %d", q.Log, q.Step), Colour: r.logNumber(q.Log), Variant: steps[q.Step]}
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
	for i, l := range r.Logs {
		if l.Name == name {
			return i
		}
	}
	return len(r.Logs)
}

// packetChart is of combined batches.
func (r *Report) packetChart() harness.Chart {
	c := harness.Chart{
		Name: "recirculations", Title: "Recirculations of a packet, keys combined within a batch", Legend: harness.TopRight,
		Y: harness.Axis{Label: "mean recirculations", Room: 1.4},
	}
	for _, l := range r.Logs {
		c.X.Names = append(c.X.Names, l.Name)
	}
	for i, method := range methods {
		place, width := harness.Beside(i, len(methods))
		c.Series = append(c.Series, harness.Series{
			Name: string(method), Kind: harness.Bars, Colour: i, Width: width,
			Points: harness.Points(r.Packets,
				func(p Packets) bool { return p.Combined && p.Method == method },
				func(p Packets) (x, y float64) { return float64(r.logNumber(p.Log)) + place, p.Recirculations }),
		})
	}
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
