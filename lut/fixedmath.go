// SPDX-License-Identifier: Apache-2.0

package lut

import (
	"math/big"
	"math/bits"
)

// Logarithms and powers of two in integers: those of package math differ in the
// last bit between architectures, but the tables must not. Significands are uint64
// with 63 fraction bits, logarithms int64 with q. Both functions are accurate to
// 2^-38; an entry of 16 or 23 bits is therefore within 2^-14 of its unit of the
// nearest value.

const (
	q    = 40
	oneQ = 1 << q
	one  = 1 << 63
	// log2(ln 2)
	log2ln2 = -581384775430
)

// roots[i] is 2^(2^-(i+1)).
var roots = func() (r [q]uint64) {
	x := new(big.Float).SetPrec(192).SetInt64(2)
	for i := range r {
		x.Sqrt(x)
		scaled := new(big.Float).SetMantExp(x, 63)
		r[i], _ = scaled.Uint64()
	}
	return r
}()

// exp2 returns 2^f for 0 <= f < 1.
func exp2(f int64) uint64 {
	x := uint64(one)
	for i, root := range roots {
		if f>>(q-1-i)&1 != 0 {
			high, _ := bits.Mul64(x, root)
			x = high << 1
		}
	}
	return x
}

// log2 returns the logarithm of x, 1 <= x < 2, bit by bit: squaring a number
// doubles its logarithm.
func log2(x uint64) int64 {
	var l int64
	for range q {
		high, _ := bits.Mul64(x, x) // two integer bits, 126 fraction bits
		l <<= 1
		if high>>63 != 0 { // 2 or more
			l |= 1
			x = high
		} else {
			x = high << 1
		}
	}
	return l
}

func log2int(n uint32) int64 {
	b := bits.Len32(n) - 1
	return int64(b)<<q + log2(uint64(n)<<(63-b))
}

// exp2neg returns 2^-u for non-integer u > 0, with 63 fraction bits.
func exp2neg(u int64) uint64 {
	whole, f := u>>q, u&(oneQ-1)
	return exp2(oneQ-f) >> (whole + 1)
}

// round returns the nearest integer to l × 2^n, halves upwards.
func round(l int64, n int) int64 {
	return (l + 1<<(q-n-1)) >> (q - n)
}
