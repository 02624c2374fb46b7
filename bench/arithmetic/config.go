package arithmetic

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/libra-ina/libra/bench/harness"
)

// Config says what to study; see [Defaults].
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
	err := errors.Join(
		harness.InRange("batches", 0, math.MaxInt, c.Batches),
		harness.InRange("pairs", 1, math.MaxInt, c.Pairs),
		harness.InRange("trials", 1, math.MaxInt, c.Trials),
		harness.InRange("senders", 0, math.MaxInt, c.Senders),
		harness.InRange("additions", 1, math.MaxInt, c.Additions...),
	)
	if len(c.Additions) == 0 || !slices.IsSorted(c.Additions) {
		err = errors.Join(err, fmt.Errorf("%w: additions %v are not ascending", harness.ErrConfig, c.Additions))
	}
	if err != nil {
		return fmt.Errorf("arithmetic study: %w", err)
	}
	return nil
}
