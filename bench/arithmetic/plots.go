package arithmetic

import (
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

const plotWidth, plotHeight = 20 * vg.Centimeter, 14 * vg.Centimeter

// 10^leastExponent is where the plot ends below: a sum that is exactly right has
// no place on a logarithmic axis.
const leastExponent = -9

// WritePlots draws the report into SVG files in a directory, which it creates,
// and returns their paths.
func (r Report) WritePlots(dir string) ([]string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("arithmetic study: plots: %w", err)
	}
	drawn, err := r.longSumPlot()
	if err != nil {
		return nil, fmt.Errorf("arithmetic study: plot of long sums: %w", err)
	}
	path := filepath.Join(dir, "longsums.svg")
	if err := drawn.Save(plotWidth, plotHeight, path); err != nil {
		return nil, fmt.Errorf("arithmetic study: %w", err)
	}
	return []string{path}, nil
}

// longSumPlot has a colour for each arithmetic, and dashes and glyphs for each
// data set.
func (r Report) longSumPlot() (*plot.Plot, error) {
	p := plot.New()
	p.BackgroundColor = color.White
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = "Long sums", "additions", "relative error, median"
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, powersOfTen(leastExponent, 1)
	p.Add(plotter.NewGrid())
	p.Legend.TextStyle.Font.Size = vg.Points(9)
	p.Legend.Padding = vg.Points(1)
	p.Legend.Top, p.Legend.Left = true, true
	least := math.Pow10(leastExponent)
	for i, a := range arithmetics {
		for j, d := range r.DataSets {
			var xys plotter.XYs
			for _, s := range r.LongSums {
				if s.Arithmetic == a && s.DataSet == d.Name {
					xys = append(xys, plotter.XY{X: float64(s.Additions), Y: max(s.Median, least)})
				}
			}
			line, points, err := plotter.NewLinePoints(xys)
			if err != nil {
				return nil, err
			}
			line.Color, line.Dashes = plotutil.Color(i), plotutil.Dashes(j)
			points.Color, points.Shape = plotutil.Color(i), plotutil.Shape(j)
			p.Add(line, points)
			if j == 0 {
				colour := *line
				colour.Width = vg.Points(2)
				p.Legend.Add(string(a), &colour)
			}
		}
	}
	for j, d := range r.DataSets {
		line, points, err := plotter.NewLinePoints(plotter.XYs{{X: 1, Y: 1}}) // for the legend only
		if err != nil {
			return nil, err
		}
		line.Dashes, points.Shape = plotutil.Dashes(j), plotutil.Shape(j)
		p.Legend.Add(d.Name, line, points)
	}
	p.Y.Min, p.Y.Max = least, 10 // room for the legend
	p.X.Max *= 1.2               // keeps glyphs off the edge
	return p, nil
}

func powersOfTen(from, to int) (ticks plot.ConstantTicks) {
	for e := from; e <= to; e++ {
		ticks = append(ticks, plot.Tick{Value: math.Pow10(e), Label: fmt.Sprintf("1e%d", e)})
	}
	return ticks
}
