package arithmetic

import (
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/dustin/go-humanize"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

const plotWidth, plotHeight = 20 * vg.Centimeter, 14 * vg.Centimeter

// 10^leastExponent is where the plot ends below: a sum that is exactly right has
// no place on a logarithmic axis.
const leastExponent = -9

// WritePlots draws the report into SVG files in a directory, which it creates,
// and returns their paths: precision.svg (Table 2), longsums.svg and memory.svg
// (§5.7).
func (r Report) WritePlots(dir string) ([]string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("arithmetic study: plots: %w", err)
	}
	var paths []string
	for _, p := range []struct {
		name string
		draw func() (*plot.Plot, error)
	}{
		{"precision.svg", r.precisionPlot},
		{"longsums.svg", r.longSumPlot},
		{"memory.svg", r.memoryPlot},
	} {
		drawn, err := p.draw()
		if err != nil {
			return paths, fmt.Errorf("arithmetic study: %s: %w", p.name, err)
		}
		path := filepath.Join(dir, p.name)
		if err := drawn.Save(plotWidth, plotHeight, path); err != nil {
			return paths, fmt.Errorf("arithmetic study: %w", err)
		}
		paths = append(paths, path)
	}
	return paths, nil
}

func newPlot(title, x, y string) *plot.Plot {
	p := plot.New()
	p.BackgroundColor = color.White
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	p.Add(plotter.NewGrid())
	p.Legend.TextStyle.Font.Size = vg.Points(9)
	p.Legend.Padding = vg.Points(1)
	p.Legend.Top, p.Legend.Left = true, true
	return p
}

// precisionPlot shows what precision lacks, the paper's beside ours.
func (r Report) precisionPlot() (*plot.Plot, error) {
	p := newPlot("One addition: 1 - precision (Table 2)", "", "average and median; 1e-9 stands for less")
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, powersOfTen(leastExponent, 0)
	least := math.Pow10(leastExponent)
	var names []string
	var average, median, paperAverage, paperMedian plotter.XYs
	for i, q := range r.Precision {
		at := func(precision float64) plotter.XY { return plotter.XY{X: float64(i), Y: max(1-precision, least)} }
		average, median = append(average, at(q.Average)), append(median, at(q.Median))
		if q.Paper != nil {
			paperAverage, paperMedian = append(paperAverage, at(q.Paper.Average)), append(paperMedian, at(q.Paper.Median))
		}
		set, _, _ := strings.Cut(q.DataSet, " ")
		names = append(names, string(q.Arithmetic)+", "+set)
	}
	for _, s := range []struct {
		name   string
		xys    plotter.XYs
		shape  draw.GlyphDrawer
		colour color.Color
	}{
		{"ours, average", average, draw.CircleGlyph{}, plotutil.Color(2)},
		{"ours, median", median, draw.RingGlyph{}, plotutil.Color(2)},
		{"paper, average", paperAverage, draw.CrossGlyph{}, color.Black},
		{"paper, median", paperMedian, draw.PlusGlyph{}, color.Black},
	} {
		points, err := plotter.NewScatter(s.xys)
		if err != nil {
			return nil, err
		}
		points.Shape, points.Color, points.Radius = s.shape, s.colour, vg.Points(4)
		p.Add(points)
		p.Legend.Add(s.name, points)
	}
	p.NominalX(names...)
	p.X.Min, p.X.Max = -0.5, float64(len(names))-0.5
	p.Y.Min, p.Y.Max = least, 1
	return p, nil
}

// memoryPlot stacks the parts of each account.
func (r Report) memoryPlot() (*plot.Plot, error) {
	p := newPlot("Memory for 30,000 hot parameters (§5.7)", "", "KB")
	low := make([]float64, len(r.Memory))
	var names []string
	for _, m := range r.Memory {
		names = append(names, m.Name)
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
		var bars []plotter.XYer
		for k, m := range r.Memory {
			l, h, from := float64(k)-0.3, float64(k)+0.3, low[k]
			low[k] += float64(part.bytes(m)) / kilobyte
			bars = append(bars, plotter.XYs{{X: l, Y: from}, {X: l, Y: low[k]}, {X: h, Y: low[k]}, {X: h, Y: from}})
		}
		body, err := plotter.NewPolygon(bars...)
		if err != nil {
			return nil, err
		}
		body.Color, body.Width = plotutil.Color(i), 0
		p.Add(body)
		p.Legend.Add(part.name, body)
	}
	p.NominalX(names...)
	p.X.Min, p.X.Max = -0.5, float64(len(names))-0.5
	p.Y.Min, p.Y.Max = 0, 1000 // room for the legend
	p.Y.Tick.Marker = plot.TickerFunc(func(low, high float64) (ticks []plot.Tick) {
		for v := low; v <= high; v += 100 {
			ticks = append(ticks, plot.Tick{Value: v, Label: fmt.Sprint(v)})
		}
		return ticks
	})
	return p, nil
}

// longSumPlot has a colour for each arithmetic, and dashes and glyphs for each
// data set.
func (r Report) longSumPlot() (*plot.Plot, error) {
	p := newPlot("Long sums", "additions", "relative error, median")
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, additionTicks()
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, powersOfTen(leastExponent, 0)
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
	p.Y.Min, p.Y.Max = least, 1
	p.X.Max *= 2 // room for the last tick's label
	return p, nil
}

func additionTicks() (ticks plot.ConstantTicks) {
	for n := 10; n <= 1_000_000; n *= 10 {
		ticks = append(ticks, plot.Tick{Value: float64(n), Label: humanize.Comma(int64(n))})
	}
	return ticks
}

func powersOfTen(from, to int) (ticks plot.ConstantTicks) {
	for e := from; e <= to; e++ {
		ticks = append(ticks, plot.Tick{Value: math.Pow10(e), Label: fmt.Sprintf("1e%d", e)})
	}
	return ticks
}
