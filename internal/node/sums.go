package node

import (
	"fmt"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/control"
	"github.com/libra-ina/libra/internal/fixedpoint"
	"github.com/libra-ina/libra/ps"
)

// storeExp returns the exponent of the parameter server's own sums. It is that
// of exact jobs. Cold gradients do not pass the aggregator, so in jobs with
// other arithmetics they still have the default's precision, or that of the
// job's integers, if that is higher.
func storeExp(job aggregator.JobConfig) int {
	switch job.Arithmetic {
	case aggregator.LUT:
		return fixedpoint.DefaultExp
	case aggregator.Fixed:
		return min(job.Exp, fixedpoint.DefaultExp)
	}
	return job.Exp
}

// converter returns a function that turns the sums of a harvest, which are in
// the job's arithmetic, into units of 2^exp: exactly those of exact and fixed
// jobs, and rounded to the nearest those of lut. It fails with
// [ps.ErrOverflow] at a sum that is too large.
func converter(job aggregator.JobConfig, exp int) func(*control.Harvest) error {
	var convert func(sum int64) (int64, bool)
	switch job.Arithmetic {
	case aggregator.Exact:
		return func(*control.Harvest) error { return nil }
	case aggregator.Fixed:
		shift := job.Exp - exp
		convert = func(sum int64) (int64, bool) {
			return sum << shift, sum<<shift>>shift == sum
		}
	case aggregator.LUT:
		format := fixedpoint.Format{Exp: exp}
		convert = func(sum int64) (int64, bool) {
			units, err := format.FromBits(uint32(sum))
			return units, err == nil
		}
	}
	return func(h *control.Harvest) error {
		for i, sum := range h.Sums {
			units, ok := convert(sum)
			if !ok {
				return fmt.Errorf("sum %g of rank %d: %w", job.Float32(sum), h.Ranks[i], ps.ErrOverflow)
			}
			h.Sums[i] = units
		}
		return nil
	}
}
