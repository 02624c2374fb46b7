// SPDX-License-Identifier: Apache-2.0

// Package fixedpoint converts between float32 and the int64 fixed point of the
// aggregator's "exact" arithmetic.
//
// An integer n stands for n × 2^Exp. Integer addition is associative, so a sum
// of converted gradients does not depend on the order in which they arrive;
// the only rounding is the one conversion of each gradient.
package fixedpoint

import (
	"errors"
	"fmt"
	"math"
)

const (
	// DefaultExp makes one unit 2^-46: a range of ±2^17 and a rounding error
	// of at most 2^-47 for each gradient.
	DefaultExp = -46

	// MinExp is the least exponent: every non-zero integer converts to a
	// normal float32 and every float32 subnormal rounds to 0.
	MinExp = -100
	// MaxExp is the greatest: no integer converts to an infinity.
	MaxExp = 60
)

// Errors of the conversion to fixed point.
var (
	ErrNotFinite = errors.New("fixedpoint: NaN or infinity")
	ErrRange     = errors.New("fixedpoint: value out of range")
)

// Format is a fixed-point format: one unit is 2^Exp.
type Format struct{ Exp int }

// NewFormat returns the format whose unit is 2^exp.
func NewFormat(exp int) (Format, error) {
	if exp < MinExp || exp > MaxExp {
		return Format{}, fmt.Errorf("fixedpoint: exponent %d is not in [%d, %d]", exp, MinExp, MaxExp)
	}
	return Format{Exp: exp}, nil
}

// FromBits converts the float32 with the given bits, rounded to nearest, ties
// away from zero. It returns [ErrNotFinite] for NaN and infinities and
// [ErrRange] for magnitudes of 2^(63+Exp) and more.
func (f Format) FromBits(bits uint32) (int64, error) {
	e := int(bits >> 23 & 0xff)
	if e == 0xff {
		return 0, ErrNotFinite
	}
	// The 24-bit significand is at the top of 64 bits; one right shift remains, whose last step
	// rounds. It yields 0 for zero, for subnormals, which are below half a unit of any format, and
	// for other numbers that small.
	t := uint64(bits&0x7fffff|0x800000) << 40
	shift := 189 + f.Exp - e // the shift except for the last step
	if shift < 0 {
		return 0, ErrRange
	}
	n := int64((t>>shift + 1) >> 1)
	sign := -int64(bits >> 31)
	return (n ^ sign) - sign, nil
}

// FromFloat32 is [Format.FromBits] of x.
func (f Format) FromFloat32(x float32) (int64, error) { return f.FromBits(math.Float32bits(x)) }

// ToFloat32 returns the float32 nearest to n units, ties to even.
func (f Format) ToFloat32(n int64) float32 {
	// The conversion rounds; the scaling is exact, because MinExp and MaxExp
	// keep the product normal.
	return float32(n) * float32(math.Ldexp(1, f.Exp))
}

// SplitParts is the maximum number of float32 parts of a number: 24 of its 63 bits each.
const SplitParts = 3

// Split writes float32 into parts that FromFloat32 converts exactly, and that add up to n units
// exactly, and returns their number, at least one. The first has the highest 24 bits of |n|, and so
// on; all have the sign of n, so that no partial sum is farther from 0 than n. It returns false if
// n is math.MinInt64, which is out of FromFloat32's range.
func (f Format) Split(n int64, parts *[SplitParts]float32) (int, bool) {
	sign := n >> 63
	size := n ^ sign - sign
	unit := math.Float64frombits(uint64(1023+f.Exp)<<52 | uint64(sign)<<63)
	// A float64 holds 53 bits. The last 11 bits of a larger number are added after the first 24 are
	// subtracted.
	last := (1<<53 - 1 - size) >> 63 & (1<<11 - 1)
	x := float64(size &^ last)
	high := first24(x)
	x = x - high + float64(size&last)
	middle := first24(x)
	low := x - middle
	// Without branches: the number of parts is hard to predict.
	parts[0], parts[1], parts[2] = float32(high*unit), float32(middle*unit), float32(low*unit)
	return 1 + notZero(x) + notZero(low), n != math.MinInt64
}

// first24 returns x with only its highest 24 bits.
func first24(x float64) float64 { return math.Float64frombits(math.Float64bits(x) &^ (1<<29 - 1)) }

// notZero returns 1 if x is not 0, else 0.
func notZero(x float64) int {
	n := math.Float64bits(x)
	return int((n | -n) >> 63)
}

// Add returns a + b, and false if the sum does not fit an int64.
func Add(a, b int64) (int64, bool) {
	s := a + b
	return s, (a^s)&(b^s) >= 0
}
