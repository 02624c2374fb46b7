// SPDX-License-Identifier: Apache-2.0

// Package glm compares the training of linear models whose columns are divided among workers, as
// 'libra glm' does it, with that of models of which each worker has a copy; and computes from
// measured parts how it would scale. It is what 'libra bench glm' runs; docs/benchmarks.md
// describes its workload.
package glm

import (
	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/train/glm"
)

// What is compared.
const (
	// Libra divides the columns: 'libra glm'.
	Libra = "libra"
	// Dense divides the rows, and adds whole gradients by transport.Worker.Reduce.
	Dense = "dense"
	// Sparse divides the rows, and adds the gradients of the features that occur: 'libra demo --sync'.
	Sparse = "sparse"
)

// Baselines returns what Libra can be compared with.
func Baselines() []string { return []string{Dense, Sparse} }

// Config is what to measure, and how often.
type Config struct {
	Shapes     []string // of data, by their names
	Batches    []int    // sizes of mini-batches
	Workers    int      // of the comparison
	Rows       int      // that are trained, of each shape: at most those of its data set
	Epochs     int      // over them
	Rounds     int
	Scale      []int // numbers of workers for which epochs are computed
	Operations int   // all-reduces of which each network's time is the median
	Baselines  []string

	// ChildCommand calls [RunChild]; nil: see child.Command.
	ChildCommand []string
	// Progress, if not nil, is called before each measurement.
	Progress experiment.Progress
}

// Defaults returns the configuration that the documentation's figures are measured with.
func Defaults() Config {
	return Config{
		Shapes: []string{"rcv1", "amazon_fashion"}, Batches: []int{16, 64, 256, 1024}, Workers: 4, Rows: 2048, Epochs: 3,
		Rounds: 3, Scale: []int{1, 2, 4, 8}, Operations: 2000, Baselines: append([]string{Libra}, Baselines()...),
	}
}

const (
	// lossBatch is the size of mini-batches whose losses are compared.
	lossBatch = 64
	// microBatch is the size of micro-batches, the paper's choice.
	microBatch = glm.DefaultMicroBatch
)

// maxRows is far beyond what a benchmark has time for.
const maxRows = 1_000_000

func (c *Config) checkFields() error {
	var none error
	switch {
	case len(c.Shapes) == 0:
		none = &experiment.ConfigError{Field: "shapes", Problem: "no shape is given"}
	case len(c.Batches) == 0:
		none = &experiment.ConfigError{Field: "batches", Problem: "no size is given"}
	}
	var names []string
	for _, s := range Shapes() {
		names = append(names, s.Name)
	}
	errs := []error{
		none,
		experiment.Known("shapes", names, c.Shapes...),
		experiment.InRange("workers", 2, maxWorkers, c.Workers),
		experiment.InRange("rows", 1, maxRows, c.Rows),
		experiment.InRange("epochs", 1, 1000, c.Epochs),
		experiment.InRange("rounds", 1, 1000, c.Rounds),
		experiment.InRange("scale", 1, maxWorkers, c.Scale...),
		experiment.InRange("operations", 100, 1_000_000, c.Operations),
		experiment.Known("baseline", append([]string{Libra}, Baselines()...), c.Baselines...),
	}
	for _, b := range c.Batches {
		if err := c.training(b).Validate(); err != nil {
			errs = append(errs, &experiment.ConfigError{Field: "batches", Problem: err.Error()})
		} else if b%c.Workers != 0 {
			errs = append(errs, &experiment.ConfigError{Field: "batches",
				Problem: "a mini-batch is divided among the workers: give multiples of --workers"})
		}
	}
	return experiment.Check("glm", errs...)
}

// maxWorkers are as many as the processes of a test bed can be on one machine.
const maxWorkers = 32

// training returns what is trained with mini-batches of a size.
func (c *Config) training(batch int) glm.Config {
	t := glm.Defaults()
	t.Batch, t.Epochs, t.Seed = batch, c.Epochs, seed
	return t
}

// seed is that of the data and of the order of rows.
const seed = 1
