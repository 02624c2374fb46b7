// SPDX-License-Identifier: Apache-2.0

// Package hotset studies how well hot parameters are found and packed, on real
// and synthetic training logs: the experiments of the paper's §5.3 and §5.4 with
// the code that Libra itself uses.
//
//   - Precision: which part of the true hot set a sample of the rows finds.
//   - Packets: how often a switch would have to recirculate a packet, by
//     placement and packing.
//   - Lanes: the share of unfilled lanes, by batch size.
//
// Parameters are single scalars here (dimension 1), as in the paper.
package hotset

import (
	"fmt"
	"math"

	"github.com/libra-ina/libra/internal/report/experiment"
)

// Run carries the study out. It returns [experiment.ErrConfig] for a bad configuration
// and the errors of unreadable or malformed logs.
func Run(c Config) (*Report, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	logs, err := load(c)
	if err != nil {
		return nil, err
	}
	r := &Report{Samples: c.Samples, MinGain: c.MinGain, BatchRows: c.BatchRows}
	for _, l := range logs {
		r.Logs = append(r.Logs, l.describe())
		p, err := precision(l, c)
		if err != nil {
			return nil, fmt.Errorf("hotset study: precision on %s: %w", l.name, err)
		}
		r.Precision = append(r.Precision, p...)
		hot, err := hotSetOf(l, c)
		if err != nil {
			return nil, fmt.Errorf("hotset study: hot set of %s: %w", l.name, err)
		}
		for _, combined := range []bool{true, false} {
			packed, err := packets(l, hot, c, combined)
			if err != nil {
				return nil, fmt.Errorf("hotset study: packets of %s: %w", l.name, err)
			}
			r.Packets = append(r.Packets, packed...)
			filled, err := lanes(l, hot, c, combined)
			if err != nil {
				return nil, fmt.Errorf("hotset study: lanes of %s: %w", l.name, err)
			}
			r.Lanes = append(r.Lanes, filled...)
		}
	}
	return r, nil
}

// Config is what to study; [Defaults] is synthetic logs.
type Config struct {
	// LibFM are paths of logs in libFM format, plain or gzip. Features are
	// the parameters; each line is a row.
	LibFM []string
	// Text are paths of tokenised text, plain or gzip. Words are the
	// parameters; each line that is not empty is a row.
	Text []string
	// HotShares adds one synthetic log for each entry: the share of updates
	// of its top 30,000 parameters.
	HotShares []float64
	// SyntheticRows is the number of rows of a synthetic log, 20 updates
	// each.
	SyntheticRows int

	// Rates are the sampling rates, above 0 and at most 1.
	Rates []float64
	// Samples is the number of samples that are drawn at each rate.
	Samples int
	// Steps are the step sizes of the trade-off rule, MinGain is its threshold.
	Steps   []int
	MinGain float64

	// BatchRows is the number of log rows in a mini-batch of the packet
	// study.
	BatchRows int
	// BatchSizes are the batch sizes of the lane study, in pairs.
	BatchSizes []int

	// Seed selects samples, synthetic logs and the random placement.
	Seed uint64
}

// topParameters is the size of the paper's hot sets (§5.2).
const topParameters = 30_000

// Defaults returns the configuration of a study of synthetic logs only, which
// have the skew of the paper's two production tasks. Step 1,000 and the threshold
// are the paper's.
func Defaults() Config {
	return Config{
		HotShares: []float64{0.5, 0.7}, SyntheticRows: 200_000,
		Rates: []float64{0.01, 0.02, 0.04, 0.08, 0.16}, Samples: 9,
		Steps: []int{1000, 100, 10}, MinGain: 0.01,
		BatchRows: 256, BatchSizes: []int{64, 256, 1024, 4096, 16384},
		Seed: 1,
	}
}

func (c *Config) check() error {
	var none error
	if len(c.LibFM)+len(c.Text)+len(c.HotShares) == 0 {
		none = fmt.Errorf("%w: no log to study", experiment.ErrConfig)
	}
	return experiment.Check("hotset study", none,
		experiment.InRange("rows", 1, math.MaxInt, c.SyntheticRows),
		experiment.InRange("rates", math.SmallestNonzeroFloat64, 1, c.Rates...),
		experiment.InRange("rounds", 1, math.MaxInt, c.Samples),
		experiment.InRange("steps", 1, math.MaxInt, c.Steps...),
		experiment.InRange("rows of a batch", 1, math.MaxInt, c.BatchRows),
		experiment.InRange("pairs of a batch", 1, math.MaxInt, c.BatchSizes...),
	)
}
