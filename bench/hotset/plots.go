package hotset

import (
	"fmt"
	"image/color"
	"os"
	"path/filepath"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

const plotWidth, plotHeight = 20 * vg.Centimeter, 12 * vg.Centimeter

// WritePlots draws the report into SVG files in a directory, which it creates,
// and returns their paths.
func (r Report) WritePlots(dir string) ([]string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("hotset study: plots: %w", err)
	}
	var paths []string
	for _, p := range []struct {
		name string
		draw func() (*plot.Plot, error)
	}{
		{"precision.svg", r.precisionPlot},
		{"recirculations.svg", r.packetPlot},
		{"lanes.svg", r.lanePlot},
	} {
		drawn, err := p.draw()
		if err != nil {
			return paths, fmt.Errorf("hotset study: %s: %w", p.name, err)
		}
		path := filepath.Join(dir, p.name)
		if err := drawn.Save(plotWidth, plotHeight, path); err != nil {
			return paths, fmt.Errorf("hotset study: %w", err)
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
	return p
}

// addLine adds points joined by a line. The colour tells one log from another,
// dashes and glyphs tell variants of it.
func addLine(p *plot.Plot, name string, xys plotter.XYs, log, variant int) error {
	line, points, err := plotter.NewLinePoints(xys)
	if err != nil {
		return err
	}
	line.Color, line.Dashes = plotutil.Color(log), plotutil.Dashes(variant)
	points.Color, points.Shape = plotutil.Color(log), plotutil.Shape(variant)
	p.Add(line, points)
	p.Legend.Add(name, line, points)
	return nil
}

func (r Report) logNumber(name string) int {
	for i, l := range r.Logs {
		if l.Name == name {
			return i
		}
	}
	return len(r.Logs)
}

// precisionPlot is Figure 15 of the paper.
func (r Report) precisionPlot() (*plot.Plot, error) {
	p := newPlot("Hot parameters found in a sample", "sampled rows (%)", "|Hg ∩ Hs| / |Hg| (%)")
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, rateTicks(r)
	p.Y.Min, p.Y.Max = 0, 100
	variants := map[int]int{}
	for _, q := range r.Precision {
		if len(q.Rates) == 0 {
			continue
		}
		if _, ok := variants[q.Step]; !ok {
			variants[q.Step] = len(variants)
		}
		var xys plotter.XYs
		for _, v := range q.Rates {
			xys = append(xys, plotter.XY{X: 100 * v.Rate, Y: 100 * v.Median})
		}
		if err := addLine(p, fmt.Sprintf("%s, step %d", q.Log, q.Step), xys, r.logNumber(q.Log), variants[q.Step]); err != nil {
			return nil, err
		}
	}
	paper, err := plotter.NewScatter(plotter.XYs{{X: 4, Y: 80}, {X: 8, Y: 90}})
	if err != nil {
		return nil, err
	}
	paper.Color, paper.Shape, paper.Radius = color.Black, draw.CrossGlyph{}, vg.Points(5)
	p.Add(paper)
	p.Legend.Add("paper: at least", paper)
	p.X.Max *= 1.05 // keeps glyphs off the edge
	return p, nil
}

func rateTicks(r Report) plot.ConstantTicks {
	var ticks plot.ConstantTicks
	for _, q := range r.Precision {
		if len(q.Rates) > len(ticks) {
			ticks = ticks[:0]
			for _, v := range q.Rates {
				ticks = append(ticks, plot.Tick{Value: 100 * v.Rate, Label: fmt.Sprintf("%.3g", 100*v.Rate)})
			}
		}
	}
	return ticks
}

// packetPlot is Figure 16 of the paper, for combined batches.
func (r Report) packetPlot() (*plot.Plot, error) {
	p := newPlot("Recirculations of a packet, keys combined within a batch", "", "mean recirculations")
	methods := []Method{RandomInOrder, HeatInOrder, HeatAlgorithm1, LaneAligned, Dense}
	const width = 14 // points
	for i, method := range methods {
		values := make(plotter.Values, len(r.Logs))
		for _, q := range r.Packets {
			if q.Combined && q.Method == method {
				values[r.logNumber(q.Log)] = q.Recirculations
			}
		}
		bars, err := plotter.NewBarChart(values, vg.Points(width))
		if err != nil {
			return nil, err
		}
		bars.Color, bars.LineStyle.Width = plotutil.Color(i), 0
		bars.Offset = vg.Points(width * (float64(i) - float64(len(methods)-1)/2))
		p.Add(bars)
		p.Legend.Add(string(method), bars)
	}
	names := make([]string, len(r.Logs))
	for i, l := range r.Logs {
		names[i] = l.Name
	}
	p.NominalX(names...)
	p.X.Min, p.X.Max = -0.5, float64(len(names))-0.5
	p.Legend.Top = true
	p.Y.Min, p.Y.Max = 0, max(p.Y.Max, 1)*1.4 // room for the legend
	return p, nil
}

func (r Report) lanePlot() (*plot.Plot, error) {
	p := newPlot("Unfilled lanes of lane-aligned frames", "pairs in a batch, hot and cold", "unfilled lanes (%)")
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.Y.Min, p.Y.Max = 0, 100
	for i, l := range r.Logs {
		for variant, combined := range []bool{true, false} {
			var xys plotter.XYs
			for _, q := range r.Lanes {
				if q.Log == l.Name && q.Combined == combined && q.Batches > 0 {
					xys = append(xys, plotter.XY{X: float64(q.Size), Y: 100 * q.LaneAligned})
				}
			}
			if len(xys) == 0 {
				continue
			}
			if err := addLine(p, l.Name+", "+form(combined), xys, i, variant); err != nil {
				return nil, err
			}
		}
	}
	p.X.Max *= 1.1 // keeps glyphs off the edge
	p.Legend.Top = true
	return p, nil
}
