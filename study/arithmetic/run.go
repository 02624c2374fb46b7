// SPDX-License-Identifier: Apache-2.0

// Package arithmetic studies the numbers that an aggregator adds: what table
// lookup, scaled integers, float32 and exact fixed point make of one addition
// (the paper's §5.5, Table 2) and of a long sum, and the memory that they take
// (§5.7).
//
// The precision of a sum is 1 - |got - true| / |true|, and not less than 0: a sum
// that is wrong by more than itself is no worse than none. Where the true sum is
// 0 it is 1 if got is 0, too, and 0 otherwise.
package arithmetic

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/libra-ina/libra/internal/num/fixedpoint"
	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/lut"
)

// Run carries the study out. It returns [experiment.ErrConfig] for a bad configuration
// and the errors of an unreadable or malformed log.
func Run(c Config) (*Report, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	table, err := lut.New(lut.Config{})
	if err != nil {
		return nil, err
	}
	rng := rand.New(rand.NewPCG(c.Seed, 0))
	r1, err := gradients(c, rng)
	if err != nil {
		return nil, err
	}
	r2 := uniform("R2 uniform (-1, 1)", -1, c.Pairs, rng)
	// The paper has no data set of one sign, where sums grow fastest.
	growing := uniform("uniform (0, 1)", 0, c.Pairs, rng)

	r := &Report{Trials: c.Trials, Senders: c.Senders, Tables: table.Budget(), Bound: table.Bound()}
	pairs := slot{table, fixedpoint.Format{Exp: fixedpoint.DefaultExp}}
	for i, d := range []dataSet{r1, r2} {
		for _, a := range arithmetics {
			p, err := table2(d, a, pairs, 0)
			if err != nil {
				return nil, fmt.Errorf("arithmetic study: %s of %s: %w", a, d.name, err)
			}
			if paper, ok := paperTable2[a]; ok {
				p.Paper = &paper[i]
			}
			r.Precision = append(r.Precision, p)
		}
	}
	if r.Foreign, err = table2(r2, Fixed, pairs, r1.medianBound()); err != nil {
		return nil, fmt.Errorf("arithmetic study: foreign scale: %w", err)
	}
	for _, d := range []dataSet{r1, r2, growing} {
		r.DataSets = append(r.DataSets, describe(d))
		long, err := longSums(d, c, table)
		if err != nil {
			return nil, err
		}
		r.LongSums = append(r.LongSums, long...)
	}
	r.Memory = memory(c, r.Tables)
	r.Advice = r.advice()
	return r, nil
}

// Config is what to study; [Defaults] is the paper's experiment.
type Config struct {
	// Data is the path of a log in libFM format, plain or gzip, that a
	// factorisation machine is trained on to get gradients. Empty means a
	// synthetic log.
	Data string
	// Batches is the number of mini-batches to train on. 0 means one pass over
	// the log.
	Batches int
	// Pairs is the number of pairs of each data set.
	Pairs int
	// Additions are the lengths of the long sums, ascending.
	Additions []int
	// Trials is the number of long sums of each length.
	Trials int
	// Senders is the number of senders in the account of memory.
	Senders int
	// Seed selects the samples' order, the pairs and the random numbers.
	Seed uint64
}

// Defaults returns the configuration of the paper's experiment on a synthetic
// click log, with sums of 10 to 1,000,000 numbers.
func Defaults() Config {
	c := Config{Pairs: 100_000, Trials: 9, Senders: 8, Seed: 1}
	for n := 10; n < 1_000_000; n *= 10 {
		c.Additions = append(c.Additions, n, 2*n, 5*n)
	}
	c.Additions = append(c.Additions, 1_000_000)
	return c
}

func (c *Config) check() error {
	var order error
	if len(c.Additions) == 0 || !slices.IsSorted(c.Additions) {
		order = fmt.Errorf("%w: additions %v are not ascending", experiment.ErrConfig, c.Additions)
	}
	return experiment.Check("arithmetic study", order,
		experiment.InRange("batches", 0, math.MaxInt, c.Batches),
		experiment.InRange("pairs", 1, math.MaxInt, c.Pairs),
		experiment.InRange("rounds", 1, math.MaxInt, c.Trials),
		experiment.InRange("senders", 0, math.MaxInt, c.Senders),
		experiment.InRange("additions", 1, math.MaxInt, c.Additions...),
	)
}
