// SPDX-License-Identifier: Apache-2.0

// Command curves measures what the numbers of docs/tuning.md do to a training, and draws it:
//
//	curves -libra bin/libra -data train.libfm.gz -test test.libfm.gz -out docs/images
//
// trains with libra demo at several values of c, of the harvest period and of the learning
// rate, and builds hot sets at several values of p. A person looks at the pictures before they
// are committed.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/libra-ina/libra/cluster/demo"
	"github.com/libra-ina/libra/internal/report/chart"
	"github.com/libra-ina/libra/train/settings"
)

func main() {
	var l laboratory
	flag.StringVar(&l.libra, "libra", "bin/libra", "`program` that trains")
	flag.StringVar(&l.data, "data", "", "`file` of training rows (required)")
	flag.StringVar(&l.test, "test", "", "`file` of held-out rows (required)")
	flag.StringVar(&l.backend, "backend", "afxdp", "backend of libra demo: afxdp, which needs root, or udp")
	flag.IntVar(&l.rounds, "rounds", 2, "trainings of each kind whose AUC is compared")
	out := flag.String("out", "out/curves", "`folder` of the pictures")
	flag.Parse()
	if flag.NArg() > 0 || l.data == "" || l.test == "" || l.rounds < 1 {
		flag.Usage()
		os.Exit(2)
	}
	if err := l.draw(*out); err != nil {
		fmt.Fprintln(os.Stderr, "curves:", err)
		os.Exit(1)
	}
}

// laboratory is what trainings have in common.
type laboratory struct {
	libra, data, test, backend string
	rounds                     int
}

func (l laboratory) draw(out string) error {
	for _, measure := range []func() (chart.Chart, error){l.memory, l.share, l.harvest, l.learningRate} {
		curve, err := measure()
		if err != nil {
			return err
		}
		if _, err := chart.Write(out, []chart.Chart{curve}); err != nil {
			return err
		}
	}
	return nil
}

// run runs libra and reads its JSON object.
func (l laboratory) run(result any, args ...string) error {
	cmd := exec.Command(l.libra, append(args, "--data", l.data, "--json")...)
	cmd.Stderr = os.Stderr
	text, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%s: %w", cmd, err)
	}
	return json.Unmarshal(text, result)
}

// train trains two epochs, asynchronously.
func (l laboratory) train(baseline string, args ...string) (r demo.Result, err error) {
	err = l.run(&r, append([]string{"demo", "--backend", l.backend, "--test", l.test, "--epochs", "2",
		"--init-scale", "0.2", "--initial-accumulator", "1e-5", "--baseline", baseline}, args...)...)
	if err != nil {
		return r, err
	}
	if r.AUC == nil {
		return r, fmt.Errorf("%s: %v has no AUC", l.test, args)
	}
	fmt.Fprintf(os.Stderr, "%v: AUC %.4f, %d steps, %.1f %% in the network, %d gradient frames\n", args, *r.AUC, r.Steps,
		100*r.HotShare, r.GradientFrames)
	return r, nil
}

// auc is the mean of several trainings, between the lowest and the highest.
func (l laboratory) auc(x float64, args ...string) (chart.Point, error) {
	var all []float64
	for range l.rounds {
		r, err := l.train("none", args...)
		if err != nil {
			return chart.Point{}, err
		}
		all = append(all, *r.AUC)
	}
	p := chart.Point{X: x, Low: slices.Min(all), High: slices.Max(all)}
	for _, a := range all {
		p.Y += a / float64(len(all))
	}
	return p, nil
}

// hotSet builds a hot set and returns how many rows it has, and their share of the updates.
func (l laboratory) hotSet(args ...string) (rows int, share float64, err error) {
	dir, err := os.MkdirTemp("", "libra-curves-*")
	if err != nil {
		return 0, 0, err
	}
	defer os.RemoveAll(dir)
	var built struct {
		Rows  int     `json:"rows"`
		Share float64 `json:"share"`
	}
	err = l.run(&built, append([]string{"hotset", "build", "--out", filepath.Join(dir, "hot.libra")}, args...)...)
	return built.Rows, built.Share, err
}

// number is a flag's value.
func number(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }

// memory shows what a share of the chip's memory saves at the server.
func (l laboratory) memory() (c chart.Chart, err error) {
	shares := []float64{0.0005, 0.001, 0.002, 0.005, 0.0125}
	alone, err := l.train(demo.ServerOnly)
	if err != nil {
		return c, err
	}
	series := []chart.Series{{Name: "updates that the hot set covers"}, {Name: "pairs summed in the network", Colour: 1},
		{Name: "frames of gradients at the server, of those without the switch", Colour: 2}}
	for _, share := range shares {
		rows, covered, err := l.hotSet("--c", number(share))
		if err != nil {
			return c, err
		}
		r, err := l.train("none", "--hot-rows", strconv.Itoa(rows))
		if err != nil {
			return c, err
		}
		for i, y := range []float64{covered, r.HotShare,
			float64(r.GradientFrames) / float64(alone.ServerOnly.GradientFrames)} {
			series[i].Points = append(series[i].Points, chart.Point{X: 100 * share, Y: 100 * y})
		}
	}
	ticks := make([]float64, len(shares))
	for i, share := range shares {
		ticks[i] = 100 * share
	}
	return chart.Chart{
		Name: "tuning-c", Title: "What c spares the server", Legend: chart.TopLeft,
		X:      chart.Axis{Label: "c: memory of the chip (%)", Log: true, Ticks: chart.Ticks("%g", ticks...)},
		Y:      chart.Axis{Label: "%", Max: 130, Ticks: chart.Ticks("%d", 0, 20, 40, 60, 80, 100)},
		Series: series,
	}, nil
}

// share shows how many rows a share of the updates takes.
func (l laboratory) share() (c chart.Chart, err error) {
	c = chart.Chart{
		Name: "tuning-p", Title: "Hot rows that p demands", Legend: chart.TopLeft,
		X: chart.Axis{Label: "p: share of the updates (%)", Min: 40, Max: 100}, Y: chart.Axis{Label: "hot rows", Room: 1.3},
	}
	for i, model := range []string{"fm", "lr"} {
		s := chart.Series{Name: "--model " + model, Colour: i}
		for _, p := range []float64{0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99, 0.999} {
			rows, _, err := l.hotSet("--model", model, "--p", number(p))
			if err != nil {
				break // there is no room for as many, as stderr says
			}
			s.Points = append(s.Points, chart.Point{X: 100 * p, Y: float64(rows)})
		}
		c.Series = append(c.Series, s)
	}
	return c, nil
}

// harvest shows what the period does to the AUC.
func (l laboratory) harvest() (c chart.Chart, err error) {
	periods := []float64{5, 20, 100, 500}
	one, err := l.train(demo.OneProcess)
	if err != nil {
		return c, err
	}
	series := []chart.Series{{Name: "staleness " + settings.Staleness.Usual() + ", the default"},
		{Name: "staleness 1,000", Colour: 1}, {Name: "one process", Colour: 2}}
	for _, ms := range periods {
		for i, staleness := range []string{settings.Staleness.Usual(), "1000"} {
			p, err := l.auc(ms, "--harvest", number(ms)+"ms", "--staleness", staleness)
			if err != nil {
				return c, err
			}
			series[i].Points = append(series[i].Points, p)
		}
		series[2].Points = append(series[2].Points, chart.Point{X: ms, Y: *one.OneProcess.AUC})
	}
	return chart.Chart{
		Name: "tuning-harvest", Title: "AUC of held-out rows by the harvest period, 2 epochs", Legend: chart.BottomLeft,
		X:      chart.Axis{Label: "harvest period (ms)", Log: true, Ticks: chart.Ticks("%g", periods...), Room: 1.1},
		Y:      aucAxis(series),
		Series: series,
	}, nil
}

// learningRate shows what the learning rate does to the AUC.
func (l laboratory) learningRate() (c chart.Chart, err error) {
	rates := []float64{0.02, 0.05, 0.1, 0.2, 0.5}
	series := []chart.Series{{Name: "4 workers"}, {Name: "one process", Colour: 1}}
	for _, rate := range rates {
		p, err := l.auc(rate, "--learning-rate", number(rate))
		if err != nil {
			return c, err
		}
		one, err := l.train(demo.OneProcess, "--learning-rate", number(rate))
		if err != nil {
			return c, err
		}
		series[0].Points = append(series[0].Points, p)
		series[1].Points = append(series[1].Points, chart.Point{X: rate, Y: *one.OneProcess.AUC})
	}
	return chart.Chart{
		Name: "tuning-learning-rate", Title: "AUC of held-out rows by the learning rate, 2 epochs", Legend: chart.BottomRight,
		X: chart.Axis{Label: "learning rate", Log: true, Ticks: chart.Ticks("%g", rates...), Room: 1.1}, Y: aucAxis(series),
		Series: series,
	}, nil
}

// aucAxis takes what the series have, with some room below for the legend.
func aucAxis(series []chart.Series) chart.Axis {
	low, high := 1.0, 0.0
	for _, s := range series {
		for _, p := range s.Points {
			low, high = min(low, p.Y), max(high, p.Y)
			if p.Low != 0 {
				low, high = min(low, p.Low), max(high, p.High)
			}
		}
	}
	room := high - low
	return chart.Axis{Label: "AUC", Min: low - 0.4*room, Max: high + 0.1*room}
}
