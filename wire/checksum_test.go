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

func BenchmarkChecksum(b *testing.B) {
	buf := make([]byte, HotLen(MaxStripes))
	for i := range buf {
		buf[i] = byte(i * 7)
	}
	b.SetBytes(int64(len(buf)))
	for b.Loop() {
		fold(sum(0, buf))
	}
}
