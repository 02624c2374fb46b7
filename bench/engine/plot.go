package engine

import (
	"fmt"
	"image/color"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/palette/brewer"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// Dimensions of the plots.
const (
	plotWidth  = 22 * vg.Centimeter
	plotHeight = 11 * vg.Centimeter
	groupWidth = 0.8 // of the distance between two sizes
)

// WritePlots writes SVG files to a directory, which it makes: for each test that was measured the rates
// (rate-TEST.svg) and the CPU time of a frame (cpu-TEST.svg), and the round-trip times (latency.svg). It returns their paths.
func (r *Report) WritePlots(dir string) ([]string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("engine: directory for plots: %w", err)
	}
	var paths []string
	for _, test := range Tests() {
		results := r.of(test)
		if len(results) == 0 {
			continue
		}
		charts := map[string]chart{
			"cpu-" + string(test): {
				title: fmt.Sprintf("%s: CPU time of the tested end, user (dark) and kernel (light)", test), unit: "ns per frame",
				lower: func(r Result) float64 { return r.NsUser }, upper: func(r Result) float64 { return r.NsKernel },
			},
		}
		if test == RequestResponse {
			charts["latency"] = chart{
				title: "request-response: median (dark) and 99th percentile (light) of the round-trip time", unit: "µs",
				lower: func(r Result) float64 { return value(r.P50us) }, upper: func(r Result) float64 { return value(r.P99us) - value(r.P50us) },
			}
		} else {
			charts["rate-"+string(test)] = chart{
				title: fmt.Sprintf("%s: rate, median with smallest and largest round", test), unit: "million frames per second",
				lower: func(r Result) float64 { return r.PPS / 1e6 },
				low:   func(r Result) float64 { return r.PPSMin / 1e6 }, high: func(r Result) float64 { return r.PPSMax / 1e6 },
			}
		}
		for _, name := range slices.Sorted(maps.Keys(charts)) {
			path := filepath.Join(dir, name+".svg")
			if err := charts[name].save(path, results); err != nil {
				return paths, fmt.Errorf("engine: plot %s: %w", path, err)
			}
			paths = append(paths, path)
		}
	}
	return paths, nil
}

// of returns the results of a test.
func (r *Report) of(test Test) []Result {
	var results []Result
	for _, res := range r.Results {
		if res.Test == test {
			results = append(results, res)
		}
	}
	return results
}

func value(p *float64) float64 {
	if p == nil {
		return 0
	}
	return *p
}

// chart is a bar chart with a group of bars for each size and a bar for each
// peer in it.
type chart struct {
	title, unit string
	lower       func(Result) float64 // height of the bar
	upper       func(Result) float64 // height of a second part on top; nil: none
	low, high   func(Result) float64 // ends of an error bar; nil: none
}

func (c chart) save(path string, results []Result) error {
	p := plot.New()
	p.Title.Text = c.title
	p.X.Label.Text = "frame size in bytes"
	p.Y.Label.Text = c.unit
	p.Y.Min = 0
	p.Legend.Top = true

	var sizes []int
	var names []string // of peers, in the order of their turns
	for _, r := range results {
		sizes = append(sizes, r.Size)
		names = append(names, r.Peer)
	}
	slices.Sort(sizes)
	sizes = slices.Compact(sizes)
	names = slices.DeleteFunc(Peers(), func(p string) bool { return !slices.Contains(names, p) })

	var ticks []string
	for _, size := range sizes {
		ticks = append(ticks, strconv.Itoa(size))
	}
	// Colours go by the peer's place among all, so that they agree between plots.
	all := Peers()
	colours, err := brewer.GetPalette(brewer.TypeQualitative, "Paired", len(all))
	if err != nil {
		return err
	}
	width := groupWidth / float64(len(names))
	for i, name := range names {
		s := series{
			chart: c, name: name, colour: colours.Colors()[slices.Index(all, name)],
			offset: (float64(i) - float64(len(names)-1)/2) * width, width: width * 0.9,
		}
		if err := s.addTo(p, sizes, results); err != nil {
			return err
		}
	}
	p.NominalX(ticks...)
	p.X.Min, p.X.Max = -0.5, float64(len(sizes))+0.4 // room for the legend
	return p.Save(plotWidth, plotHeight, path)
}

// series is the bars of one peer.
type series struct {
	chart
	name          string
	colour        color.Color
	offset, width float64 // in distances between two sizes
}

func (s series) addTo(p *plot.Plot, sizes []int, results []Result) error {
	var lower, upper []plotter.XYer
	var middle plotter.XYs
	var errorBars plotter.YErrors
	for _, r := range results {
		if r.Peer != s.name {
			continue
		}
		x := float64(slices.Index(sizes, r.Size)) + s.offset
		y := s.lower(r)
		lower = append(lower, s.bar(x, 0, y))
		if s.upper != nil {
			upper = append(upper, s.bar(x, y, y+s.upper(r)))
		}
		if s.low != nil {
			middle = append(middle, plotter.XY{X: x, Y: y})
			errorBars = append(errorBars, struct{ Low, High float64 }{y - s.low(r), s.high(r) - y})
		}
	}
	body, err := s.fill(p, lower, s.colour)
	if err != nil {
		return err
	}
	p.Legend.Add(s.name, body)
	if upper != nil {
		if _, err := s.fill(p, upper, lighter(s.colour)); err != nil {
			return err
		}
	}
	if middle == nil {
		return nil
	}
	bars, err := plotter.NewYErrorBars(struct {
		plotter.XYs
		plotter.YErrors
	}{middle, errorBars})
	if err != nil {
		return err
	}
	p.Add(bars)
	return nil
}

// bar is a rectangle around x.
func (s series) bar(x, from, to float64) plotter.XYs {
	l, r := x-s.width/2, x+s.width/2
	return plotter.XYs{{X: l, Y: from}, {X: l, Y: to}, {X: r, Y: to}, {X: r, Y: from}}
}

// fill adds rectangles of one colour.
func (s series) fill(p *plot.Plot, bars []plotter.XYer, c color.Color) (*plotter.Polygon, error) {
	body, err := plotter.NewPolygon(bars...)
	if err != nil {
		return nil, err
	}
	body.Color = c
	body.Width = 0
	p.Add(body)
	return body, nil
}

// lighter is half way from a colour to white.
func lighter(c color.Color) color.Color {
	r, g, b, _ := c.RGBA()
	half := func(v uint32) uint8 { return uint8((v + 0xffff) / 2 >> 8) }
	return color.NRGBA{R: half(r), G: half(g), B: half(b), A: 0xff}
}
