// SPDX-License-Identifier: Apache-2.0

package fixedpoint

import (
	"math"
	"math/bits"
)

const (
	// wideLimbs is the length of a Wide: float32 has multiples of 2^-149 below 2^128, which are 277
	// bits. The other 43 hold the sign, and the carries of 2^42 additions, which take hours.
	wideLimbs = 5
	// wideExp is the unit of a Wide: that of the float32 subnormals.
	wideExp = -149
)

// Wide is a sum of float32 and of integers of any [Format] that is never rounded, whatever their
// magnitudes: in two's complement, in units of 2^-149, the lowest limb first. The zero value is 0.
type Wide [wideLimbs]uint64

// AddBits adds the float32 with the given bits, which must be finite.
func (w *Wide) AddBits(b uint32) {
	e, significand := b>>23&0xff, uint64(b&0x7fffff)
	if e > 0 {
		significand |= 0x800000
		e--
	}
	w.add(significand, uint(e), b>>31 != 0)
}

// AddUnits adds n units of a format.
func (w *Wide) AddUnits(n int64, f Format) {
	sign := n >> 63
	w.add(uint64(n^sign-sign), uint(f.Exp-wideExp), sign != 0)
}

// add adds size × 2^shift units, or subtracts them.
func (w *Wide) add(size uint64, shift uint, negative bool) {
	i := shift / 64 // at most 3
	low, high := size<<(shift%64), size>>(64-shift%64)
	var carry uint64
	if negative {
		w[i], carry = bits.Sub64(w[i], low, 0)
		w[i+1], carry = bits.Sub64(w[i+1], high, carry)
		for i += 2; carry != 0 && i < wideLimbs; i++ {
			w[i], carry = bits.Sub64(w[i], 0, carry)
		}
		return
	}
	w[i], carry = bits.Add64(w[i], low, 0)
	w[i+1], carry = bits.Add64(w[i+1], high, carry)
	for i += 2; carry != 0 && i < wideLimbs; i++ {
		w[i], carry = bits.Add64(w[i], 0, carry)
	}
}

// IsZero reports whether the sum is 0.
func (w *Wide) IsZero() bool { return *w == Wide{} }

// Float32 returns the float32 nearest to the sum, ties to even: an infinity if the sum is too large
// for any other. A sum of 0 is +0.
func (w *Wide) Float32() float32 {
	size, sign := *w, uint32(0)
	if int64(w[wideLimbs-1]) < 0 {
		sign = 1 << 31
		carry := uint64(1)
		for i := range size {
			size[i], carry = bits.Add64(^size[i], 0, carry)
		}
	}
	top := wideLimbs - 1
	for ; top > 0 && size[top] == 0; top-- {
	}
	length := 64*top + bits.Len64(size[top])
	if length <= 24 { // all bits of a subnormal or of the smallest normal numbers, and their exponent
		return math.Float32frombits(sign | uint32(size[0]))
	}
	shift := length - 24 // bits that are dropped
	i, off := shift/64, shift%64
	significand := size[i] >> off
	if i < top {
		significand |= size[i+1] << (64 - off)
	}
	// The leading bit of the significand counts as one more of the exponent, and so does a carry.
	b := uint64(shift)<<23 + significand&0xffffff
	half, below := size[(shift-1)/64]>>((shift-1)%64)&1, size[(shift-1)/64]&(1<<((shift-1)%64)-1)
	for j := range (shift - 1) / 64 {
		below |= size[j]
	}
	if below != 0 {
		b += half
	} else {
		b += half & b
	}
	return math.Float32frombits(sign | uint32(min(b, 0xff<<23)))
}

// Holds reports whether the format holds the float32 with the given bits exactly: whether it is
// finite, in range, and a multiple of the unit.
func (f Format) Holds(b uint32) bool {
	size := b & math.MaxInt32
	if size == 0 {
		return true
	}
	first, n := f.Window()
	if size-first < n {
		return true
	}
	e := int(size >> 23)
	// The lowest bit that is set is worth 2^(e-150+zeros). Subnormals are below the unit of any
	// format.
	return e > 0 && size < first && e-150+bits.TrailingZeros32(size|0x800000) >= f.Exp
}

// Window returns bounds between which a format holds every float32: those for which the bits of the
// magnitude, less first, are below n. It holds others, too: see [Format.Holds].
func (f Format) Window() (first, n uint32) {
	first = uint32(150+f.Exp) << 23 // the last bit of the significand is worth a unit
	return first, min(uint32(190+f.Exp)<<23, 0xff<<23) - first
}
