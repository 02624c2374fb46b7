// SPDX-License-Identifier: Apache-2.0

package fixedpoint

import (
	"math"
	"math/big"
	"testing"

	"pgregory.net/rapid"
)

// exact has enough bits for any sum of float32 here.
func exact() *big.Float { return new(big.Float).SetPrec(1000) }

// anyFinite draws a finite float32: of any magnitude, or close to the ends of the range or to a
// tie.
func anyFinite(t *rapid.T) float32 {
	b := rapid.Uint32Range(0, 1).Draw(t, "sign")<<31 | rapid.Uint32Range(0, 254).Draw(t, "exponent")<<23
	if rapid.Bool().Draw(t, "few bits") {
		return math.Float32frombits(b | 1<<rapid.Uint32Range(0, 22).Draw(t, "bit"))
	}
	return math.Float32frombits(b | rapid.SampledFrom([]uint32{0, 1, 0x7fffff, rapid.Uint32Range(0, 0x7fffff).Draw(t, "any")}).Draw(t, "significand"))
}

// TestWideMatchesBigArithmetic compares sums of float32 and of units, and the float32 nearest to
// each partial sum, with exact arithmetic.
func TestWideMatchesBigArithmetic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var w Wide
		want := exact()
		for range rapid.IntRange(1, 20).Draw(t, "terms") {
			switch rapid.IntRange(0, 3).Draw(t, "term") {
			case 0:
				f := Format{rapid.IntRange(MinExp, MaxExp).Draw(t, "exp")}
				n := rapid.Int64().Draw(t, "units") >> rapid.IntRange(0, 63).Draw(t, "small")
				w.AddUnits(n, f)
				v := exact().SetInt64(n)
				want.Add(want, v.SetMantExp(v, f.Exp))
			case 1: // which may leave 0, or what an earlier term had below a large one
				x, acc := want.Float32()
				if acc == big.Exact || !math.IsInf(float64(x), 0) {
					w.AddBits(math.Float32bits(-x))
					want.Sub(want, exact().SetFloat64(float64(x)))
				}
			default:
				x := anyFinite(t)
				w.AddBits(math.Float32bits(x))
				want.Add(want, exact().SetFloat64(float64(x)))
			}
			x, _ := want.Float32()
			if x == 0 {
				x = 0 // not -0
			}
			if got := w.Float32(); math.Float32bits(got) != math.Float32bits(x) || w.IsZero() != (want.Sign() == 0) {
				t.Fatalf("%x is %g; exactly it is %g, of which the nearest is %g", w, got, want, x)
			}
		}
	})
}

// TestWideAtTheEdges tries sums at the ends of the range of float32, and at ties.
func TestWideAtTheEdges(t *testing.T) {
	const most, least = math.MaxFloat32, math.SmallestNonzeroFloat32
	for _, c := range []struct {
		want  float32
		terms []float32
	}{
		{0, nil},
		{0, []float32{float32(math.Copysign(0, -1))}},
		{least, []float32{most, least, -most}},
		{-least, []float32{-most, -least, most}},
		{most, []float32{most, 0x1p102, 0x1.fffffep101}}, // just below the tie
		{float32(math.Inf(1)), []float32{most, 0x1p103}}, // the tie, to even
		{float32(math.Inf(-1)), []float32{-most, -0x1p103}},
		{most, []float32{most, 0x1p103, -least}},
		{float32(math.Inf(1)), []float32{most, most}},
		{most, []float32{most, most, most, -most, -most}},
		{1, []float32{1, 0x1p-24}}, // a tie, to even
		{1 + 0x1p-23, []float32{1, 0x1p-24, least}},
		{1 + 0x1p-22, []float32{1 + 0x1p-23, 0x1p-24}},
		{1 + 0x1p-23, []float32{1 + 0x1p-23, 0x1p-24, -least}},
		{0x1p-126, []float32{0x1.fffffcp-127, least}},
		{0x1p-125, []float32{0x1.fffffep-126, least}}, // a tie between the largest of its exponent and the next
	} {
		var w Wide
		for _, x := range c.terms {
			w.AddBits(math.Float32bits(x))
		}
		if got := w.Float32(); math.Float32bits(got) != math.Float32bits(c.want) {
			t.Errorf("the sum of %g is %g, want %g", c.terms, got, c.want)
		}
	}
}

// TestHolds compares what a format holds with what comes back from it.
func TestHolds(t *testing.T) {
	check := func(t interface{ Fatalf(string, ...any) }, f Format, b uint32) {
		x := math.Float32frombits(b)
		n, err := f.FromBits(b)
		want := err == nil && f.ToFloat32(n) == x
		if f.Holds(b) != want {
			t.Fatalf("2^%d holds %g: %v", f.Exp, x, !want)
		}
		if first, n := f.Window(); b&math.MaxInt32-first < n && !want {
			t.Fatalf("%g is in the window of 2^%d", x, f.Exp)
		}
	}
	for exp := MinExp; exp <= MaxExp; exp++ {
		for e := range uint32(256) {
			for bit := range 23 {
				check(t, Format{exp}, e<<23|1<<bit)
				check(t, Format{exp}, 1<<31|e<<23|0x7fffff&^(1<<bit-1))
			}
			check(t, Format{exp}, e<<23)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		check(t, Format{rapid.IntRange(MinExp, MaxExp).Draw(t, "exp")}, rapid.Uint32().Draw(t, "bits"))
	})
}

func BenchmarkWide(b *testing.B) {
	var w Wide
	for i := range b.N {
		w.AddBits(0x30123457 + uint32(i)&0xff<<20)
	}
	if w.IsZero() {
		b.Error("the sum is 0")
	}
}
