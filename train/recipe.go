// SPDX-License-Identifier: Apache-2.0

package train

import (
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/train/settings"
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
// learning rate of Frequent reaches an AUC of 0.95 sooner, but then asynchrony costs up to 0.008.
// See BenchmarkTraining for their results, and package settings for the values.
var (
	// SmallData suits tens of thousands of samples. It has many small steps.
	SmallData = Recipe{
		Epochs: settings.Epochs.SmallData(), Batch: settings.Batch.SmallData(), Factors: settings.Factors.SmallData(),
		Staleness: settings.Staleness.SmallData(), Accumulate: settings.Accumulate.SmallData(),
		Optimizer: adagrad(settings.LearningRate.SmallData(), settings.InitialAccumulator.SmallData()),
		Scale:     float32(settings.InitScale.SmallData()),
	}
	// Frequent is SmallData for frequent features whose values are all 1, such as those of Frappe.
	// Its latent weights begin far from zero, a saddle point that late gradients leave slowly, and
	// its accumulator is one that few steps outgrow. Larger values need SmallData's.
	Frequent = SmallData.begin(0.2, 1e-5)
	// ClickLog suits long logs with many rare features, such as those of [data.Synthetic].
	ClickLog = Recipe{
		Epochs: settings.Epochs.ClickLog(), Batch: settings.Batch.ClickLog(), Factors: settings.Factors.ClickLog(),
		Staleness: settings.Staleness.ClickLog(), Accumulate: settings.Accumulate.ClickLog(),
		Optimizer: adagrad(settings.LearningRate.ClickLog(), settings.InitialAccumulator.ClickLog()),
		Scale:     float32(settings.InitScale.ClickLog()),
	}
)

// begin returns the recipe with other initial values.
func (r Recipe) begin(scale, accumulator float32) Recipe {
	r.Scale, r.Optimizer.InitialAccumulator = scale, accumulator
	return r
}

func adagrad(rate, accumulator float64) ps.Optimizer {
	return ps.Optimizer{Method: ps.Adagrad, LearningRate: float32(rate), InitialAccumulator: float32(accumulator)}
}
