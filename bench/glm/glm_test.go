// SPDX-License-Identifier: Apache-2.0

package glm

import (
	"bytes"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/train/data"
)

// Rows have the columns and the features of their shape, both labels, and come back from their
// file.
func TestShapes(t *testing.T) {
	for _, s := range Shapes() {
		n := 40
		rows := s.generate(n)
		ones, pairs := 0, 0
		for _, r := range rows {
			ones += int(r.Label)
			pairs += len(r.Keys)
			if !slices.IsSorted(r.Keys) || len(slices.Compact(slices.Clone(r.Keys))) != len(r.Keys) || r.Keys[len(r.Keys)-1] >= uint64(s.Columns) {
				t.Fatalf("%s: columns %v", s.Name, r.Keys)
			}
			if s.Ones && slices.ContainsFunc(r.Values, func(v float32) bool { return v != 1 }) || slices.Contains(r.Values, 0) {
				t.Errorf("%s: values %v", s.Name, r.Values)
			}
		}
		if got := float64(pairs) / float64(n*s.PerRow); math.Abs(got-1) > 0.01 || len(rows) != n || ones == 0 || ones == n {
			t.Errorf("%s: %d rows with %v of the features, %d labels of 1", s.Name, len(rows), got, ones)
		}
		var text bytes.Buffer
		if err := write(&text, rows); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "rows")
		if err := os.WriteFile(path, text.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		src, err := data.OpenFile(path, data.Classification, data.Shard{})
		if err != nil {
			t.Fatal(err)
		}
		again, err := read(src)
		if err = errors.Join(err, src.Close()); err != nil {
			t.Fatal(err)
		}
		for i, r := range rows {
			if diff := cmp.Diff([]any{r.Label, r.Keys, r.Values}, []any{again[i].Label, again[i].Keys, again[i].Values}); diff != "" {
				t.Fatalf("%s, row %d: %s", s.Name, i, diff)
			}
		}
	}
}

// Losses of a few bits differ from those in float32 the less the more bits there are; and workers
// that divide the rows have the same loss together as one.
func TestLosses(t *testing.T) {
	s := Shape{Name: "small", Columns: 500, PerRow: 20}
	rows := s.generate(300)
	c := Defaults()
	all, err := measureLosses(t.Context(), c.training(lossBatch), rows, s.Columns)
	if err != nil || len(all) != 4 || all[0].Bits != 0 || all[0].Off != 0 {
		t.Fatal(all, err)
	}
	for i, l := range all {
		if len(l.Losses) != c.Epochs || !(l.Losses[c.Epochs-1] < l.Losses[0]) || i > 0 && (l.Off <= 0 || l.Off > 0.05) || i > 1 && l.Off >= all[i-1].Off {
			t.Errorf("%+v", l)
		}
	}
	const workers = 2
	var parts [workers]*floats
	for w := range parts {
		parts[w] = newFloats(c.training(lossBatch), rows, s.Columns)
	}
	loss := 0.0
	var reached, added [workers]chan []float32
	for w := range workers {
		reached[w], added[w] = make(chan []float32), make(chan []float32)
	}
	sums := make(chan float64, workers)
	for w, f := range parts {
		go func() {
			sum, err := f.train(0, w, workers, func(g []float32) error {
				reached[w] <- g
				<-added[w]
				return nil
			})
			if err != nil {
				t.Error(err)
			}
			close(reached[w])
			sums <- sum
		}()
	}
	for {
		a, more := <-reached[0]
		b := <-reached[1]
		if !more {
			break
		}
		for c := range a {
			a[c] += b[c]
			b[c] = a[c]
		}
		added[0] <- nil
		added[1] <- nil
	}
	for range workers {
		loss += <-sums
	}
	if got, want := loss/float64(len(rows)), all[0].Losses[0]; math.Abs(got-want) > 1e-6 {
		t.Errorf("the loss of %d workers is %v, that of one %v", workers, got, want)
	}
}

// The parts of a mini-batch are measured for a worker's own columns.
func TestParts(t *testing.T) {
	rows := Shape{Columns: 500, PerRow: 20}.generate(70)
	c := Defaults()
	for _, workers := range []int{1, 4} {
		trained, a, err := trainAlone(t.Context(), c.training(32), rows, workers)
		if err != nil || len(trained.Epochs) != c.Epochs || len(a.forward) != 3*c.Epochs || len(a.rest) != 3*c.Epochs {
			t.Errorf("%+v, %v, %d and %d times", trained, err, len(a.forward), len(a.rest))
		}
		if p, err := measureParts(t.Context(), c.training(32), rows, workers); err != nil || p.Forward <= 0 || p.Backward <= 0 {
			t.Errorf("%+v, %v", p, err)
		}
	}
}

// Figures are medians over the rounds, ratios those within rounds; epochs of all rows are computed;
// and targets compare what they name.
func TestReport(t *testing.T) {
	samples := func(times ...float64) (s []Sample) {
		for _, x := range times {
			s = append(s, Sample{Epoch: x})
		}
		return s
	}
	parts := Parts{Forward: 40e-6, Backward: 60e-6}
	half := Parts{Forward: 20e-6, Backward: 30e-6}
	r := &Report{
		Workers: 4, Rows: 2024,
		Results: []Result{
			{Shape: "rcv1", Batch: 16, Method: Libra, Samples: samples(1, 2, 3), Curve: []Point{{1, 0.6}, {2, 0.5}}},
			{Shape: "rcv1", Batch: 16, Method: Dense, Samples: samples(20, 20, 20)},
			{Shape: "rcv1", Batch: 64, Method: Dense, Samples: samples(5)}, // libra was not measured
		},
		Losses: []Losses{
			{Shape: "rcv1", Losses: []float64{0.6}}, {Shape: "rcv1", Bits: 3, Losses: []float64{0.7}, Off: 0.5},
			{Shape: "rcv1", Bits: 4, Losses: []float64{0.6}, Off: 0.01}, {Shape: "rcv1", Bits: 8, Losses: []float64{0.6}, Off: 0.01},
		},
		Scaled: []Scaled{
			{Shape: "rcv1", Batch: 16, Workers: 1, Network: Libra, Parts: parts},
			{Shape: "rcv1", Batch: 16, Workers: 2, Network: Libra, Parts: half, Latency: 40e-6},
		},
	}
	r.finish()
	if res := r.find("rcv1", 16, Libra); res.Epoch != 2 || res.Ratio != 1 || math.Abs(res.Whole-2*20_242.0/2024) > 1e-9 {
		t.Errorf("%+v", res)
	}
	if res := r.find("rcv1", 64, Dense); res.Ratio != 0 || res.Epoch != 5 {
		t.Errorf("%+v", res)
	}
	// 1,266 mini-batches: half of the forward passes, and the rest, 80 µs; or 10 + 30 + 40.
	for i := range r.Scaled {
		if s := r.Scaled[i]; math.Abs(s.Whole-1266*80e-6) > 1e-9 || math.Abs(s.Speedup-1) > 1e-9 {
			t.Errorf("%+v", s)
		}
	}
	want := []experiment.Target{
		{What: "rcv1, mini-batches of 16: epoch of libra divided by that of dense", Verdict: experiment.AtMost(0.1, 0.1)},
		{What: "rcv1, 4 bits: loss of an epoch off that in float32, %", Verdict: experiment.AtMost(2, 1)},
		{What: "rcv1, 8 bits: loss of an epoch off that in float32, %", Verdict: experiment.AtMost(0.5, 1)},
	}
	if diff := cmp.Diff(want, r.Targets); diff != "" {
		t.Error(diff)
	}
	var names []string
	for _, c := range r.Charts() {
		names = append(names, c.Name)
	}
	if diff := cmp.Diff([]string{"glm-epochs-rcv1", "glm-loss-time-rcv1", "glm-batches", "glm-scale", "glm-networks-rcv1", "glm-losses-rcv1"}, names); diff != "" {
		t.Error(diff)
	}
	var text strings.Builder
	if err := experiment.WriteTables(&text, r); err != nil || !strings.Contains(text.String(), "Computed, not measured") {
		t.Errorf("%v: %s", err, &text)
	}
	if r.DropTargets(); r.Targets != nil {
		t.Error("targets remain")
	}
}

func TestConfigRefusesNonsense(t *testing.T) {
	for field, change := range map[string]func(*Config){
		"shapes": func(c *Config) { c.Shapes = []string{"mnist"} }, "batches": func(c *Config) { c.Batches = []int{64, 60} },
		"workers": func(c *Config) { c.Workers = 1 }, "rows": func(c *Config) { c.Rows = 0 },
		"epochs": func(c *Config) { c.Epochs = 0 }, "rounds": func(c *Config) { c.Rounds = 0 },
		"scale": func(c *Config) { c.Scale = []int{0} }, "operations": func(c *Config) { c.Operations = 1 },
		"baseline": func(c *Config) { c.Baselines = []string{"nccl"} },
	} {
		c := Defaults()
		if err := c.checkFields(); err != nil {
			t.Fatal(err)
		}
		change(&c)
		var wrong *experiment.ConfigError
		if err := c.checkFields(); !errors.As(err, &wrong) || wrong.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	for field, change := range map[string]func(*Config){
		"shapes": func(c *Config) { c.Shapes = nil }, "batches": func(c *Config) { c.Batches = nil },
	} {
		c := Defaults()
		change(&c)
		var wrong *experiment.ConfigError
		if err := c.checkFields(); !errors.As(err, &wrong) || wrong.Field != field {
			t.Errorf("no %s: %v", field, err)
		}
	}
	c := Defaults()
	c.Workers, c.Batches = 3, []int{64}
	if err := c.checkFields(); err == nil || !strings.Contains(err.Error(), "give multiples of --workers") {
		t.Error(err)
	}
}
