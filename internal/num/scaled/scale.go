// SPDX-License-Identifier: Apache-2.0

package scaled

import (
	"errors"
	"fmt"
	"math"
)

// Errors of the conversion.
var (
	ErrNotFinite = errors.New("scaled: NaN or infinity")
	ErrAddends   = errors.New("scaled: bad number of addends")
	ErrExponent  = errors.New("scaled: not the exponent of a finite number")
)

const (
	infinite  = 0xff // exponent of infinities and NaN
	bias      = 127
	precision = 24 // bits of a float32 significand
)

// LargestExponent returns the largest exponent of grads, in the form of a float32: biased by 127,
// and 0 for zeros and subnormals. It returns [ErrNotFinite], with the index, for NaN and
// infinities.
func LargestExponent(grads []float32) (uint8, error) {
	var largest uint32
	for i, g := range grads {
		e := math.Float32bits(g) >> 23 & 0xff
		if e == infinite {
			return 0, fmt.Errorf("%w: gradient %d is %v", ErrNotFinite, i, g)
		}
		largest = max(largest, e)
	}
	return uint8(largest), nil
}

// Scale is the factor 2^Exp between a gradient and its integer.
type Scale struct{ Exp int }

// ScaleFor returns the largest scale at which the sum of addends gradients fits an int32, if no
// exponent is above largest, in the form of [LargestExponent]. For synchronous workers, addends is
// their number.
func ScaleFor(largest uint8, addends int) (Scale, error) {
	if largest == infinite {
		return Scale{}, fmt.Errorf("%w: %d", ErrExponent, largest)
	}
	if addends < 1 || addends > math.MaxInt32 {
		return Scale{}, fmt.Errorf("%w: %d is not in [1, %d]", ErrAddends, addends, math.MaxInt32)
	}
	// Gradients are below 2^above; width is the number of bits of their integers.
	above := max(int(largest), 1) - bias + 1
	width := 31
	for greatest(width)*int64(addends) > math.MaxInt32 {
		width--
	}
	return Scale{Exp: width - above}, nil
}

// greatest returns the largest integer that a float32 below 2^width rounds to. If width is less
// than the bits of a significand, it is 2^width itself.
func greatest(width int) int64 {
	if width < precision {
		return 1 << width
	}
	return 1<<width - 1<<(width-precision)
}

// FromBits converts the float32 with the given bits: x × 2^Exp, rounded to
// nearest, ties away from zero. A value out of range saturates. It returns
// [ErrNotFinite] for NaN and infinities.
func (s Scale) FromBits(bits uint32) (int32, error) {
	e := int(bits >> 23 & 0xff)
	if e == infinite {
		return 0, ErrNotFinite
	}
	n := uint64(bits & 0x7fffff)
	if e > 0 {
		n |= 1 << 23
	}
	// n has 24 bits, in units of 2^(e-150), of 2^-149 if subnormal.
	switch shift := max(e, 1) - 150 + s.Exp; {
	case shift < -precision:
		n = 0
	case shift < 0:
		n = (n>>(-shift-1) + 1) >> 1
	default:
		n <<= min(shift, 32) // otherwise it is already out of range, or 0
	}
	if bits>>31 != 0 {
		return int32(-min(int64(n), 1<<31)), nil
	}
	return int32(min(n, math.MaxInt32)), nil
}

// FromFloat32 is [Scale.FromBits] of x.
func (s Scale) FromFloat32(x float32) (int32, error) { return s.FromBits(math.Float32bits(x)) }

// ToFloat32 returns the float32 nearest to n / 2^Exp, ties to even.
func (s Scale) ToFloat32(n int32) float32 {
	// Exact as float64, so there is one rounding, even to subnormals.
	return float32(math.Ldexp(float64(n), -s.Exp))
}

// Add returns a + b, saturated at the ends of the range.
func Add(a, b int32) int32 {
	return int32(min(max(int64(a)+int64(b), math.MinInt32), math.MaxInt32))
}
