// SPDX-License-Identifier: Apache-2.0

package train

import (
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/train/fields"
)

// Recipe is a set of hyper-parameters for a kind of data.
type Recipe struct {
	Epochs, Batch, Factors int
	// Staleness and Accumulate are for asynchronous training.
	Staleness, Accumulate int
	Optimizer             ps.Optimizer
	// Scale is the bound of the initial latent weights.
	Scale float32
}

// Store returns the configuration of a store that trains m.
func (r Recipe) Store(m Model, seed uint64) ps.Config {
	return ps.Config{Dim: m.Dim(), Exp: ps.DefaultExp, Optimizer: r.Optimizer, Init: ps.Init{Scale: r.Scale, Seed: seed}}
}

// The recipes were chosen by random search for a high AUC that asynchrony hardly changes: gradients
// that are a few mini-batches late, and steps that merge up to sixteen mini-batches. Twice the
// learning rate of SmallData reaches an AUC of 0.95 sooner, but then asynchrony costs up to 0.008.
// See BenchmarkTraining for their results, and package fields for the values.
var (
	// SmallData suits tens of thousands of samples with frequent features, such as Frappe. It has
	// many small steps.
	SmallData = Recipe{
		Epochs: fields.Epochs.SmallData(), Batch: fields.Batch.SmallData(), Factors: fields.Factors.SmallData(),
		Staleness: fields.Staleness.SmallData(), Accumulate: fields.Accumulate.SmallData(),
		Optimizer: adagrad(fields.LearningRate.SmallData(), fields.InitialAccumulator.SmallData()),
		Scale:     float32(fields.InitScale.SmallData()),
	}
	// ClickLog suits long logs with many rare features, such as those of [data.Synthetic].
	ClickLog = Recipe{
		Epochs: fields.Epochs.ClickLog(), Batch: fields.Batch.ClickLog(), Factors: fields.Factors.ClickLog(),
		Staleness: fields.Staleness.ClickLog(), Accumulate: fields.Accumulate.ClickLog(),
		Optimizer: adagrad(fields.LearningRate.ClickLog(), fields.InitialAccumulator.ClickLog()),
		Scale:     float32(fields.InitScale.ClickLog()),
	}
)

func adagrad(rate, accumulator float64) ps.Optimizer {
	return ps.Optimizer{Method: ps.Adagrad, LearningRate: float32(rate), InitialAccumulator: float32(accumulator)}
}
