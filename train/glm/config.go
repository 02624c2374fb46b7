// SPDX-License-Identifier: Apache-2.0

package glm

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/libra-ina/libra/train/data"
)

const (
	// MaxBits is the largest number of bits of a feature's magnitude.
	MaxBits = 8
	// DefaultBits is the paper's choice.
	DefaultBits = 4
	// MaxBatch is the largest size of mini-batches: sums of 1,024 gradients fit 64 bits.
	MaxBatch = 1024
	// MaxMicroBatch is the largest size of micro-batches: what one frame carries.
	MaxMicroBatch = 220
	// DefaultMicroBatch is the paper's choice.
	DefaultMicroBatch = 8
	// DefaultLearningRate suits rows with a hundred large features or fewer.
	DefaultLearningRate = 0.1
)

// Config is what all workers of a training have in common.
type Config struct {
	Objective Objective
	// Bits is p, the number of bits of a feature's magnitude.
	Bits int
	// Batch is the number of rows of a mini-batch, a multiple of MicroBatch. The last mini-batch of an
	// epoch may have fewer; its gradients are divided by Batch as well, so that all rows weigh the
	// same.
	Batch, MicroBatch int
	Epochs            int
	LearningRate      float64
	// Seed of the order of rows, which is drawn anew for each epoch.
	Seed uint64
}

// Defaults returns the default configuration.
func Defaults() Config {
	return Config{
		Bits: DefaultBits, Batch: 64, MicroBatch: DefaultMicroBatch, Epochs: 1, LearningRate: DefaultLearningRate,
	}
}

// Validate reports the first invalid field, which it names as the flags of 'libra glm' do.
func (c Config) Validate() error {
	switch {
	case c.Objective < 0 || int(c.Objective) >= len(objectives):
		return fmt.Errorf("objective %d is none of %s", c.Objective, strings.Join(objectives, ", "))
	case c.Bits < 1 || c.Bits > MaxBits:
		return fmt.Errorf("bits %d: it must be from 1 to %d", c.Bits, MaxBits)
	case c.MicroBatch < 1 || c.MicroBatch > MaxMicroBatch:
		return fmt.Errorf("micro-batch %d: it must be from 1 to %d", c.MicroBatch, MaxMicroBatch)
	case c.Batch < 1 || c.Batch > MaxBatch:
		return fmt.Errorf("batch %d: it must be from 1 to %d", c.Batch, MaxBatch)
	case c.Batch%c.MicroBatch != 0:
		return fmt.Errorf("batch %d is no multiple of micro-batch %d: give %d, or another micro-batch", c.Batch, c.MicroBatch,
			max(c.MicroBatch, c.Batch/c.MicroBatch*c.MicroBatch))
	case c.Epochs < 1:
		return fmt.Errorf("epochs %d: it must be 1 or more", c.Epochs)
	case !(c.LearningRate > 0) || math.IsInf(c.LearningRate, 0):
		return fmt.Errorf("learning-rate %g: it must be a number above 0", c.LearningRate)
	}
	return nil
}

// Shuffle turns the order of rows in the epoch before, or in none, into that of an epoch, counted
// from 0.
func (c Config) Shuffle(order []uint32, epoch int) {
	rng := rand.New(rand.NewPCG(c.Seed, uint64(epoch)))
	rng.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
}

// String names the settings: workers whose texts differ do not belong together.
func (c Config) String() string {
	return fmt.Sprintf("%v, %d bits, mini-batches of %d in micro-batches of %d, %d epochs, learning rate %g, seed %d",
		c.Objective, c.Bits, c.Batch, c.MicroBatch, c.Epochs, c.LearningRate, c.Seed)
}

// Objective is the loss whose sum training makes small.
type Objective int

const (
	// Logistic is the log-loss of clicks: logistic regression.
	Logistic Objective = iota
	// Hinge is max(0, 1-yz) of labels y of -1 and 1: a linear support vector machine.
	Hinge
	// Square is half of the squared error: linear regression.
	Square
)

var objectives = []string{"logistic", "hinge", "square"}

// Objectives lists the names of all objectives.
func Objectives() []string { return slices.Clone(objectives) }

// ParseObjective returns the objective of a name.
func ParseObjective(name string) (Objective, error) {
	if i := slices.Index(objectives, name); i >= 0 {
		return Objective(i), nil
	}
	return 0, fmt.Errorf("objective %q is none of %s", name, strings.Join(objectives, ", "))
}

// String returns the objective's name.
func (o Objective) String() string { return objectives[o] }

// Task returns what a model with this objective predicts, which decides the labels that data may
// have.
func (o Objective) Task() data.Task {
	if o == Square {
		return data.Regression
	}
	return data.Classification
}
