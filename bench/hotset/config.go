package hotset

import (
	"errors"
	"fmt"
)

// ErrConfig says that a field of Config is out of range.
var ErrConfig = errors.New("hotset study: bad configuration")

// Config says what to study. The zero value studies synthetic logs only.
type Config struct {
	// LibFM are paths of logs in libFM format, plain or gzip. Features are
	// the parameters; each line is a row.
	LibFM []string
	// Text are paths of tokenised text, plain or gzip. Words are the
	// parameters; each line that is not empty is a row.
	Text []string
	// HotShares adds one synthetic log for each entry: the share of updates
	// of its top 30,000 parameters. Nil means 0.5 and 0.7, the paper's two
	// production tasks; empty means none.
	HotShares []float64
	// SyntheticRows is the number of rows of a synthetic log, 20 updates
	// each. 0 means 200,000.
	SyntheticRows int

	// Rates are the sampling rates. Nil means 1, 2, 4, 8 and 16 %.
	Rates []float64
	// Samples is the number of samples that are drawn at each rate. 0 means 9.
	Samples int
	// Steps are the step sizes of the trade-off rule. Nil means 1,000, the
	// paper's, 100 and 10.
	Steps []int
	// MinGain is the threshold of the trade-off rule. 0 means 0.01, the paper's.
	MinGain float64

	// BatchRows is the number of log rows in a mini-batch of the packet
	// study. 0 means 256.
	BatchRows int
	// BatchSizes are the batch sizes of the lane study, in pairs. Nil means
	// 64, 256, 1,024, 4,096 and 16,384.
	BatchSizes []int

	// Seed selects samples, synthetic logs and the random placement.
	Seed uint64
}

// topParameters is the size of the paper's hot sets (libra.txt §5.2).
const topParameters = 30_000

func (c Config) withDefaults() (Config, error) {
	if c.HotShares == nil {
		c.HotShares = []float64{0.5, 0.7}
	}
	if c.SyntheticRows == 0 {
		c.SyntheticRows = 200_000
	}
	if c.Rates == nil {
		c.Rates = []float64{0.01, 0.02, 0.04, 0.08, 0.16}
	}
	if c.Samples == 0 {
		c.Samples = 9
	}
	if c.Steps == nil {
		c.Steps = []int{1000, 100, 10}
	}
	if c.MinGain == 0 {
		c.MinGain = 0.01
	}
	if c.BatchRows == 0 {
		c.BatchRows = 256
	}
	if c.BatchSizes == nil {
		c.BatchSizes = []int{64, 256, 1024, 4096, 16384}
	}
	for _, n := range []struct {
		name  string
		value []int
	}{
		{"synthetic rows", []int{c.SyntheticRows}},
		{"samples", []int{c.Samples}},
		{"step", c.Steps},
		{"rows of a batch", []int{c.BatchRows}},
		{"batch size", c.BatchSizes},
	} {
		for _, v := range n.value {
			if v < 1 {
				return c, fmt.Errorf("%w: %s: %d is not positive", ErrConfig, n.name, v)
			}
		}
	}
	for _, rate := range c.Rates {
		if !(rate > 0 && rate <= 1) {
			return c, fmt.Errorf("%w: sampling rate %v is not in (0, 1]", ErrConfig, rate)
		}
	}
	if len(c.LibFM)+len(c.Text)+len(c.HotShares) == 0 {
		return c, fmt.Errorf("%w: no log to study", ErrConfig)
	}
	return c, nil
}
