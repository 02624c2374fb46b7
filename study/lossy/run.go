// SPDX-License-Identifier: Apache-2.0

// Package lossy trains a network on images with gradients that are shortened in several ways, and
// compares the accuracy with the bytes that are sent: the codec (package codec) beside INCEPTIONN's
// as it is printed, cut bits, 8 bits and the largest hundredth (Li et al., MICRO 2018, Figures 4
// and 14, Table III). Workers and their ring are simulated in one process, exactly: every worker
// codes what it would send, and all have the same weights.
package lossy

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/libra-ina/libra/codec"
	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/train/digits"
)

// Config is what to train, and how.
type Config struct {
	Images, Labels string // IDX files
	Train, Test    int    // images to train on, and after them to test with

	Schemes []string // of [Schemes], [Lossless] among them
	Seeds   int      // trainings of each scheme; seed 1 is the first
	Epochs  int
	Workers int
	Batch   int     // images of a worker's step
	Rate    float64 // learning rate
	// Momentum and Decay are those of the optimiser; see Table I.
	Momentum, Decay float64
	// Progress, if not nil, is told of each epoch.
	Progress experiment.Progress
}

// Defaults returns the paper's settings (Table I), for the first 8,000 and the last 2,000 of
// MNIST's 10,000 test images.
func Defaults() Config {
	return Config{
		Train: 8000, Test: 2000, Schemes: Schemes(), Seeds: 1, Epochs: 5, Workers: 4, Batch: 25,
		Rate: 0.1, Momentum: 0.9, Decay: 5e-5,
	}
}

// widths are those of the network's layers. The paper's text has five layers of 500, which are 4.6
// MB; these are its 2.5 MB.
var widths = []int{side * side, 500, 500, 10}

// side is the number of rows of an image, and of its columns.
const side = 28

func (c *Config) check() error {
	return experiment.Check("codec study",
		experiment.InRange("train", 1, 1<<24, c.Train),
		experiment.InRange("test", 1, 1<<24, c.Test),
		experiment.Known("scheme", Schemes(), c.Schemes...),
		experiment.InRange("seeds", 1, 1000, c.Seeds),
		experiment.InRange("epochs", 1, 10_000, c.Epochs),
		experiment.InRange("workers", 2, 64, c.Workers),
		experiment.InRange("batch", 1, 1<<16, c.Batch),
		experiment.InRange("rate", math.SmallestNonzeroFloat64, 1e6, c.Rate),
		experiment.InRange("momentum", 0, 1, c.Momentum),
		experiment.InRange("decay", 0, 1, c.Decay),
	)
}

// load reads the images, and parts them.
func (c *Config) load() (train, test *digits.Images, err error) {
	all, err := digits.Open(c.Images, c.Labels)
	switch {
	case err != nil:
		return nil, nil, fmt.Errorf("codec study: %w", err)
	case !slices.Equal(all.Shape, []int{side, side}):
		return nil, nil, fmt.Errorf("codec study: %w: %s has images of %s bytes, not %d × %d: give MNIST's, or others of that shape",
			digits.ErrFormat, c.Images, strings.Trim(strings.ReplaceAll(fmt.Sprint(all.Shape), " ", " × "), "[]"), side, side)
	case c.Train+c.Test > all.Len():
		return nil, nil, fmt.Errorf("codec study: %s has %d images, too few for %d to train on and %d to test with: give fewer",
			c.Images, all.Len(), c.Train, c.Test)
	case c.Train < c.Workers*c.Batch:
		return nil, nil, fmt.Errorf("codec study: %d images to train on are no step of %d workers with %d images each: give more",
			c.Train, c.Workers, c.Batch)
	}
	if most := slices.Max(all.Labels); int(most) >= widths[len(widths)-1] {
		return nil, nil, fmt.Errorf("codec study: %w: %s has the label %d: give labels of 0 to %d", digits.ErrFormat, c.Labels,
			most, widths[len(widths)-1]-1)
	}
	return all.Part(0, c.Train), all.Part(c.Train, c.Test), nil
}

// Run trains. The error is [experiment.ErrConfig], [digits.ErrFormat], or why ctx ended; then the
// report has what was finished.
func Run(ctx context.Context, c Config) (*Report, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	train, test, err := c.load()
	if err != nil {
		return nil, err
	}
	r := &Report{Train: c.Train, Test: c.Test, Seeds: c.Seeds, Epochs: c.Epochs, Workers: c.Workers, Batch: c.Batch,
		Weights: len(digits.New(widths, 1).Weights)}
	steps := &experiment.ProgressCounter{Progress: c.Progress, Total: len(c.Schemes) * c.Seeds * c.Epochs}
	runs := make(map[string][]trained)
	for seed := range c.Seeds {
		for _, s := range schemes() {
			if !slices.Contains(c.Schemes, s.name) {
				continue
			}
			t, err := newTraining(c, s, seed+1, train, test)
			if err == nil {
				err = t.run(ctx, steps, r)
			}
			if err != nil {
				r.finish(runs)
				return r, fmt.Errorf("codec study: %s: %w", s.name, err)
			}
			runs[s.name] = append(runs[s.name], t.trained)
		}
	}
	r.finish(runs)
	return r, nil
}

// trained is what one training has reached.
type trained struct {
	accuracy []float64 // after each epoch
	bytes    float64   // that a worker sent in a step, on average
}

// training is one scheme with one seed.
type training struct {
	trained
	config      Config
	scheme      scheme
	exchange    exchange
	train, test *digits.Images
	random      *rand.Rand
	network     *digits.Network
	tester      *digits.Pass
	passes      []*digits.Pass // of the workers
	gradients   [][]float32
	sum, speed  []float32
	codecs      []codec.Codec // that count, of Bounds
	steps       int
}

func newTraining(c Config, s scheme, seed int, train, test *digits.Images) (*training, error) {
	t := &training{config: c, scheme: s, train: train, test: test, network: digits.New(widths, uint64(seed)),
		random: rand.New(rand.NewPCG(uint64(seed), 1))}
	t.tester = t.network.NewPass(500)
	values := len(t.network.Weights)
	t.sum, t.speed = make([]float32, values), make([]float32, values)
	for range c.Workers {
		t.passes = append(t.passes, t.network.NewPass(c.Batch))
		t.gradients = append(t.gradients, make([]float32, values))
	}
	for _, bound := range Bounds {
		counter, err := codec.New(codec.Config{Bound: bound})
		if err != nil {
			return nil, err
		}
		t.codecs = append(t.codecs, counter)
	}
	var err error
	t.exchange, err = s.make(c.Workers, values)
	return t, err
}

// countEvery is the steps between two whose gradients' codes are counted, which takes as long as a
// step.
const countEvery = 16

func (t *training) run(ctx context.Context, steps *experiment.ProgressCounter, r *Report) error {
	for epoch := range t.config.Epochs {
		steps.Next(fmt.Sprintf("%s, epoch %d", t.scheme.name, epoch+1))
		order := t.random.Perm(t.train.Len())
		of := t.config.Workers * t.config.Batch
		for first := 0; first+of <= len(order); first += of {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			t.step(order[first:][:of], r)
		}
		t.accuracy = append(t.accuracy, t.tester.Accuracy(t.test.Values, t.test.Labels))
	}
	t.bytes /= float64(t.steps)
	return nil
}

// step takes one step with images, as many of each worker.
func (t *training) step(images []int, r *Report) {
	var workers errgroup.Group
	for w, pass := range t.passes {
		workers.Go(func() error {
			batch := images[w*t.config.Batch:][:t.config.Batch]
			values, labels := make([]float32, 0, len(batch)*t.train.Pixels), make([]uint8, 0, len(batch))
			for _, i := range batch {
				one := t.train.Part(i, 1)
				values, labels = append(values, one.Values...), append(labels, one.Labels...)
			}
			pass.Gradient(t.gradients[w], values, labels)
			return nil
		})
	}
	_ = workers.Wait() // none returns an error
	if t.scheme.name == Lossless && t.steps%countEvery == 0 {
		for i, counter := range t.codecs {
			r.count(Bounds[i], counter.Count(t.gradients[0]))
		}
	}
	for _, gradient := range t.gradients {
		for i := range gradient { // of the mean over all workers, as DistributedDataParallel has it
			gradient[i] /= float32(t.config.Workers)
		}
	}
	t.bytes += t.exchange.add(t.sum, t.gradients)
	t.steps++
	rate, momentum, decay := float32(t.config.Rate), float32(t.config.Momentum), float32(t.config.Decay)
	for i, g := range t.sum {
		t.speed[i] = momentum*t.speed[i] + g + decay*t.network.Weights[i]
		t.network.Weights[i] -= rate * t.speed[i]
	}
}
