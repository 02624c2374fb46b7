// SPDX-License-Identifier: Apache-2.0

// Package ring measures how long workers take to add long vectors on slow lines: around a ring and
// through a parameter server, as floats and in codes. It is what 'libra bench ring' runs;
// docs/benchmarks.md describes its workload.
package ring

import (
	"errors"

	"github.com/libra-ina/libra/codec"
	"github.com/libra-ina/libra/internal/report/experiment"
)

// What is compared.
const (
	// Ring is package transport/ring without a codec.
	Ring = "ring"
	// RingCoded is the same with one.
	RingCoded = "ring-coded"
	// Server is a parameter server to which workers push their vectors, and from which they pull the
	// sum.
	Server = "server"
	// ServerCoded is the same with pushes of codes.
	ServerCoded = "server-coded"
	// MPI is OpenMPI over TCP.
	MPI = "openmpi"
)

// Config is what to measure, and how often.
type Config struct {
	Values     int // of a vector
	Bound      int // of the codec
	Scale      int
	Workers    int     // of the comparison
	Rate       float64 // of a line in it, in Mb/s
	Growth     []int   // numbers of workers, without codes
	GrowthRate float64 // of a line then, in Mb/s
	Operations int     // of one measurement
	Rounds     int

	// Progress, if not nil, is called before each measurement.
	Progress experiment.Progress
}

// Defaults returns the configuration that the documentation's figures are measured with: the vector
// is as long as the gradients of a perceptron of 784, 500, 500 and 10 neurons.
func Defaults() Config {
	return Config{
		Values: 784*500 + 500 + 500*500 + 500 + 500*10 + 10, Bound: 10, Workers: 4, Rate: 250,
		Growth: []int{4, 8}, GrowthRate: 100, Operations: 3, Rounds: 5,
	}
}

func (c *Config) checkFields() error {
	return experiment.Check("ring", errors.Join(
		experiment.InRange("values", 1, 100_000_000, c.Values),
		experiment.InRange("bound", codec.MinBound, codec.MaxBound, c.Bound),
		experiment.InRange("scale", codec.MinScale, codec.MaxScale, c.Scale),
		experiment.InRange("workers", 2, maxWorkers, c.Workers),
		experiment.InRange("growth", 2, maxWorkers, c.Growth...),
		experiment.InRange("line-rate", 1, 100_000, c.Rate),
		experiment.InRange("growth-rate", 1, 100_000, c.GrowthRate),
		experiment.InRange("operations", 1, 1000, c.Operations),
		experiment.InRange("rounds", 1, 1000, c.Rounds)))
}

// maxWorkers is as many as a test bed has room for, with a server.
const maxWorkers = 64
