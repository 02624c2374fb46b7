// SPDX-License-Identifier: Apache-2.0

// Package chart draws results into SVG files that look the same on every machine: measurements of
// package bench, studies and learning curves. The caller gives series and axes; the package chooses
// colours, dashes and places.
package chart

import (
	"bytes"
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/libra-ina/libra/internal/file"
)

// Dimensions of a chart.
const (
	chartWidth  = 20 * vg.Centimeter
	chartHeight = 12 * vg.Centimeter
	chartMargin = 0.3 * vg.Centimeter
)

// Chart is a picture of results. Its series share one pair of axes.
type Chart struct {
	Name   string // file name without suffix
	Title  string
	X, Y   Axis
	Legend Corner
	Series []Series
}

// Axis is one axis of a chart.
type Axis struct {
	Label string
	Log   bool
	// Names label 0, 1, 2 and so on, instead of numbers.
	Names []string
	// Ticks are the numbers with labels; nil chooses them.
	Ticks []Tick
	// Min and Max limit the axis; if both are 0, it holds the series and 0.
	Min, Max float64
	// Room multiplies the maximum to make room for the legend or for glyphs at the edge; 0 means 1.
	Room float64
}

// Tick is a place of an axis with its label.
type Tick struct {
	Value float64
	Label string
}

// Ticks labels numbers with a format of fmt.
func Ticks[T int | float64](format string, values ...T) []Tick {
	ticks := make([]Tick, len(values))
	for i, v := range values {
		ticks[i] = Tick{float64(v), fmt.Sprintf(format, v)}
	}
	return ticks
}

// Corner is the legend's corner of the chart.
type Corner int

// The corners.
const (
	TopLeft Corner = iota
	TopRight
	BottomLeft
	BottomRight
)

// Kind is how a series is drawn.
type Kind int

// The kinds.
const (
	Lines Kind = iota // points joined by a line
	Dots
	Bars
)

// Paper is the colour of the paper's results. Variants 0 and 1 are drawn as different crosses.
const Paper = -1

// Series is one entry of the legend.
type Series struct {
	Name string // empty: no entry
	Kind Kind
	// Colour, from 0 on, or Paper. Variant, from 0 on, distinguishes series of a colour by dashes
	// and glyphs, and bars of variant 1 by a lighter tone.
	Colour, Variant int
	Width           float64 // of bars, in units of the X axis
	Points          []Point
}

// Point is a point, or a bar from Foot to Y. A point with a NaN or an infinity, as of training that
// diverges, is not drawn.
type Point struct {
	X, Y, Foot float64
	// Low and High are the ends of an error bar; both 0: none.
	Low, High float64
}

// Points returns the points of those of all that are numbers.
func Points[T any](all []T, fits func(T) bool, xy func(T) (x, y float64)) (points []Point) {
	for _, v := range all {
		if fits(v) {
			x, y := xy(v)
			points = append(points, Point{X: x, Y: y})
		}
	}
	return points
}

// AddCurves adds a curve to a chart for each pair of a colour and a variant, whose names come in
// order of appearance, through the points of those of all that have both.
func AddCurves[T any](c *Chart, all []T, colour, variant func(T) string, xy func(T) (x, y float64)) {
	var colours, variants []string
	for _, v := range all {
		indexOf(&colours, colour(v))
		indexOf(&variants, variant(v))
	}
	for i, a := range colours {
		for j, b := range variants {
			both := func(v T) bool { return colour(v) == a && variant(v) == b }
			c.Series = append(c.Series, Series{Name: a + ", " + b, Colour: i, Variant: j, Points: Points(all, both, xy)})
		}
	}
}

// beside returns the place of bar i of n that stand side by side around 0, and
// the width of each.
func beside(i, n int) (place, width float64) {
	const group = 0.8 // part of the distance between two groups
	return (float64(i) - float64(n-1)/2) * group / float64(n), 0.9 * group / float64(n)
}

// Part is a part of a bar. Parts with the same name, colour and variant are of one
// series.
type Part struct {
	Name            string
	Colour, Variant int
	Height          float64
	Low, High       float64 // as in [Point]
}

// AddBars adds a bar for each of all to a chart. Bars of one group stand side by
// side, each name at its own place; the parts of a bar lie on top of each other.
// Groups and names come in order of appearance.
func AddBars[T any](c *Chart, all []T, group, name func(T) string, parts func(T) []Part) {
	var names []string
	for _, v := range all {
		indexOf(&names, name(v))
	}
	for _, v := range all {
		place, width := beside(indexOf(&names, name(v)), len(names))
		at := Point{X: float64(indexOf(&c.X.Names, group(v))) + place}
		for _, p := range parts(v) {
			i := slices.IndexFunc(c.Series, func(s Series) bool {
				return s.Name == p.Name && s.Colour == p.Colour && s.Variant == p.Variant
			})
			if i < 0 {
				i = len(c.Series)
				c.Series = append(c.Series, Series{Name: p.Name, Kind: Bars, Colour: p.Colour, Variant: p.Variant, Width: width})
			}
			at.Foot, at.Y, at.Low, at.High = at.Y, at.Y+p.Height, p.Low, p.High
			c.Series[i].Points = append(c.Series[i].Points, at)
		}
	}
}

// indexOf returns the index of a name in a list, and appends a new name.
func indexOf(names *[]string, name string) int {
	i := slices.Index(*names, name)
	if i < 0 {
		i = len(*names)
		*names = append(*names, name)
	}
	return i
}

// Write draws charts that have series into SVG files in a directory, which
// it creates, and returns their paths.
func Write(dir string, charts []Chart) (paths []string, err error) {
	if err := file.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("directory for charts: %w", err)
	}
	for _, c := range charts {
		if len(c.Series) == 0 {
			continue
		}
		path := filepath.Join(dir, c.Name+".svg")
		if err := c.write(path); err != nil {
			return paths, fmt.Errorf("draw %s: %w", path, err)
		}
		paths = append(paths, path)
	}
	return paths, nil
}

// write draws a chart into a file.
func (c *Chart) write(path string) error {
	p, err := c.draw()
	if err != nil {
		return err
	}
	picture := vgsvg.New(chartWidth, chartHeight)
	canvas := draw.Crop(draw.New(picture), chartMargin, -chartMargin, chartMargin, -chartMargin)
	if c.Legend == TopRight || c.Legend == BottomRight {
		area := p.DataCanvas(canvas)
		p.Legend.XOffs = max(0, area.Max.X-area.Min.X-c.legendWidth(p))
	}
	p.Draw(canvas)
	var svg bytes.Buffer
	if _, err := picture.WriteTo(&svg); err != nil {
		return err
	}
	outlined, err := outline(svg.Bytes())
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, outlined, 0o644); err != nil {
		return err
	}
	return file.Give(path)
}

// legendWidth returns the width of a legend.
func (c *Chart) legendWidth(p *plot.Plot) vg.Length {
	var width vg.Length
	for _, s := range c.Series {
		width = max(width, p.Legend.TextStyle.Width(s.Name))
	}
	return p.Legend.ThumbnailWidth + width + vg.Points(4)
}

func (c *Chart) draw() (*plot.Plot, error) {
	p := plot.New()
	for _, style := range []*text.Style{&p.Title.TextStyle, &p.Legend.TextStyle, &p.X.Label.TextStyle,
		&p.Y.Label.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label} {
		style.Font.Variant = "Sans"
	}
	p.BackgroundColor = color.White
	p.Title.Text = fold(c.Title, p.Title.TextStyle, chartWidth-2*chartMargin)
	p.Legend.TextStyle.Font.Size = vg.Points(9)
	p.Legend.Padding = vg.Points(1)
	p.Legend.Top = c.Legend == TopLeft || c.Legend == TopRight
	p.Legend.Left = true // names to the right of their marks, if they fit; see write
	if !c.Y.Log {
		p.Y.Min = 0
	}
	if len(c.X.Names) == 0 {
		p.Add(plotter.NewGrid())
	}
	for _, s := range c.Series {
		if err := s.addTo(p); err != nil {
			return nil, fmt.Errorf("series %q: %w", s.Name, err)
		}
	}
	c.X.apply(&p.X)
	c.Y.apply(&p.Y)
	if n := len(c.X.Names); n > 0 {
		p.NominalX(c.X.Names...)
		p.X.Min, p.X.Max = -0.5, float64(n)-0.5
	}
	return p, nil
}

// fold breaks a text between words into lines of at most a width.
func fold(s string, style text.Style, width vg.Length) string {
	var lines []string
	for word := range strings.FieldsSeq(s) {
		if last := len(lines) - 1; last >= 0 && style.Width(lines[last]+" "+word) <= width {
			lines[last] += " " + word
		} else {
			lines = append(lines, word)
		}
	}
	return strings.Join(lines, "\n")
}

// plainTicks are the default ticks with plain numbers.
type plainTicks struct{ plot.DefaultTicks }

// Ticks implements [plot.Ticker].
func (t plainTicks) Ticks(least, most float64) []plot.Tick {
	ticks := t.DefaultTicks.Ticks(least, most)
	for i := range ticks {
		if ticks[i].Label != "" {
			ticks[i].Label = humanize.Commaf(math.Round(ticks[i].Value*1e6) / 1e6)
		}
	}
	return ticks
}

func (a *Axis) apply(to *plot.Axis) {
	to.Label.Text = a.Label
	to.Tick.Marker = plainTicks{}
	if a.Log {
		to.Scale, to.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	}
	if a.Ticks != nil {
		var ticks plot.ConstantTicks
		for _, t := range a.Ticks {
			ticks = append(ticks, plot.Tick(t))
		}
		to.Tick.Marker = ticks
	}
	if a.Room > 0 {
		to.Max *= a.Room
	}
	if a.Min != 0 || a.Max != 0 {
		to.Min, to.Max = a.Min, a.Max
	}
}

func (s *Series) addTo(p *plot.Plot) error {
	finite := *s
	s = &finite
	s.Points = slices.DeleteFunc(slices.Clone(s.Points), func(pt Point) bool {
		return slices.ContainsFunc([]float64{pt.X, pt.Y, pt.Low, pt.High, pt.Foot}, func(x float64) bool {
			return math.IsNaN(x) || math.IsInf(x, 0)
		})
	})
	if len(s.Points) == 0 {
		return nil
	}
	thumbs, err := s.addPoints(p)
	if err != nil {
		return err
	}
	if s.Name != "" {
		p.Legend.Add(s.Name, thumbs...)
	}
	return s.addErrorBars(p)
}

// addPoints draws points and returns their series' thumbnail for the legend.
func (s *Series) addPoints(p *plot.Plot) (thumbs []plot.Thumbnailer, err error) {
	if s.Kind == Bars {
		bars, err := s.bars()
		if err != nil {
			return nil, err
		}
		p.Add(bars)
		return []plot.Thumbnailer{bars}, nil
	}
	xys := make(plotter.XYs, len(s.Points))
	for i, pt := range s.Points {
		xys[i] = plotter.XY{X: pt.X, Y: pt.Y}
	}
	line, dots, err := plotter.NewLinePoints(xys)
	if err != nil {
		return nil, err
	}
	line.Color, line.Dashes = s.colour(), plotutil.Dashes(s.Variant)
	dots.Color, dots.Shape = s.colour(), plotutil.Shape(s.Variant)
	if s.Colour == Paper {
		dots.Shape, dots.Radius = []draw.GlyphDrawer{draw.CrossGlyph{}, draw.PlusGlyph{}}[s.Variant%2], vg.Points(5)
	}
	if s.Kind == Lines {
		p.Add(line)
		thumbs = append(thumbs, line)
	}
	p.Add(dots)
	return append(thumbs, dots), nil
}

func (s *Series) colour() color.Color {
	switch {
	case s.Colour == Paper:
		return color.Black
	case s.Kind == Bars && s.Variant > 0: // half way to white
		r, g, b, _ := plotutil.Color(s.Colour).RGBA()
		half := func(v uint32) uint8 { return uint8((v + 0xffff) / 2 >> 8) }
		return color.NRGBA{R: half(r), G: half(g), B: half(b), A: 0xff}
	}
	return plotutil.Color(s.Colour)
}

func (s *Series) bars() (*plotter.Polygon, error) {
	var bars []plotter.XYer
	for _, pt := range s.Points {
		left, right := pt.X-s.Width/2, pt.X+s.Width/2
		bars = append(bars, plotter.XYs{{X: left, Y: pt.Foot}, {X: left, Y: pt.Y}, {X: right, Y: pt.Y},
			{X: right, Y: pt.Foot}})
	}
	body, err := plotter.NewPolygon(bars...)
	if err != nil {
		return nil, err
	}
	body.Color, body.Width = s.colour(), 0
	return body, nil
}

func (s *Series) addErrorBars(p *plot.Plot) error {
	var spread struct {
		plotter.XYs
		plotter.YErrors
	}
	for _, pt := range s.Points {
		if pt.Low != 0 || pt.High != 0 {
			spread.XYs = append(spread.XYs, plotter.XY{X: pt.X, Y: pt.Y})
			spread.YErrors = append(spread.YErrors, struct{ Low, High float64 }{pt.Y - pt.Low, pt.High - pt.Y})
		}
	}
	if spread.XYs == nil {
		return nil
	}
	bars, err := plotter.NewYErrorBars(spread)
	if err != nil {
		return err
	}
	p.Add(bars)
	return nil
}
