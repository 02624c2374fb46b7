package push

import (
	"fmt"
	"image/color"
	"os"
	"path/filepath"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

// Dimensions of the plots.
const (
	plotWidth  = 18 * vg.Centimeter
	plotHeight = 10 * vg.Centimeter
	groupWidth = 0.8 // of the distance between two numbers of workers
)

// WritePlots writes SVG files to a directory, which it makes: for each batch size the
// rates (push-rate-BATCH.svg) and the CPU time of a pair (push-cpu-BATCH.svg).
// It returns their paths.
func (r *Report) WritePlots(dir string) ([]string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("push: directory for plots: %w", err)
	}
	byBatch := map[int][]Result{}
	var batches []int
	for _, res := range r.Results {
		if byBatch[res.Batch] == nil {
			batches = append(batches, res.Batch)
		}
		byBatch[res.Batch] = append(byBatch[res.Batch], res)
	}
	var paths []string
	for _, batch := range batches {
		for _, c := range []struct {
			name string
			draw func(int, []Result) (*plot.Plot, error)
		}{{"rate", ratePlot}, {"cpu", cpuPlot}} {
			path := filepath.Join(dir, fmt.Sprintf("push-%s-%d.svg", c.name, batch))
			p, err := c.draw(batch, byBatch[batch])
			if err == nil {
				err = p.Save(plotWidth, plotHeight, path)
			}
			if err != nil {
				return paths, fmt.Errorf("push: plot %s: %w", path, err)
			}
			paths = append(paths, path)
		}
	}
	return paths, nil
}

// groups says where the bars of results stand: a group for each number of
// workers, in it a bar for each peer.
type groups struct {
	workers []int
	peers   []string
}

func groupsOf(results []Result) (g groups) {
	for _, r := range results {
		if !slices.Contains(g.workers, r.Workers) {
			g.workers = append(g.workers, r.Workers)
		}
		if !slices.Contains(g.peers, r.Peer) {
			g.peers = append(g.peers, r.Peer)
		}
	}
	return g
}

// bar returns the middle and half the width of a result's bar.
func (g groups) bar(r Result) (x, half float64) {
	width := groupWidth / float64(len(g.peers))
	at := float64(slices.Index(g.peers, r.Peer)) - float64(len(g.peers)-1)/2
	return float64(slices.Index(g.workers, r.Workers)) + at*width, width * 0.45
}

func (g groups) newPlot(title, unit string) *plot.Plot {
	p := plot.New()
	p.BackgroundColor = color.White
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, "workers", unit
	p.Y.Min = 0
	p.Legend.Top, p.Legend.Left = true, true
	var names []string
	for _, n := range g.workers {
		names = append(names, fmt.Sprint(n))
	}
	p.NominalX(names...)
	p.X.Min, p.X.Max = -0.5, float64(len(g.workers))-0.5
	return p
}

// ratePlot shows the rates, with the smallest and the largest round.
func ratePlot(batch int, results []Result) (*plot.Plot, error) {
	g := groupsOf(results)
	p := g.newPlot(fmt.Sprintf("pushes of %d pairs: rate of all workers together", batch), "million pairs per second")
	top := 0.0
	for i, peer := range g.peers {
		var bars []plotter.XYer
		var spread struct {
			plotter.XYs
			plotter.YErrors
		}
		for _, r := range results {
			if r.Peer != peer {
				continue
			}
			x, half := g.bar(r)
			y := r.PairsPerSecond / 1e6
			bars = append(bars, rectangle(x, half, 0, y))
			spread.XYs = append(spread.XYs, plotter.XY{X: x, Y: y})
			spread.YErrors = append(spread.YErrors, struct{ Low, High float64 }{y - r.Min/1e6, r.Max/1e6 - y})
			top = max(top, r.Max/1e6)
		}
		if err := fill(p, peer, plotutil.Color(i), bars); err != nil {
			return nil, err
		}
		lines, err := plotter.NewYErrorBars(spread)
		if err != nil {
			return nil, err
		}
		p.Add(lines)
	}
	p.Y.Max = 1.35 * top // room for the legend
	return p, nil
}

// cpuPlot shows the parts of the CPU time of a pair on top of each other.
func cpuPlot(batch int, results []Result) (*plot.Plot, error) {
	g := groupsOf(results)
	title := fmt.Sprintf("pushes of %d pairs: CPU time; from left to right", batch)
	for i, peer := range g.peers {
		if i > 0 {
			title += ","
		}
		title += " " + peer
	}
	p := g.newPlot(title, "ns per pair")
	low := make([]float64, len(results))
	for i, part := range []struct {
		name string
		ns   func(Result) float64
	}{
		{"worker", func(r Result) float64 { return r.NsWorker }},
		{"kernel", func(r Result) float64 { return r.NsKernel }},
		{"aggregator", func(r Result) float64 { return r.NsAggregator }},
		{"ps", func(r Result) float64 { return r.NsServer }},
	} {
		var bars []plotter.XYer
		for k, r := range results {
			x, half := g.bar(r)
			bars = append(bars, rectangle(x, half, low[k], low[k]+part.ns(r)))
			low[k] += part.ns(r)
		}
		if err := fill(p, part.name, plotutil.Color(i), bars); err != nil {
			return nil, err
		}
	}
	p.Y.Max = 1.35 * slices.Max(low)
	return p, nil
}

func rectangle(x, half, from, to float64) plotter.XYs {
	return plotter.XYs{{X: x - half, Y: from}, {X: x - half, Y: to}, {X: x + half, Y: to}, {X: x + half, Y: from}}
}

// fill adds rectangles of one colour.
func fill(p *plot.Plot, name string, c color.Color, bars []plotter.XYer) error {
	body, err := plotter.NewPolygon(bars...)
	if err != nil {
		return err
	}
	body.Color = c
	body.Width = 0
	p.Add(body)
	p.Legend.Add(name, body)
	return nil
}
