package workload

import "github.com/libra-ina/libra/ps"

// DefaultStore returns the configuration of a store for m with the optimiser that
// suits its sparse gradients.
func DefaultStore(m Model, seed uint64) ps.Config {
	return ps.Config{
		Dim: m.Dim(),
		Optimizer: ps.Optimizer{
			Method:             ps.Adagrad,
			LearningRate:       0.2,
			InitialAccumulator: 1e-5,
		},
		Init: ps.Init{Scale: 0.05, Seed: seed},
	}
}
