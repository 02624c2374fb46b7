// SPDX-License-Identifier: Apache-2.0

package lut

import "math"

// Bound is the largest error of a sum of two finite normal numbers, relative to the
// true sum.
type Bound struct {
	// SameSigns is for two numbers of one sign. A true sum that is below 2^128 by
	// less than this may become an infinity.
	SameSigns float64 `json:"same_signs"`
	// OppositeSigns is for numbers of opposite signs whose exponents differ
	// by two or more, so that their ratio is below 1/2.
	OppositeSigns float64 `json:"opposite_signs"`
	// Cancelling is for numbers of opposite signs whose exponents differ by
	// at most one, with a ratio arbitrarily close to 1. It does not depend on
	// the tables. Below 2^-126 the sum is 0.
	Cancelling float64 `json:"cancelling"`
}

// Bound computes the bound from the widths of the tables.
func (t *Adder) Bound() Bound {
	c := t.cfg
	half := func(bits int) float64 { return math.Ldexp(0.5, -bits) }

	// One logarithm (equation 1): the roundings of the two entries that are
	// added; the rounding of the two logarithms whose difference is expTable's
	// key, half a unit each; the first omitted term of the series.
	delta := math.Ldexp(1, -c.MantissaBits)
	log := 2*half(c.LogBits) +
		delta/math.Ln2*(math.Exp2(2*half(c.expFraction()))-1) +
		delta*delta/(2*math.Ln2)

	// The step from log2 x to the logarithm of the sum: the middle of an
	// interval of θ represents all of it. In octave k an interval is
	// 2^-(width-1-k) wide. The slope is at most 2^-k / (1 + 2^-k) for miTable
	// and 1 / (2^(k+1) - 1) for subTable: their products with half an interval
	// are below 2^-width. The rounding of the entry is added.
	mi := half(c.MiKeyBits-1) + half(entryBits)
	sub := half(c.SubKeyBits-1) + half(entryBits)

	// 2^l: an interval of l, and the rounding of the fraction.
	final := half(c.FinalKeyBits)
	power := func(l float64) float64 {
		l += final
		return math.Exp2(l)*(1+half(entryBits)) - 1
	}
	// An error of log2 y counts with the slope of σ, and one of log2 x with the
	// rest: together at most one error for equal signs, and three for opposite
	// ones. An addend below the resolution is less than half a unit of an entry,
	// or in octave 2^-width and beyond.
	return Bound{
		SameSigns:     max(power(log+mi), math.Ldexp(1, -c.MiKeyBits)+half(entryBits)),
		OppositeSigns: max(power(3*log+sub), math.Ldexp(1, -c.SubKeyBits)+half(entryBits)),
		Cancelling:    half(fractionBits),
	}
}
