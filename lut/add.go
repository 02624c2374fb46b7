// SPDX-License-Identifier: Apache-2.0

package lut

import "math/bits"

// This file holds the data plane's work for each pair: integer additions, shifts,
// comparisons and lookups. Names and steps are those of the paper's §3.5.

const (
	signBit   = 1 << 31
	magnitude = signBit - 1
	fraction  = 1<<fractionBits - 1
	hidden    = 1 << fractionBits
	infinity  = 0xff << fractionBits
	notNumber = 0x7fc00000
)

// Adder adds float32 numbers by table lookup. It is safe for concurrent use.
type Adder struct {
	epo     []uint16 // e -> e - 127, in two's complement
	logM    []uint32 // m -> log2 m
	logMln2 []uint16 // m -> log2(m ln 2), biased: see build.go
	logD    []uint16 // log2 Δm, biased so that the difference to logMln2 is a key of exp
	exp     []uint16 // log2 Δm - log2(m ln 2) -> Δm / (m ln 2)
	sigma   [2]sigma // for equal and for opposite signs
	final   []uint16 // fraction of log2 s -> fraction of s

	// Constants of the configuration; literals in a data plane.
	deltaBits  int // width of Δm
	logBits    int // fraction bits of a logarithm
	entryShift int // from an entry of sigma to a logarithm
	keyShift   int // from a logarithm to a key of final

	cfg Config
}

// sigma is miTable, θ -> log2(1 + 2^θ), or subTable, θ -> -log2(1 - 2^θ) for
// θ < -1.
type sigma struct {
	table []uint16
	shift uint32 // from θ to a key, in the first octave
}

// Add returns the bits of the sum of the float32 numbers with bits a and b. It is
// defined for all bits; see the package's documentation.
func (t *Adder) Add(a, b uint32) uint32 {
	// The order of two numbers in training is random and cannot be predicted, hence
	// the masks instead of a branch. x is the larger number: magnitudes sort like
	// their bits.
	swap := (a ^ b) & uint32(int32(a&magnitude-b&magnitude)>>31)
	x, y := a^swap, b^swap
	ex, ey := x>>fractionBits&0xff, y>>fractionBits&0xff
	if ex == 0xff || ey == 0 {
		return addSpecial(x, y)
	}
	opposite := (x ^ y) >> 31
	if opposite != 0 && ex-ey <= 1 {
		return subtractNear(x, y)
	}

	// Figure 9, left to right. The logarithms are signed, with logBits fraction
	// bits. theta is -θ, less the octave that subTable lacks; it may be negative
	// because of an error of the logarithms. v is the step from log2 x to the
	// logarithm of the sum.
	minus := -int32(opposite) // all ones if opposite
	i, j := t.log(x), t.log(y)
	theta := uint32(max(i-j-minus&(1<<t.logBits), 0))
	v := (int32(t.lookup(t.sigma[opposite], theta)) ^ minus) - minus
	if v == 0 { // y is below the resolution
		return x
	}
	l := i + v<<t.entryShift

	// 2^l: its integer part is the exponent, its fraction selects the fraction.
	e := l>>t.logBits + 127
	if e >= 0xff {
		return x&signBit | infinity
	}
	f := uint32(l) & (1<<t.logBits - 1)
	return x&signBit | uint32(e)<<fractionBits | uint32(t.final[f>>t.keyShift])<<(fractionBits-entryBits)
}

// log returns log2 of a normal number's magnitude (equation 1).
func (t *Adder) log(p uint32) int32 {
	e, f := p>>fractionBits&0xff, p&fraction
	m, d := f>>t.deltaBits, f&(1<<t.deltaBits-1)
	return int32(int16(t.epo[e]))<<t.logBits + int32(t.logM[m]) + int32(t.exp[t.logD[d]-t.logMln2[m]])
}

// lookup returns the entry for u >= 0, with logBits fraction bits. The table halves
// its resolution from each octave k <= u < k+1 to the next, as the slope of its
// function halves. So the error is uniform, and all octaves together have as many
// entries as two of the first: the key is the largest integer below
// (2 - fraction of u) 2^(width-1-k), which has width-k significant bits. Key 0,
// whose entry is 0, stands for all larger u.
func (t *Adder) lookup(s sigma, u uint32) uint16 {
	k := min(u>>t.logBits, 31) // from 24 on the result is 0
	mirrored := uint32(2)<<t.logBits - 1 - u&(1<<t.logBits-1)
	return s.table[uint64(mirrored)>>(s.shift+k)]
}

// subtractNear returns the sum of numbers of opposite signs whose exponents
// differ by at most one, |x| >= |y|. The result is exact, or half a unit in the
// last place too small.
func subtractNear(x, y uint32) uint32 {
	ex, ey := x>>fractionBits&0xff, y>>fractionBits&0xff
	d := (x&fraction|hidden)<<(ex-ey) - (y&fraction | hidden) // below 2^25, in units of y
	if d == 0 {
		return 0
	}
	// normTable: a switch matches d against 25 prefixes. A shift to the right loses one
	// bit, a tie, for which rounding down is as good as up.
	n := bits.Len32(d)
	e := int32(ey) + int32(n) - (fractionBits + 1)
	if e <= 0 {
		return 0
	}
	return x&signBit | uint32(e)<<fractionBits | d<<(25-n)>>1&fraction
}

// addSpecial returns the sum if x is not finite or y is zero or subnormal,
// |x| >= |y|.
func addSpecial(x, y uint32) uint32 {
	switch {
	case x&magnitude > infinity: // NaN, which sorts above all others
		return notNumber
	case x&magnitude == infinity:
		if x^y == signBit { // infinities of opposite signs
			return notNumber
		}
		return x
	case x&magnitude < hidden: // both are zero
		return 0
	}
	return x
}
