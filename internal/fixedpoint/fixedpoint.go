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
	// The 24-bit significand sits at the top of 64 bits; what is left is one
	// right shift, whose last step rounds. It shifts everything out of zero, of
	// subnormals, which are below half a unit of any format, and of what else is
	// that small.
	t := uint64(bits&0x7fffff|0x800000) << 40
	shift := 189 + f.Exp - e // one less than the distance
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

// Add returns a + b, and false if the sum does not fit an int64.
func Add(a, b int64) (int64, bool) {
	s := a + b
	return s, (a^s)&(b^s) >= 0
}
