// SPDX-License-Identifier: Apache-2.0

package fixedpoint

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"testing"

	"pgregory.net/rapid"
)

// reference rounds x / 2^exp to nearest, ties away from zero, in big arithmetic.
func reference(x float32, exp int) *big.Int {
	v := new(big.Float).SetPrec(400).SetFloat64(math.Abs(float64(x)))
	v.SetMantExp(v, -exp)
	v.Add(v, big.NewFloat(0.5))
	n, _ := v.Int(nil)
	if x < 0 {
		n.Neg(n)
	}
	return n
}

// checkFromBits compares a conversion with the reference.
func checkFromBits(t interface{ Fatalf(string, ...any) }, exp int, bits uint32) {
	x := math.Float32frombits(bits)
	n, err := Format{exp}.FromBits(bits)
	if math.IsNaN(float64(x)) || math.IsInf(float64(x), 0) {
		if n != 0 || !errors.Is(err, ErrNotFinite) {
			t.Fatalf("%g: %d, %v; want 0 and ErrNotFinite", x, n, err)
		}
		return
	}
	want := reference(x, exp)
	if want.CmpAbs(new(big.Int).Lsh(big.NewInt(1), 63)) >= 0 {
		if n != 0 || !errors.Is(err, ErrRange) {
			t.Fatalf("%g at 2^%d: %d, %v; want 0 and ErrRange", x, exp, n, err)
		}
		return
	}
	if err != nil || n != want.Int64() {
		t.Fatalf("%g at 2^%d: %d, %v; want %v", x, exp, n, err, want)
	}
}

// TestFromBitsMatchesBigArithmetic draws the size of the result, so that values that round to zero,
// fit or overflow are all frequent.
func TestFromBitsMatchesBigArithmetic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		exp := rapid.IntRange(MinExp, MaxExp).Draw(t, "exp")
		size := rapid.IntRange(-4, 67).Draw(t, "size") // x is at least 2^size units
		e := min(max(size+exp+127, 0), 255)
		sign := rapid.Uint32Range(0, 1).Draw(t, "sign")
		checkFromBits(t, exp, sign<<31|uint32(e)<<23|rapid.Uint32Range(0, 1<<23-1).Draw(t, "significand"))
	})
}

// TestFromBitsAtTheEdges tries, in every format, each exponent of a float32 with the significands
// around ties: half a unit, one bit less or more, and the ends of the range.
func TestFromBitsAtTheEdges(t *testing.T) {
	for exp := MinExp; exp <= MaxExp; exp++ {
		for e := range uint32(256) {
			significands := []uint32{0, 1, 1<<23 - 1, 1 << 22}
			// Bit b of the significand is worth half a unit.
			if b := exp - 1 + 150 - int(e); b >= 0 && b < 23 {
				significands = append(significands, 1<<b, 1<<b-1, 1<<b|1, 1<<b|1<<(b+1)&0x7fffff, (1<<b-1)|1<<(b+1)&0x7fffff)
			}
			for _, s := range significands {
				checkFromBits(t, exp, e<<23|s&0x7fffff)
				checkFromBits(t, exp, 1<<31|e<<23|s&0x7fffff)
			}
		}
	}
}

func TestNewFormat(t *testing.T) {
	for _, exp := range []int{MinExp, MinExp + 1, DefaultExp, 0, MaxExp - 1, MaxExp} {
		if f, err := NewFormat(exp); err != nil || f.Exp != exp {
			t.Errorf("%d: %v, %v", exp, f, err)
		}
	}
	for _, exp := range []int{math.MinInt, -1000, MinExp - 1, MaxExp + 1, 1000, math.MaxInt} {
		want := fmt.Sprintf("fixedpoint: exponent %d is not in [-100, 60]", exp)
		if f, err := NewFormat(exp); f != (Format{}) || err == nil || err.Error() != want {
			t.Errorf("%d: %v, %v; want %q", exp, f, err, want)
		}
	}
}

// TestDefaultFormat checks the documented range and error of DefaultExp.
func TestDefaultFormat(t *testing.T) {
	f := Format{DefaultExp}
	below := math.Nextafter32(1<<17, 0)
	for _, sign := range []float32{1, -1} {
		if n, err := f.FromFloat32(sign * below); err != nil || f.ToFloat32(n) != sign*below {
			t.Errorf("%g: %d, %v", sign*below, n, err)
		}
		if n, err := f.FromFloat32(sign * (1 << 17)); !errors.Is(err, ErrRange) {
			t.Errorf("%g: %d, %v; want ErrRange", sign*(1<<17), n, err)
		}
		if n, err := f.FromFloat32(sign * 0x1p-47); err != nil || n != int64(sign) {
			t.Errorf("half a unit: %d, %v", n, err)
		}
		if n, err := f.FromFloat32(sign * 0x1.fffffep-48); err != nil || n != 0 {
			t.Errorf("below half a unit: %d, %v", n, err)
		}
	}
}

func TestToFloat32IsNearest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		exp := rapid.IntRange(MinExp, MaxExp).Draw(t, "exp")
		// All sizes are equally likely; drawn uniformly, an integer below 2^24 would be rare.
		n := rapid.Int64().Draw(t, "n") >> rapid.IntRange(0, 63).Draw(t, "shift")
		v := new(big.Float).SetPrec(400).SetInt64(n)
		v.SetMantExp(v, exp)
		want, _ := v.Float32()
		if got := (Format{exp}).ToFloat32(n); got != want {
			t.Fatalf("%d at 2^%d: %g, want %g", n, exp, got, want)
		}
	})
}

func TestAddDetectsOverflow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.Int64().Draw(t, "a"), rapid.Int64().Draw(t, "b")
		checkAdd(t, a, b)
	})
	edges := []int64{math.MinInt64, math.MinInt64 + 1, math.MinInt64 / 2, -1, 0, 1, math.MaxInt64/2 + 1, math.MaxInt64 - 1, math.MaxInt64}
	for _, a := range edges {
		for _, b := range edges {
			checkAdd(t, a, b)
		}
	}
}

func checkAdd(t interface{ Fatalf(string, ...any) }, a, b int64) {
	want := new(big.Int).Add(big.NewInt(a), big.NewInt(b))
	sum, ok := Add(a, b)
	if ok != want.IsInt64() || ok && sum != want.Int64() {
		t.Fatalf("Add(%d, %d) = %d, %v; want %v", a, b, sum, ok, want)
	}
}
