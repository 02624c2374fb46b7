// SPDX-License-Identifier: Apache-2.0

package arithmetic

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"

	"github.com/libra-ina/libra/internal/num/scaled"
	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/train"
	"github.com/libra-ina/libra/train/data"
)

// DataSet describes numbers that were added. Least, Median and Largest are
// magnitudes.
type DataSet struct {
	Name    string  `json:"name"`
	Pairs   int     `json:"pairs"`
	Least   float64 `json:"least"`
	Median  float64 `json:"median"`
	Largest float64 `json:"largest"`
	// Opposite is the share of pairs of opposite signs.
	Opposite float64 `json:"opposite_signs"`
}

// dataSet holds numbers to add.
type dataSet struct {
	name  string
	pairs []pair
	// bound is the largest exponent of all numbers.
	bound uint8
}

// pair is two numbers that meet in a slot.
type pair struct {
	a, b float32
	// bound is the largest exponent that the two workers report in the
	// iteration of the pair.
	bound uint8
}

// number returns one of the numbers of all pairs.
func (d dataSet) number(rng *rand.Rand) float32 {
	n := rng.IntN(2 * len(d.pairs))
	if n%2 == 0 {
		return d.pairs[n/2].a
	}
	return d.pairs[n/2].b
}

// medianBound returns the bound of a median iteration.
func (d dataSet) medianBound() uint8 {
	bounds := make([]uint8, len(d.pairs))
	for i, p := range d.pairs {
		bounds[i] = p.bound
	}
	return experiment.Quantile(bounds, 0.5)
}

// uniform draws pairs of numbers between low and 1. Their bound is that of the
// interval.
func uniform(name string, low float64, n int, rng *rand.Rand) dataSet {
	const belowOne = 126
	d := dataSet{name, make([]pair, n), belowOne}
	draw := func() float32 {
		for {
			x := float32(low + (1-low)*rng.Float64())
			if x > -1 && x < 1 { // rounding may reach an end, which is outside
				return x
			}
		}
	}
	for i := range d.pairs {
		d.pairs[i] = pair{draw(), draw(), belowOne}
	}
	return d
}

func describe(d dataSet) DataSet {
	magnitudes := make([]float64, 0, 2*len(d.pairs))
	opposite := 0
	for _, p := range d.pairs {
		magnitudes = append(magnitudes, math.Abs(float64(p.a)), math.Abs(float64(p.b)))
		if math.Signbit(float64(p.a)) != math.Signbit(float64(p.b)) {
			opposite++
		}
	}
	s := experiment.SpreadOf(magnitudes)
	return DataSet{
		Name: d.name, Pairs: len(d.pairs), Least: s.Min, Median: s.Median, Largest: s.Max,
		Opposite: float64(opposite) / float64(len(d.pairs)),
	}
}

// gradients trains a factorisation machine with two synchronous workers and
// returns pairs of gradients that both push to the same parameter in the same
// iteration, chosen at random from the whole training.
func gradients(c Config, rng *rand.Rand) (d dataSet, err error) {
	src, err := open(c)
	if err != nil {
		return d, err
	}
	defer func() { err = errors.Join(err, src.Close()) }()
	model, err := train.NewModel("fm", data.Classification, 0, 0)
	if err != nil {
		return d, err
	}
	name, recipe := "synthetic click log", train.ClickLog
	if c.Data != "" {
		name, _, _ = strings.Cut(filepath.Base(c.Data), ".")
		recipe = train.Frequent
	}
	store, err := ps.New(recipe.Store(model, c.Seed))
	if err != nil {
		return d, err
	}
	r := &recorder{Local: train.Local{Store: store}, rng: rng, limit: c.Pairs, batches: c.Batches}
	_, err = train.Train(context.Background(), r, src, train.Config{
		Model: model, Epochs: 1, Batch: recipe.Batch, Sync: true, Seed: c.Seed,
		Window: c.Batches * recipe.Batch, // read no more than is needed
	})
	if err != nil && !errors.Is(err, errEnough) {
		return d, fmt.Errorf("arithmetic study: gradients of %s: %w", name, err)
	}
	if len(r.pairs) < c.Pairs {
		return d, fmt.Errorf("arithmetic study: %s gives %d pairs of gradients, %d are asked for; train on more", name,
			len(r.pairs), c.Pairs)
	}
	d = dataSet{name: "R1 " + name, pairs: r.pairs}
	for _, p := range d.pairs {
		d.bound = max(d.bound, p.bound)
	}
	return d, nil
}

func open(c Config) (data.Source, error) {
	if c.Data != "" {
		return data.OpenFile(c.Data, data.Classification, data.Shard{})
	}
	return data.NewSynthetic(data.SyntheticConfig{Seed: c.Seed}, data.Shard{})
}

// errEnough ends a training.
var errEnough = errors.New("enough mini-batches")

// recorder is the [train.Client] of two workers: successive mini-batches are
// theirs, and a step of the server takes both.
type recorder struct {
	train.Local
	rng     *rand.Rand
	limit   int // of pairs
	batches int // batches after which to stop; 0: at the end of the data

	pushes int
	// What the first worker pushes in this iteration.
	keys  []uint64
	grads []float32

	pairs []pair
	seen  int // pairs in the training so far
}

// Push implements [train.Client].
func (r *recorder) Push(ctx context.Context, keys []uint64, grads []float32) error {
	if r.pushes > 0 && r.pushes == r.batches {
		return errEnough
	}
	r.pushes++
	if r.pushes%2 == 1 {
		r.keys, r.grads = append(r.keys[:0], keys...), append(r.grads[:0], grads...)
	} else if err := r.meet(keys, grads); err != nil {
		return err
	}
	return r.Local.Push(ctx, keys, grads)
}

// Barrier implements [train.Client].
func (r *recorder) Barrier(ctx context.Context, step uint64) error {
	if r.pushes%2 == 1 {
		return nil
	}
	return r.Local.Barrier(ctx, step)
}

// meet samples the pairs of an iteration: algorithm R (Vitter, 1985).
func (r *recorder) meet(keys []uint64, grads []float32) error {
	bound, err := scaled.LargestExponent(slices.Concat(r.grads, grads))
	if err != nil {
		return err
	}
	dim := len(grads) / len(keys)
	for i, j := 0, 0; i < len(keys) && j < len(r.keys); {
		switch {
		case keys[i] < r.keys[j]:
			i++
		case keys[i] > r.keys[j]:
			j++
		default:
			for k := range dim {
				r.sample(pair{r.grads[j*dim+k], grads[i*dim+k], bound})
			}
			i++
			j++
		}
	}
	return nil
}

func (r *recorder) sample(p pair) {
	if p.a == 0 || p.b == 0 { // nothing to add
		return
	}
	r.seen++
	if len(r.pairs) < r.limit {
		r.pairs = append(r.pairs, p)
	} else if n := r.rng.IntN(r.seen); n < r.limit {
		r.pairs[n] = p
	}
}
