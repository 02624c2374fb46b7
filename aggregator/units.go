// SPDX-License-Identifier: Apache-2.0

package aggregator

import (
	"math"

	"github.com/libra-ina/libra/internal/num/fixedpoint"
)

// Float32 converts a slot of the job to the nearest float32, ties to even. c must be complete.
func (c JobConfig) Float32(slot int64) float32 {
	if c.Arithmetic == LUT {
		return math.Float32frombits(uint32(slot))
	}
	return fixedpoint.Format{Exp: c.Exp}.ToFloat32(slot)
}

// StoreExp returns the exponent for the sums of the job's parameter server, at which
// [JobConfig.Units] converts every slot exactly, where that is possible: the job's own if it is
// [Exact]. Cold gradients do not pass the aggregator, so with other arithmetics they have the
// default's precision, or that of the job's integers if it is higher.
func (c JobConfig) StoreExp() int {
	switch c.Arithmetic {
	case LUT:
		return fixedpoint.DefaultExp
	case Fixed:
		return min(c.Exp, fixedpoint.DefaultExp)
	}
	return c.Exp
}

// Units converts a slot of the job to units of 2^exp, which a parameter server adds up: exactly if
// the arithmetic is [Exact] or [Fixed], for which exp must not be above c.Exp; rounded to nearest
// if it is [LUT]. It returns false if the result is out of an int64's range, or the slot holds no
// finite number.
func (c JobConfig) Units(slot int64, exp int) (units int64, ok bool) {
	if c.Arithmetic == LUT {
		units, err := fixedpoint.Format{Exp: exp}.FromBits(uint32(slot))
		return units, err == nil
	}
	shift := c.Exp - exp
	if shift < 0 {
		return 0, slot == 0
	}
	units = slot << shift
	return units, units>>shift == slot
}
