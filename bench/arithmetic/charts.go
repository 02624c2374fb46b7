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
	foot := make([]float64, len(r.Memory))
	for _, m := range r.Memory {
		c.X.Names = append(c.X.Names, m.Name)
	}
	for i, part := range []struct {
		name  string
		bytes func(Memory) int
	}{
		{"slots", func(m Memory) int { return m.Slots }},
		{"tables", func(m Memory) int { return m.Tables }},
		{"control", func(m Memory) int { return m.Control }},
		{"second bank", func(m Memory) int { return m.Spare }},
	} {
		s := harness.Series{Name: part.name, Kind: harness.Bars, Colour: i, Width: 0.6}
		for k, m := range r.Memory {
			top := foot[k] + float64(part.bytes(m))/kilobyte
			s.Points = append(s.Points, harness.Point{X: float64(k), Foot: foot[k], Y: top})
			foot[k] = top
		}
		c.Series = append(c.Series, s)
	}
	return c
}
