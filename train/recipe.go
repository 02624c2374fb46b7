// SPDX-License-Identifier: Apache-2.0

package train

import "github.com/libra-ina/libra/ps"

// Recipe is a set of hyper-parameters for a kind of data.
type Recipe struct {
	Epochs, Batch int
	// Staleness, and the number of mini-batches for which a worker keeps hot rows, are for
	// asynchronous training.
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
// See BenchmarkTraining for their results.
var (
	// SmallData suits a few ten thousand samples with frequent features, such as Frappe. It has
	// many small steps; factors start large, because zero is a saddle point that late gradients
	// leave slowly.
	SmallData = Recipe{
		Epochs: DefaultEpochs, Batch: DefaultBatch, Staleness: 8, Accumulate: 1,
		Optimizer: ps.Optimizer{Method: ps.Adagrad, LearningRate: ps.DefaultLearningRate, InitialAccumulator: 1e-5},
		Scale:     0.2,
	}
	// ClickLog suits long logs with many rare features, such as those of [Synthetic]. Factors
	// overfit to rare features, so they start small, and two epochs are enough. Each mini-batch is
	// a small part of the log, so weights may lack more of them.
	ClickLog = Recipe{
		Epochs: 2, Batch: 256, Staleness: 24, Accumulate: 12,
		Optimizer: ps.Optimizer{Method: ps.Adagrad, LearningRate: ps.DefaultLearningRate, InitialAccumulator: ps.DefaultInitialAccumulator},
		Scale:     0.02,
	}
)
