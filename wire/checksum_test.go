// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

// naive is RFC 1071's sum, word by word. It may return 0 for 0xffff.
func naive(acc uint64, b []byte) uint64 {
	for i, x := range b {
		acc += uint64(x) << (8 * (1 - i%2))
	}
	return acc % math.MaxUint16
}

func TestSumMatchesNaiveSum(t *testing.T) {
	check := func(t interface{ Fatalf(string, ...any) }, acc uint64, b []byte) {
		got := fold(sum(acc, b))
		if uint64(got)%math.MaxUint16 != naive(acc, b) {
			t.Fatalf("sum of %d and %d bytes % x is %#x, want %#x", acc, len(b), b, got, naive(acc, b))
		}
		if zero := acc == 0 && len(b) == 0; got == 0 && !zero && naive(acc, b) != 0 {
			t.Fatalf("sum of %d bytes vanishes", len(b))
		}
	}
	ones := make([]byte, 300)
	for i := range ones {
		ones[i] = 0xff // every addition carries
	}
	for n := range ones {
		check(t, 0, ones[:n])
		check(t, math.MaxInt64, ones[:n])
	}
	rapid.Check(t, func(t *rapid.T) {
		acc := rapid.Uint64Range(0, math.MaxInt64).Draw(t, "acc")
		check(t, acc, rapid.SliceOfN(rapid.Byte(), 0, 1500).Draw(t, "bytes"))
	})
}

// TestFold folds sums of every size. One's-complement sums are equal modulo 0xffff, and only 0
// itself folds to 0. In 0xffffffff00010000, each addition carries.
func TestFold(t *testing.T) {
	check := func(t interface{ Fatalf(string, ...any) }, acc uint64) {
		if got := fold(acc); uint64(got)%math.MaxUint16 != acc%math.MaxUint16 || (got == 0) != (acc == 0) {
			t.Fatalf("%#x folds to %#x", acc, got)
		}
	}
	for _, a := range []uint64{0, 1, 0xffff, 1 << 16, 1<<32 - 1, 1 << 32, 1<<33 - 2, 1 << 63, 0xffffffff_00010000, math.MaxUint64} {
		for d := range uint64(3) {
			check(t, a+d)
			check(t, a-d)
			check(t, a<<16-d)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		check(t, rapid.Uint64().Draw(t, "sum")>>rapid.IntRange(0, 63).Draw(t, "shift"))
	})
}

func BenchmarkChecksum(b *testing.B) {
	buf := make([]byte, HotLen(DefaultStripes))
	for i := range buf {
		buf[i] = byte(i * 7)
	}
	b.SetBytes(int64(len(buf)))
	for b.Loop() {
		fold(sum(0, buf))
	}
}
