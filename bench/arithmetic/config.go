package arithmetic

import (
	"errors"
	"fmt"
	"slices"
)

// ErrConfig says that a field of Config is out of range.
var ErrConfig = errors.New("arithmetic study: bad configuration")

// Config says what to study. The zero value is the paper's experiment on a
// synthetic click log.
type Config struct {
	// Data is the path of a log in libFM format, plain or gzip, that a
	// factorisation machine is trained on to get gradients. Empty means a
	// synthetic log.
	Data string
	// Batches is the number of mini-batches to train on. 0 means one pass over
	// the log.
	Batches int
	// Pairs is the number of pairs of each data set. 0 means 100,000, the
	// paper's.
	Pairs int
	// Additions are the lengths of the long sums, ascending. Nil means 1, 2
	// and 5 times each power of ten, from 10 to 1,000,000.
	Additions []int
	// Trials is the number of long sums of each length. 0 means 9.
	Trials int
	// Senders is the number of senders in the account of memory. 0 means 8.
	Senders int
	// Seed selects the samples' order, the pairs and the random numbers.
	Seed uint64
}

func (c Config) withDefaults() (Config, error) {
	if c.Additions == nil {
		for n := 10; n < 1_000_000; n *= 10 {
			c.Additions = append(c.Additions, n, 2*n, 5*n)
		}
		c.Additions = append(c.Additions, 1_000_000)
	}
	for _, f := range []struct {
		name     string
		value    *int
		fallback int
	}{
		{"batches", &c.Batches, 0},
		{"pairs", &c.Pairs, 100_000},
		{"trials", &c.Trials, 9},
		{"senders", &c.Senders, 8},
	} {
		if *f.value == 0 {
			*f.value = f.fallback
		}
		if *f.value < 0 {
			return c, fmt.Errorf("%w: %s: %d is negative", ErrConfig, f.name, *f.value)
		}
	}
	if len(c.Additions) == 0 || c.Additions[0] < 1 || !slices.IsSorted(c.Additions) {
		return c, fmt.Errorf("%w: additions %v are not ascending, from 1", ErrConfig, c.Additions)
	}
	return c, nil
}
