// SPDX-License-Identifier: Apache-2.0

package glm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/train/data"
)

// table is a source of rows in memory.
type table struct {
	rows []data.Sample
	at   int
}

func (t *table) Next(s *data.Sample) error {
	if t.at == len(t.rows) {
		return io.EOF
	}
	row := t.rows[t.at]
	s.Label, s.Keys, s.Values = row.Label, append(s.Keys[:0], row.Keys...), append(s.Values[:0], row.Values...)
	t.at++
	return nil
}
func (t *table) Rewind() error     { t.at = 0; return nil }
func (t *table) Shard() data.Shard { return data.Shard{Count: 1} }
func (t *table) Rows() int         { return t.at }
func (t *table) Close() error      { return nil }

// gisette returns dense rows in the shape of gisette's: many columns of different scales, of which
// some are empty, and two classes that a linear model separates.
func gisette(rows, columns int) *table {
	r := rand.New(rand.NewPCG(3, 4))
	truth := make([]float64, columns)
	for j := range truth {
		truth[j] = r.NormFloat64()
	}
	t := &table{}
	for range rows {
		var s data.Sample
		z := 0.0
		for j := range columns {
			v := r.Float64()
			if r.Float64() < 0.6 {
				v = 0
			}
			if v != 0 || j%2 == 0 { // with explicit zeros, too
				s.Keys = append(s.Keys, uint64(j)<<20)
				s.Values = append(s.Values, float32(v*math.Pow(10, float64(j%5))))
			}
			z += (v - 0.2) * truth[j]
		}
		if z > 0 {
			s.Label = 1
		}
		t.rows = append(t.rows, s)
	}
	return t
}

// adder adds the vectors of workers in memory, with any number of operations in flight.
type adder struct {
	mu      sync.Mutex
	changed sync.Cond
	workers int
	open    map[uint64]*sum
	failed  error
}

type sum struct {
	values      []int32
	added, gone int
}

// end is one worker's end of an adder.
type end struct {
	*adder
	next  uint64
	polls int
}

func newAdder(workers int) *adder {
	a := &adder{workers: workers, open: map[uint64]*sum{}}
	a.changed.L = &a.mu
	return a
}

func (e *end) Start(values []int32) (uint64, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	op := e.next
	e.next++
	s := e.open[op]
	if s == nil {
		s = &sum{values: make([]int32, len(values))}
		e.open[op] = s
	}
	for i, v := range values {
		total := int64(s.values[i]) + int64(v)
		if int64(int32(total)) != total {
			return 0, fmt.Errorf("operation %d saturates", op)
		}
		s.values[i] = int32(total)
	}
	s.added++
	e.changed.Broadcast()
	return op, nil
}

func (e *end) Wait(op uint64, sums []int32) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.open[op]
	for s.added < e.workers && e.failed == nil {
		e.changed.Wait()
	}
	if s.added < e.workers {
		return e.failed
	}
	copy(sums, s.values)
	if s.gone++; s.gone == e.workers {
		delete(e.open, op)
	}
	return nil
}

func (e *end) Poll() error {
	e.polls++
	return nil
}

// fail ends the other workers' waits.
func (a *adder) fail(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.failed == nil {
		a.failed = err
	}
	a.changed.Broadcast()
}

// trainAll trains with several workers, and returns what worker 0 does; of errors, the first.
func trainAll(ctx context.Context, src func() data.Source, cfg Config, workers int) ([]Epoch, *Model, error) {
	a := newAdder(workers)
	var epochs []Epoch
	var model *Model
	var all sync.WaitGroup
	for i := range workers {
		all.Go(func() {
			rows, err := Load(ctx, src(), packer.Split(workers), i, cfg.Bits)
			if err != nil {
				a.fail(err)
				return
			}
			done, err := Worker{
				Config: cfg, Rows: rows, Index: i, Workers: workers, Sums: &end{adder: a}, Width: cfg.MicroBatch + 14, InFlight: 3,
			}.Train(ctx)
			if err != nil {
				a.fail(err)
				return
			}
			m, err := done.Collect(ctx)
			switch {
			case err != nil:
				a.fail(err)
			case i == 0:
				epochs, model = done.Epochs, m
			case m != nil:
				a.fail(fmt.Errorf("worker %d has the model", i))
			}
		})
	}
	all.Wait()
	return epochs, model, a.failed
}

func mustTrain(t *testing.T, src *table, cfg Config, workers int) ([]Epoch, *Model) {
	t.Helper()
	epochs, model, err := trainAll(t.Context(), func() data.Source { return &table{rows: src.rows} }, cfg, workers)
	if err != nil {
		t.Fatal(err)
	}
	return epochs, model
}

// The weights, and the losses, are those of one worker and the smallest micro-batch, whatever the
// number of workers and the size of micro-batches. The last mini-batch has fewer rows.
func TestWeightsDependOnNoDivision(t *testing.T) {
	src := gisette(300, 97)
	for _, o := range []Objective{Logistic, Hinge, Square} {
		cfg := Config{Objective: o, Bits: 4, Batch: 64, MicroBatch: 1, Epochs: 2, LearningRate: 0.05, Seed: 7}
		epochs, model := mustTrain(t, src, cfg, 1)
		want := model.SHA256()
		if model.Len() != 97 || epochs[1].Loss >= epochs[0].Loss {
			t.Errorf("%v: %d columns, %v", o, model.Len(), epochs)
		}
		for _, workers := range []int{1, 2, 4, 8} {
			for _, micro := range []int{8, 64} {
				cfg.MicroBatch = micro
				e, m := mustTrain(t, src, cfg, workers)
				if m.SHA256() != want || !slices.Equal(e, epochs) {
					t.Errorf("%v, %d workers, micro-batches of %d: %s, %v, want %s, %v", o, workers, micro, m.SHA256(), e, want, epochs)
				}
			}
		}
		cfg.Seed++
		if _, m := mustTrain(t, src, cfg, 2); m.SHA256() == want && o != Hinge { // whose gradients are the same before margins are reached
			t.Errorf("%v: the seed changes nothing", o)
		}
	}
}

// The weights are those of big numbers: of the formulas in the package's documentation, by hand.
func TestFormulas(t *testing.T) {
	src := &table{rows: []data.Sample{
		{Label: 3, Keys: []uint64{5, 9}, Values: []float32{2, -8}},
		{Label: -1, Keys: []uint64{9, 5, 9}, Values: []float32{1, 0.5, 2}}, // feature 9 is 3
	}}
	cfg := Config{Objective: Square, Bits: 4, Batch: 2, MicroBatch: 1, Epochs: 1, LearningRate: 0.25}
	_, m := mustTrain(t, src, cfg, 2)
	// q: row 1: 15 (16, cut), -15; row 2: 4, 6. df: -3, 1. scale: 0.25·df/2·2^36.
	s1, s2 := int64(-3)<<33, int64(1)<<33
	want := []column{{5, -(s1*15 + s2*4), 2}, {9, -(s1*-15 + s2*6), 8}}
	if !slices.Equal(m.columns, want) {
		t.Errorf("%+v, want %+v", m.columns, want)
	}
	w, err := m.Weights(cfg.Objective)
	if err != nil {
		t.Fatal(err)
	}
	got := make([]float32, 2)
	if err := w.Pull(t.Context(), []uint64{5, 9}, got); err != nil || *w.Task != data.Regression || w.Bias != 0 {
		t.Errorf("%v, %+v", err, w)
	}
	for i, c := range want {
		if x := float32(math.Ldexp(float64(c.weight), -40) / float64(c.magnitude)); got[i] != x {
			t.Errorf("weight of feature %d is %v, want %v", c.key, got[i], x)
		}
	}
}

// reference is SGD in float32, on the same rows in the same order.
func reference(src *table, cfg Config) (losses []float64, weights map[uint64]float32) {
	largest := map[uint64]float32{}
	for _, row := range src.rows {
		for i, key := range row.Keys {
			largest[key] = max(largest[key], float32(math.Abs(float64(row.Values[i]))))
		}
	}
	weights = map[uint64]float32{}
	order := make([]uint32, len(src.rows))
	for i := range order {
		order[i] = uint32(i)
	}
	for e := range cfg.Epochs {
		cfg.Shuffle(order, e)
		sum := 0.0
		for batch := range slices.Chunk(order, cfg.Batch) {
			gradient := map[uint64]float32{}
			for _, i := range batch {
				row := src.rows[i]
				var z float32
				x := func(k int) float32 {
					if row.Values[k] == 0 {
						return 0
					}
					return row.Values[k] / largest[row.Keys[k]]
				}
				for k, key := range row.Keys {
					z += x(k) * weights[key]
				}
				df, loss := cfg.Objective.Loss(float64(z), float64(row.Label))
				sum += loss
				for k, key := range row.Keys {
					gradient[key] += float32(cfg.LearningRate*df/float64(cfg.Batch)) * x(k)
				}
			}
			for key, g := range gradient {
				weights[key] -= g
			}
		}
		losses = append(losses, sum/float64(len(order)))
	}
	for key := range weights {
		if largest[key] > 0 {
			weights[key] /= largest[key]
		}
	}
	return losses, weights
}

// The training loss of each epoch is within 2 % of that of float32 with 4 bits, and within 0.5 %
// with 8.
func TestLossIsThatOfFloats(t *testing.T) {
	src := gisette(1000, 200)
	for _, o := range []Objective{Logistic, Hinge, Square} {
		cfg := Config{Objective: o, Batch: 64, MicroBatch: 8, Epochs: 4, LearningRate: 0.1, Seed: 2}
		want, _ := reference(src, cfg)
		for bits, bound := range map[int]float64{4: 0.02, 8: 0.005} {
			cfg.Bits = bits
			epochs, _ := mustTrain(t, src, cfg, 2)
			for e, loss := range want {
				if off := epochs[e].Loss/loss - 1; math.Abs(off) > bound {
					t.Errorf("%v, %d bits, epoch %d: loss %.4f, in floats %.4f: %.2f %%", o, bits, e+1, epochs[e].Loss, loss, 100*off)
				}
			}
		}
	}
}

// What leaves its range ends the training, with the row or the column.
func TestRanges(t *testing.T) {
	const far = 1 << 30
	column := func(label float32, rows int) *table {
		t := &table{}
		for range rows {
			t.rows = append(t.rows, data.Sample{Label: label, Keys: []uint64{77}, Values: []float32{4}})
		}
		return t
	}
	wide := &table{} // many columns, whose weights add up
	for range 2 {
		s := data.Sample{Label: 60}
		for key := range uint64(1000) {
			s.Keys, s.Values = append(s.Keys, key), append(s.Values, 1)
		}
		wide.rows = append(wide.rows, s)
	}
	for name, c := range map[string]struct {
		src    *table
		rate   float64
		row    int
		column uint64
		want   string
	}{
		"activation": {wide, 1, far, 0, "its activation 5.2"},
		"scale":      {column(1000, 1), 1, 1, 0, "its step 1000 is not below 256: lower the learning rate"},
		"label":      {column(3e38, 1), 1, 1, 0, "its step 3e+38 is not below 256"},
		"weight":     {column(-200, 9), 1, 0, 77, "the weight of feature 77: -1"},
		"rate":       {column(1, 1), 1e308, 1, 0, "its step 1e+308"},
	} {
		cfg := Config{Objective: Square, Bits: 4, Batch: 1, MicroBatch: 1, Epochs: 1, LearningRate: c.rate}
		if name == "weight" {
			cfg.Batch = 9
			cfg.LearningRate = 9
		}
		_, _, err := trainAll(t.Context(), func() data.Source { return &table{rows: c.src.rows} }, cfg, 1)
		var out *RangeError
		if !errors.As(err, &out) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "lower the learning rate") {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if c.row == far && out.Row > 0 {
			c.row = out.Row // the second in the order of rows
		}
		if out.Row != c.row || out.Column != c.column {
			t.Errorf("%s: %+v", name, out)
		}
		cfg.LearningRate = 1e-42
		if _, _, err := trainAll(t.Context(), func() data.Source { return &table{rows: c.src.rows} }, cfg, 1); err != nil {
			t.Errorf("%s, with a lower learning rate: %v", name, err)
		}
	}
}

// Weights of values that are too small for float32 weights are refused.
func TestWeightsBeyondFloats(t *testing.T) {
	m := &Model{columns: []column{{8, 1 << 49, 1e-40}}}
	var out *RangeError
	if _, err := m.Weights(Logistic); !errors.As(err, &out) || out.Column != 8 || !strings.Contains(err.Error(), "multiply them") {
		t.Error(err)
	}
}

// Reading ends between two rows, training between two mini-batches, and collecting between two
// operations when the context does.
func TestCancel(t *testing.T) {
	why := errors.New("enough")
	for after, what := range []string{"reading", "training", "collecting"} {
		ctx, cancel := context.WithCancelCause(t.Context())
		reach := func(step int) {
			if step == after {
				cancel(why)
			}
		}
		reach(0)
		rows, err := Load(ctx, gisette(10, 3), 1, 0, 1)
		if err == nil {
			reach(1)
			cfg := Config{Bits: 1, Batch: 1, MicroBatch: 1, Epochs: 1, LearningRate: 1e-3}
			w := Worker{Config: cfg, Rows: rows, Workers: 1, Sums: &end{adder: newAdder(1)}, Width: 1, InFlight: 1}
			var done *Trained
			if done, err = w.Train(ctx); err == nil {
				reach(2)
				_, err = done.Collect(ctx)
			}
		}
		if cancel(nil); !errors.Is(err, why) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A pass over long rows looks for frames.
func TestLongRowsPoll(t *testing.T) {
	src := gisette(3, 3*pollEvery/2)
	rows, err := Load(t.Context(), src, 1, 0, 4)
	if err != nil {
		t.Fatal(err)
	}
	e := &end{adder: newAdder(1)}
	_, err = Worker{Config: Config{Bits: 4, Batch: 3, MicroBatch: 3, Epochs: 1, LearningRate: 1e-6}, Rows: rows, Workers: 1, Sums: e, Width: 3, InFlight: 1}.Train(t.Context())
	if err != nil || e.polls < 3 {
		t.Errorf("%d polls, %v", e.polls, err)
	}
}

// The message of an invalid field names it and what is allowed.
func TestConfig(t *testing.T) {
	if err := Defaults().Validate(); err != nil {
		t.Error(err)
	}
	for want, change := range map[string]func(*Config){
		"objective 3 is none of logistic, hinge, square":                func(c *Config) { c.Objective = 3 },
		"bits 0: it must be from 1 to 8":                                func(c *Config) { c.Bits = 0 },
		"bits 9: it must be from 1 to 8":                                func(c *Config) { c.Bits = 9 },
		"micro-batch 0: it must be from 1 to 220":                       func(c *Config) { c.MicroBatch = 0 },
		"micro-batch 221: it must be from 1 to 220":                     func(c *Config) { c.MicroBatch = 221 },
		"batch 0: it must be from 1 to 1024":                            func(c *Config) { c.Batch = 0 },
		"batch 1025: it must be from 1 to 1024":                         func(c *Config) { c.Batch = 1025 },
		"batch 60 is no multiple of micro-batch 8: give 56, or another": func(c *Config) { c.Batch = 60 },
		"batch 4 is no multiple of micro-batch 8: give 8, or another":   func(c *Config) { c.Batch = 4 },
		"epochs 0: it must be 1 or more":                                func(c *Config) { c.Epochs = 0 },
		"learning-rate 0: it must be a number above 0":                  func(c *Config) { c.LearningRate = 0 },
		"learning-rate NaN: it must be a number above 0":                func(c *Config) { c.LearningRate = math.NaN() },
		"learning-rate +Inf: it must be a number above 0":               func(c *Config) { c.LearningRate = math.Inf(1) },
	} {
		c := Defaults()
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	for i, name := range Objectives() {
		if o, err := ParseObjective(name); err != nil || o != Objective(i) || o.String() != name {
			t.Errorf("%s: %v, %v", name, o, err)
		}
	}
	if _, err := ParseObjective("tweedie"); err == nil || !strings.Contains(err.Error(), "none of logistic, hinge, square") {
		t.Error(err)
	}
}

// What its user has to get right is refused.
func TestWorkerRefuses(t *testing.T) {
	rows, err := Load(t.Context(), gisette(2, 2), 1, 0, 4)
	if err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Worker){
		"0 rows":                 func(w *Worker) { w.Rows = &Rows{bits: 4} },
		"rows of 4 bits":         func(w *Worker) { w.Config.Bits = 5 },
		"worker 1 of 1":          func(w *Worker) { w.Index = 1 },
		"1 operations of 7":      func(w *Worker) { w.Width = 7 },
		"0 operations of 8":      func(w *Worker) { w.InFlight = 0 },
		"glm: epochs 0: it must": func(w *Worker) { w.Config.Epochs = 0 },
	} {
		w := Worker{Config: Defaults(), Rows: rows, Workers: 1, Sums: &end{adder: newAdder(1)}, Width: 8, InFlight: 1}
		change(&w)
		if _, err := w.Train(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
