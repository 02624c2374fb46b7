// SPDX-License-Identifier: Apache-2.0

package p4

import (
	"cmp"
	"fmt"
	"math/big"
	"math/bits"
)

// num is a number of the switch: of 128 bits with its sign, where bmv2's have as many as they need.
// Operations whose result does not fit panic, so that nothing is computed otherwise than in bmv2.
// Unlike a big.Int it is computed without allocating, and the garbage collector need not look at
// it.
type num struct {
	hi int64
	lo uint64
}

var zero, one = num{}, num{lo: 1}

func truth(b bool) num {
	if b {
		return one
	}
	return zero
}

func tooWide(a, b num, op string) num {
	panic(fmt.Sprintf("bmv2: %v %s %v has more than 127 bits: numbers of the tests' switch need a wider type", a.big(), op, b.big()))
}

// numOf returns the number in some bytes, the most significant first.
func numOf(b []byte) (a num) {
	for _, c := range b {
		a = num{a.hi<<8 | int64(a.lo>>56), a.lo<<8 | uint64(c)}
	}
	return a
}

// narrowed returns a number that fits.
func narrowed(v *big.Int) (num, error) {
	if v.BitLen() > 127 {
		return zero, fmt.Errorf("%v has more than 127 bits", v)
	}
	a := numOf(v.Bytes())
	if v.Sign() < 0 {
		a = zero.sub(a)
	}
	return a, nil
}

func (a num) big() *big.Int {
	v := new(big.Int).Lsh(big.NewInt(a.hi), 64)
	return v.Add(v, new(big.Int).SetUint64(a.lo))
}

func (a num) add(b num) num {
	lo, carry := bits.Add64(a.lo, b.lo, 0)
	hi := a.hi + b.hi + int64(carry)
	if (a.hi^b.hi) >= 0 && (a.hi^hi) < 0 {
		return tooWide(a, b, "+")
	}
	return num{hi, lo}
}

func (a num) sub(b num) num {
	lo, borrow := bits.Sub64(a.lo, b.lo, 0)
	hi := a.hi - b.hi - int64(borrow)
	if (a.hi^b.hi) < 0 && (a.hi^hi) < 0 {
		return tooWide(a, b, "-")
	}
	return num{hi, lo}
}

// mul is for numbers of up to 64 bits without a sign: the program has no others.
func (a num) mul(b num) num {
	hi, lo := bits.Mul64(a.lo, b.lo)
	if a.hi != 0 || b.hi != 0 || int64(hi) < 0 {
		return tooWide(a, b, "*")
	}
	return num{int64(hi), lo}
}

func (a num) and(b num) num { return num{a.hi & b.hi, a.lo & b.lo} }
func (a num) or(b num) num  { return num{a.hi | b.hi, a.lo | b.lo} }
func (a num) xor(b num) num { return num{a.hi ^ b.hi, a.lo ^ b.lo} }
func (a num) not() num      { return num{^a.hi, ^a.lo} }

func (a num) shl(n uint64) num {
	shifted := num{hi: int64(a.lo << (n - 64))} // a shift by more than the width gives 0 in Go
	if n < 64 {
		shifted = num{a.hi<<n | int64(a.lo>>(64-n)), a.lo << n}
	}
	if shifted.shr(n) != a {
		return tooWide(a, num{lo: n}, "<<")
	}
	return shifted
}

// shr rounds down, as two's complement does.
func (a num) shr(n uint64) num {
	if n < 64 {
		return num{a.hi >> n, a.lo>>n | uint64(a.hi)<<(64-n)}
	}
	return num{a.hi >> 63, uint64(a.hi >> (n - 64))}
}

func (a num) cmp(b num) int {
	if c := cmp.Compare(a.hi, b.hi); c != 0 {
		return c
	}
	return cmp.Compare(a.lo, b.lo)
}

// mask has the low bits set, all if width is 128.
func mask(width int) num {
	if width < 64 {
		return num{lo: 1<<width - 1}
	}
	return num{hi: 1<<(width-64) - 1, lo: ^uint64(0)}
}

// truncated returns the low bits of a number, in two's complement.
func (a num) truncated(width int) num { return a.and(mask(width)) }

// signed returns the number that the low bits of a are in two's complement.
func (a num) signed(width int) num {
	a = a.truncated(width)
	if a.shr(uint64(width-1)) == one {
		return a.or(mask(width).not())
	}
	return a
}
