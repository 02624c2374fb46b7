// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"time"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/train/data"
)

// The fields of the job, on which the aggregator, the servers and the workers agree.
var (
	Sync = Field[bool]{
		Path: "job.sync", Example: "true",
		About: "All workers take each step together, with a barrier at its end; then weights are reproducible, bit for bit",
	}
	Arithmetic = Field[string]{
		Path: "job.arithmetic", Default: aggregator.Exact.String(), Range: "exact, lut, fixed",
		About: "How the aggregator adds: exact (64-bit fixed point), lut (float32 by table lookup) or fixed (saturating 32-bit fixed point)",
	}
	Harvest = Field[time.Duration]{
		Path: "job.harvest", Default: 20 * time.Millisecond, Range: "1µs..1h", When: "not with sync",
		About: "Time between two harvests of the sums",
	}
	// Staleness makes training stale synchronous parallel (Ho et al. 2013). A mini-batch of a long
	// click log is a small part of it, so that weights may lack more of them.
	Staleness = Field[int]{
		Path: "job.staleness", Default: 8, clickLog: 24, Range: "1 or more", When: "not with sync",
		About: "Largest number of mini-batches that a worker has pushed and that may be missing in the weights that it computes with",
	}
	// Accumulate is 1 by default, because small data sets do not benefit from more.
	Accumulate = Field[int]{
		Path: "job.accumulate", Default: 1, clickLog: 12, Range: "1 or more", When: "not with sync",
		About: "Mini-batches for which a worker keeps hot rows: it pulls their weights once, and pushes their gradients as one sum; the limit of staleness takes precedence",
	}
)

// The fields of the model.
var (
	Model = Field[string]{
		Path: "model.kind", Default: "fm", Range: "fm, lr", flag: "model",
		About: "Model: fm is a factorisation machine, lr logistic (with task regression: linear) regression",
	}
	Task = Field[string]{
		Path: "model.task", Default: data.Classification.String(), Range: "classification, regression",
		About: "What is predicted: classification is of clicks (labels 1 and 0 or -1, log-loss), regression of numbers (any labels, squared error)",
	}
	// Factors are fewer for the synthetic log, so that its demo has the number of parameters of the
	// paper's search engine, see demo.SyntheticRows.
	Factors = Field[int]{
		Path: "model.factors", Default: 24, clickLog: 8, Range: "1..64", When: "only with fm",
		About: "Latent weights of a feature, the same number in the hot set and in training",
	}
	Optimizer = Field[string]{
		Path: "model.optimizer", Default: ps.Adagrad.String(),
		Range: "adagrad, sgd; none, for the sums of each step alone, only with sync and without data",
		About: "Rule by which gradients change weights",
	}
	LearningRate = Field[float64]{
		Path: "model.learning_rate", Default: ps.DefaultLearningRate, Range: "above 0", When: "not with optimizer none",
		About: "Learning rate of the optimiser: the scale of every change",
	}
	InitialAccumulator = Field[float64]{
		Path: "model.initial_accumulator", Default: ps.DefaultInitialAccumulator, Range: "above 0",
		When:  "only with adagrad",
		About: "Initial value of the sums of squared gradients",
	}
	// InitScale is small, since scores grow with its square and with the square of the values: with
	// a bound of 0.2, features of 100 have gradients that no arithmetic holds. [train.Frequent] says
	// where a larger one is better.
	InitScale = Field[float64]{
		Path: "model.init_scale", Default: ps.DefaultScale, clickLog: 0.02, Range: "above 0",
		When:  "only with fm",
		About: "Bound of the initial latent weights",
	}
	L2 = Field[float64]{
		Path: "model.l2", Range: "0 or more", Example: "0.001",
		About: "Weight of the ridge penalty on the rows of a mini-batch",
	}
	// Batch is larger for long logs, whose mini-batches are small parts of them.
	Batch = Field[int]{
		Path: "model.batch", Default: 64, clickLog: 256, Range: "1 or more",
		About: "Rows of the data in a mini-batch",
	}
	// Epochs is 1 where nothing is known of the data. Small data need several, and of a long log
	// two are enough.
	Epochs = Field[int]{
		Path: "model.epochs", Default: 1, smallData: 10, clickLog: 2, Range: "1 or more",
		About: "Total passes over the data, including those before a checkpoint",
	}
	// Seed is 1 in 'libra demo' and 'libra run', which have always printed the results of that seed.
	Seed = Field[uint64]{
		Path: "model.seed", Example: "1",
		About: "Seed of the initial weights and of the order of rows",
	}
	Window = Field[int]{
		Path: "data.window", Range: "0 or more; 0 for all, which reads its file once", Example: "1000000",
		About: "Rows that a worker holds in memory and shuffles at a time, for data larger than memory",
	}
)

// All lists the fields.
func All() []Entry {
	return []Entry{
		Sync, Arithmetic, Harvest, Staleness, Accumulate,
		Model, Task, Factors, Optimizer, LearningRate, InitialAccumulator, InitScale, L2, Batch, Epochs, Seed, Window,
	}
}
