package aggregator

import (
	"fmt"
	"image/color"
	"os"
	"path/filepath"
	"slices"

	"github.com/dustin/go-humanize"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/libra-ina/libra/wire"
)

const plotWidth, plotHeight = 20 * vg.Centimeter, 12 * vg.Centimeter

// WritePlots draws what was measured into SVG files in a directory, which it
// creates, and returns their paths: cost.svg, throughput.svg, hot.svg
// (Figures 13 and 14) and negotiation.svg (Figure 17).
func (r *Report) WritePlots(dir string) ([]string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("aggregator benchmark: plots: %w", err)
	}
	var paths []string
	for _, p := range []struct {
		name  string
		there bool
		draw  func() (*plot.Plot, error)
	}{
		{"cost.svg", len(r.Results) > 0, r.costPlot},
		{"throughput.svg", len(r.Rates) > 0, r.ratePlot},
		{"hot.svg", len(r.Systems) > 0, r.hotPlot},
		{"negotiation.svg", r.delays() != nil, r.delayPlot},
	} {
		if !p.there {
			continue
		}
		path := filepath.Join(dir, p.name)
		drawn, err := p.draw()
		if err == nil {
			err = drawn.Save(plotWidth, plotHeight, path)
		}
		if err != nil {
			return paths, fmt.Errorf("aggregator benchmark: plot %s: %w", path, err)
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
	p.Y.Min = 0
	return p
}

// addLine adds points joined by a line; colour and variant tell lines apart.
func addLine(p *plot.Plot, name string, xys plotter.XYs, colour, variant int) error {
	line, points, err := plotter.NewLinePoints(xys)
	if err != nil {
		return err
	}
	line.Color, line.Dashes = plotutil.Color(colour), plotutil.Dashes(variant)
	points.Color, points.Shape = plotutil.Color(colour), plotutil.Shape(variant)
	p.Add(line, points)
	p.Legend.Add(name, line, points)
	return nil
}

// addPaper adds what the paper's text says.
func addPaper(p *plot.Plot, name string, shape draw.GlyphDrawer, xys plotter.XYs) error {
	points, err := plotter.NewScatter(xys)
	if err != nil {
		return err
	}
	points.Color, points.Shape, points.Radius = color.Black, shape, vg.Points(5)
	p.Add(points)
	p.Legend.Add(name, points)
	return nil
}

// plottedHot is the number of hot parameters that costPlot shows.
func (r *Report) plottedHot() int {
	if counts := r.hotCounts(); !slices.Contains(counts, paperHot) {
		return counts[0]
	}
	return paperHot
}

// costPlot has a colour for each arithmetic, and dashes and glyphs for each mode.
func (r *Report) costPlot() (*plot.Plot, error) {
	hot := r.plottedHot()
	p := newPlot(fmt.Sprintf("Cost of a pair in the XDP program, %s hot parameters", humanize.Comma(int64(hot))), "stripes in a frame", "ns a pair, median")
	modes := distinct(r.Results, func(res Result) string { return res.Mode })
	for i, a := range distinct(r.Results, func(res Result) string { return res.Arithmetic }) {
		for j, m := range modes {
			var xys plotter.XYs
			for _, res := range r.Results {
				if res.Arithmetic == a && res.Mode == m && res.Hot == hot {
					xys = append(xys, plotter.XY{X: float64(res.Stripes), Y: res.NsPerPair})
				}
			}
			if err := addLine(p, a+", "+m, xys, i, j); err != nil {
				return nil, err
			}
		}
	}
	var ticks plot.ConstantTicks
	for _, n := range distinct(r.Results, func(res Result) int { return res.Stripes }) {
		ticks = append(ticks, plot.Tick{Value: float64(n), Label: fmt.Sprint(n)})
	}
	p.X.Tick.Marker = ticks
	p.X.Min, p.X.Max = 0, wire.MaxStripes*1.05
	p.Y.Max *= 1.6 // room for the legend
	return p, nil
}

// mostHot is where the axis of hot parameters ends.
const mostHot = 70_000

// hotTicks labels numbers of hot parameters.
func hotTicks() plot.ConstantTicks {
	var ticks plot.ConstantTicks
	for _, n := range []int{0, 10, 20, 30, 40, 50, 60} {
		ticks = append(ticks, plot.Tick{Value: float64(n) * 1000, Label: fmt.Sprintf("%d,000", n)})
	}
	ticks[0].Label = "0"
	return ticks
}

// ratePlot has a colour for each arithmetic, and dashes and glyphs for each
// distribution.
func (r *Report) ratePlot() (*plot.Plot, error) {
	p := newPlot("Aggregation throughput of the XDP program on one CPU", "hot parameters", "million pairs per second")
	p.X.Tick.Marker = hotTicks()
	distributions := distinct(r.Rates, func(q Rate) string { return q.Distribution })
	for i, a := range distinct(r.Rates, func(q Rate) string { return q.Arithmetic }) {
		for j, d := range distributions {
			var xys plotter.XYs
			for _, q := range r.Rates {
				if q.Arithmetic == a && q.Distribution == d {
					xys = append(xys, plotter.XY{X: float64(q.Hot), Y: q.Pairs.Median / 1e6})
				}
			}
			if err := addLine(p, a+", "+d, xys, i, j); err != nil {
				return nil, err
			}
		}
	}
	p.X.Min, p.X.Max = 0, mostHot
	p.Y.Max *= 1.6 // room for the legend
	return p, nil
}

// hotPlot is Figure 14, with what the text says of Figure 13.
func (r *Report) hotPlot() (*plot.Plot, error) {
	p := newPlot("Aggregator and parameter server together", "hot parameters", "throughput, by that with 30,000")
	p.X.Tick.Marker = hotTicks()
	for i, d := range distinct(r.Systems, func(s System) string { return s.Distribution }) {
		var xys plotter.XYs
		for _, s := range r.Systems {
			if s.Distribution == d && s.Relative > 0 {
				xys = append(xys, plotter.XY{X: float64(s.Hot), Y: s.Relative})
			}
		}
		if len(xys) == 0 {
			continue // 30,000 was not measured
		}
		if err := addLine(p, d, xys, i, i); err != nil {
			return nil, err
		}
	}
	for i, g := range paperGain {
		shape := []draw.GlyphDrawer{draw.CrossGlyph{}, draw.PlusGlyph{}}[i]
		if err := addPaper(p, fmt.Sprintf("paper, %s: +%.1f %%", g.Task, 100*(g.Gain-1)), shape, plotter.XYs{{X: paperHot, Y: 1}, {X: 2 * paperHot, Y: g.Gain}}); err != nil {
			return nil, err
		}
	}
	p.X.Min, p.X.Max = 0, mostHot
	p.Y.Max *= 1.1
	p.Legend.Top, p.Legend.Left, p.Legend.XOffs = false, false, -vg.Centimeter
	return p, nil
}

// delays returns the negotiations that took place.
func (r *Report) delays() (delays []Delay) {
	for _, d := range r.Negotiations {
		if d.Negotiate.Median > 0 {
			delays = append(delays, d)
		}
	}
	return delays
}

// delayPlot is Figure 17.
func (r *Report) delayPlot() (*plot.Plot, error) {
	p := newPlot("Delay of a scale's negotiation", "workers", "ms in an iteration")
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.Y.Tick.Marker = plot.LogTicks{Prec: -1}
	p.X.Tick.Marker = plot.ConstantTicks{
		{Value: 1, Label: "1"}, {Value: 2, Label: "2"}, {Value: 4, Label: "4"}, {Value: 8, Label: "8"}, {Value: 16, Label: "16"}, {Value: 32, Label: "32"},
	}
	for i, b := range distinct(r.delays(), func(d Delay) string { return d.Backend }) {
		var median, slowest plotter.XYs
		for _, d := range r.delays() {
			if d.Backend == b {
				median = append(median, plotter.XY{X: float64(d.Workers), Y: d.Negotiate.Median / 1e3})
				slowest = append(slowest, plotter.XY{X: float64(d.Workers), Y: d.Slowest / 1e3})
			}
		}
		if err := addLine(p, b+", median", median, i, 0); err != nil {
			return nil, err
		}
		if err := addLine(p, b+", 99th percentile", slowest, i, 1); err != nil {
			return nil, err
		}
	}
	var paper plotter.XYs
	for _, d := range paperDelay {
		paper = append(paper, plotter.XY{X: float64(d.Workers), Y: d.Delay})
	}
	if err := addPaper(p, "paper (SwitchML)", draw.CrossGlyph{}, paper); err != nil {
		return nil, err
	}
	p.X.Min, p.X.Max = 1, 40
	p.Y.Min, p.Y.Max = 0.01, 1000
	return p, nil
}
