package arithmetic

import (
	"math"
	"strings"

	"github.com/libra-ina/libra/bench/harness"
)

// least is where logarithmic charts end below: a sum that is exactly right has no
// place there.
const least = 1e-9

// errorAxis is that of errors up to 1.
func errorAxis(label string) harness.Axis {
	var powers []float64
	for e := -9; e <= 0; e++ {
		powers = append(powers, math.Pow10(e))
	}
	return harness.Axis{Label: label, Log: true, Ticks: harness.Ticks("%.0e", powers...), Min: least, Max: 1}
}

// Charts returns precision (Table 2), longsums and memory (§5.7).
func (r *Report) Charts() []harness.Chart {
	return []harness.Chart{r.precisionChart(), r.longSumChart(), r.memoryChart()}
}

// precisionChart shows what precision lacks, the paper's beside ours.
func (r *Report) precisionChart() harness.Chart {
	c := harness.Chart{
		Name: "precision", Title: "One addition: 1 - precision (Table 2)", Y: errorAxis("average and median; 1e-9 stands for less"),
		Series: []harness.Series{
			{Name: "ours, average", Kind: harness.Dots, Colour: 2},
			{Name: "ours, median", Kind: harness.Dots, Colour: 2, Variant: 1},
			{Name: "paper, average", Kind: harness.Dots, Colour: harness.Paper},
			{Name: "paper, median", Kind: harness.Dots, Colour: harness.Paper, Variant: 1},
		},
	}
	for i, p := range r.Precision {
		add := func(series int, precision float64) {
			s := &c.Series[series]
			s.Points = append(s.Points, harness.Point{X: float64(i), Y: max(1-precision, least)})
		}
		add(0, p.Average)
		add(1, p.Median)
		if p.Paper != nil {
			add(2, p.Paper.Average)
			add(3, p.Paper.Median)
		}
		set, _, _ := strings.Cut(p.DataSet, " ")
		c.X.Names = append(c.X.Names, string(p.Arithmetic)+", "+set)
	}
	return c
}

// longSumChart has a colour for each arithmetic, and dashes and glyphs for each
// data set.
func (r *Report) longSumChart() harness.Chart {
	c := harness.Chart{
		Name: "longsums", Title: "Long sums",
		X: harness.Axis{Label: "additions", Log: true, Room: 2}, Y: errorAxis("relative error, median"),
	}
	for i, a := range arithmetics {
		for j, d := range r.DataSets {
			c.Series = append(c.Series, harness.Series{
				Name: string(a) + ", " + d.Name, Colour: i, Variant: j,
				Points: harness.Points(r.LongSums,
					func(s LongSum) bool { return s.Arithmetic == a && s.DataSet == d.Name },
					func(s LongSum) (x, y float64) { return float64(s.Additions), max(s.Median, least) }),
			})
		}
	}
	return c
}

// memoryChart stacks the parts of each account.
func (r *Report) memoryChart() harness.Chart {
	c := harness.Chart{
		Name: "memory", Title: "Memory for 30,000 hot parameters (§5.7)",
		Y: harness.Axis{Label: "KB", Max: 1000}, // room for the legend
	}
	harness.AddBars(&c, r.Memory, func(m Memory) string { return m.Name }, func(Memory) string { return "" },
		func(m Memory) []harness.Part {
			return []harness.Part{
				{Name: "slots", Colour: 0, Height: float64(m.Slots) / kilobyte},
				{Name: "tables", Colour: 1, Height: float64(m.Tables) / kilobyte},
				{Name: "control", Colour: 2, Height: float64(m.Control) / kilobyte},
				{Name: "second bank", Colour: 3, Height: float64(m.Spare) / kilobyte},
			}
		})
	return c
}
