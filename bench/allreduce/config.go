// SPDX-License-Identifier: Apache-2.0

// Package allreduce measures how long an all-reduce of a few values takes, over AF_XDP and the XDP
// aggregator, and beside it transport.Worker.Reduce, UDP sockets, MPI and Gloo. It is what 'libra
// bench allreduce' runs; docs/benchmarks.md describes its workload and its baselines.
package allreduce

import (
	"errors"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/transport/reducer"
)

// What is compared.
const (
	// Libra is package transport/reducer over AF_XDP, with the XDP aggregator.
	Libra = "libra"
	// Lossy is Libra on links that lose frames.
	Lossy = "libra-lossy"
	// Acked is Libra in mode acked, and AckedOne the same with one group of slots: an operation waits
	// until all workers have told that they have the result of the one before.
	Acked    = "acked"
	AckedOne = "acked-one"
	// Reduce is transport.Worker.Reduce over AF_XDP, with the XDP aggregator.
	Reduce = "reduce"
	// UDP is package transport/reducer over UDP sockets, with the aggregator in Go.
	UDP = "udp"
	// MPI is OpenMPI over TCP on the loopback interface.
	MPI = "openmpi"
	// Shared is OpenMPI through shared memory.
	Shared = "openmpi-shared"
	// Gloo is the library of PyTorch over TCP on the loopback interface. Of its operations, which take
	// long, one in glooShare is made.
	Gloo      = "gloo"
	glooShare = 10
)

// Baselines returns what Libra can be compared with.
func Baselines() []string { return []string{Lossy, Acked, AckedOne, Reduce, UDP, MPI, Shared, Gloo} }

// Config is what to measure, and how long.
type Config struct {
	Workers    []int // numbers of workers
	Width      int   // values of an operation
	InFlight   int   // operations in flight, when the rate is measured
	Operations int   // of one measurement of times
	Rounds     int
	Loss       float64 // share of the frames that the links of Lossy lose in each direction
	Baselines  []string

	// ChildCommand calls [RunChild]; nil: see [child.Command].
	ChildCommand []string
	// Progress, if not nil, is called before each measurement.
	Progress experiment.Progress
}

// Defaults returns the configuration that the documentation's figures are measured with.
func Defaults() Config {
	return Config{
		Workers: []int{2, 4, 8}, Width: 8, InFlight: 64, Operations: 10_000, Rounds: 5, Loss: 0.001,
		Baselines: append([]string{Libra}, Baselines()...),
	}
}

func usesMPI(baseline string) bool { return baseline == MPI || baseline == Shared }

func ours(baseline string) bool { return !usesMPI(baseline) && baseline != Gloo }

// measuresRate reports whether operations are also measured with many in flight.
func measuresRate(baseline string) bool { return baseline == Libra || baseline == Acked }

func (c *Config) checkFields() error {
	var none error
	if len(c.Workers) == 0 {
		none = &experiment.ConfigError{Field: "workers", Problem: "no number is given"}
	}
	return experiment.Check("allreduce", errors.Join(none,
		experiment.InRange("workers", 1, aggregator.MaxWorkers, c.Workers...),
		experiment.InRange("width", 1, reducer.MaxWidth, c.Width),
		experiment.InRange("in-flight", 1, reducer.MaxInFlight, c.InFlight),
		experiment.InRange("operations", 100, 10_000_000, c.Operations),
		experiment.InRange("rounds", 1, 1000, c.Rounds),
		experiment.InRange("loss", 0, 0.5, c.Loss),
		experiment.Known("baseline", append([]string{Libra}, Baselines()...), c.Baselines...)))
}
