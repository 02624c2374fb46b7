// SPDX-License-Identifier: Apache-2.0

package scaled

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// reference is x × 2^exp, rounded to nearest, ties away from zero, saturated.
func reference(x float32, exp int) int32 {
	v := new(big.Float).SetPrec(600).SetFloat64(math.Abs(float64(x)))
	v.SetMantExp(v, exp)
	v.Add(v, big.NewFloat(0.5))
	n, _ := v.Int(nil)
	if x < 0 {
		n.Neg(n)
	}
	switch {
	case n.Cmp(big.NewInt(math.MaxInt32)) > 0:
		return math.MaxInt32
	case n.Cmp(big.NewInt(math.MinInt32)) < 0:
		return math.MinInt32
	}
	return int32(n.Int64())
}

func isFinite(x float32) bool { return math.Float32bits(x)>>23&0xff != infinite }

func TestFromBitsMatchesBigArithmetic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bits := rapid.Uint32().Draw(t, "bits")
		x := math.Float32frombits(bits)
		// Exponents that scale x to anything from zero to far out of range.
		s := Scale{rapid.IntRange(-40, 40).Draw(t, "size") - int(bits>>23&0xff) + bias}
		n, err := s.FromBits(bits)
		if !isFinite(x) {
			if !errors.Is(err, ErrNotFinite) {
				t.Fatalf("%g: error %v, want ErrNotFinite", x, err)
			}
			return
		}
		if want := reference(x, s.Exp); err != nil || n != want {
			t.Fatalf("%g × 2^%d = %d, %v; want %d", x, s.Exp, n, err, want)
		}
	})
}

// TestFromBitsRefuses tries numbers that no scale converts.
func TestFromBitsRefuses(t *testing.T) {
	for _, bits := range []uint32{0x7f800000, 0xff800000, 0x7f800001, 0x7fc00000, 0xffffffff} {
		for _, exp := range []int{-150, -97, 0, 156} {
			if n, err := (Scale{exp}).FromBits(bits); n != 0 || !errors.Is(err, ErrNotFinite) {
				t.Errorf("%#x at 2^%d: %d, %v; want 0 and ErrNotFinite", bits, exp, n, err)
			}
		}
	}
}

func TestToFloat32IsNearest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := Scale{rapid.IntRange(-97, 156).Draw(t, "exp")}
		n := rapid.Int32().Draw(t, "n")
		v := new(big.Float).SetInt64(int64(n))
		v.SetMantExp(v, -s.Exp)
		want, _ := v.Float32()
		if got := s.ToFloat32(n); got != want {
			t.Fatalf("%d / 2^%d: %g, want %g", n, s.Exp, got, want)
		}
	})
}

func TestAddSaturates(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(0, 31)
		a := rapid.Int32().Draw(t, "a") >> size.Draw(t, "a's size")
		b := rapid.Int32().Draw(t, "b") >> size.Draw(t, "b's size")
		got := Add(a, b)
		switch exact := int64(a) + int64(b); {
		case exact > math.MaxInt32:
			if got != math.MaxInt32 {
				t.Fatalf("%d + %d = %d", a, b, got)
			}
		case exact < math.MinInt32:
			if got != math.MinInt32 {
				t.Fatalf("%d + %d = %d", a, b, got)
			}
		case int64(got) != exact:
			t.Fatalf("%d + %d = %d", a, b, got)
		}
	})
}

// TestScaleFits adds the largest gradient of an exponent from every worker: at the scale the sum
// fits, at twice the scale it does not.
func TestScaleFits(t *testing.T) {
	for _, addends := range []int{1, 2, 3, 7, 8, 100, 127, 128, 129, 1000, 1<<16 - 1, 1 << 16, 1_000_000, math.MaxInt32} {
		for largest := range uint8(infinite) {
			s, err := ScaleFor(largest, addends)
			if err != nil {
				t.Fatal(err)
			}
			x := math.Float32frombits(uint32(max(largest, 1))<<23 | 0x7fffff)
			n, err := s.FromFloat32(x)
			if err != nil {
				t.Fatal(err)
			}
			if int64(n)*int64(addends) > math.MaxInt32 {
				t.Fatalf("%d × %g overflows at scale 2^%d", addends, x, s.Exp)
			}
			if twice := reference(x, s.Exp+1); twice < math.MaxInt32 && int64(twice)*int64(addends) <= math.MaxInt32 {
				t.Fatalf("%d × %g fits at scale 2^%d, too", addends, x, s.Exp+1)
			}
		}
	}
}

// TestRoundTrip compares the error of a gradient with half a unit.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		grads := rapid.SliceOfN(rapid.Float32Range(-1e3, 1e3), 1, 20).Draw(t, "gradients")
		workers := rapid.IntRange(1, 64).Draw(t, "workers")
		largest, err := LargestExponent(grads)
		if err != nil {
			t.Fatal(err)
		}
		s, err := ScaleFor(largest, workers)
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range grads {
			n, err := s.FromFloat32(g)
			if err != nil {
				t.Fatal(err)
			}
			back := math.Ldexp(float64(n), -s.Exp)
			if math.Abs(back-float64(g)) > math.Ldexp(0.5, -s.Exp) {
				t.Fatalf("%g comes back as %g at scale 2^%d", g, back, s.Exp)
			}
		}
	})
}

func TestLargestExponent(t *testing.T) {
	for _, c := range []struct {
		grads []float32
		want  uint8
	}{
		{nil, 0},
		{[]float32{0, 0x1p-149}, 0},
		{[]float32{1, -3, 0.5}, 128},
		{[]float32{math.MaxFloat32, 1}, 254},
	} {
		if got, err := LargestExponent(c.grads); err != nil || got != c.want {
			t.Errorf("%g: %d, %v; want %d", c.grads, got, err, c.want)
		}
	}
	_, err := LargestExponent([]float32{1, 2, float32(math.NaN())})
	if !errors.Is(err, ErrNotFinite) || !strings.Contains(err.Error(), "gradient 2 is NaN") {
		t.Errorf("error %v", err)
	}
}

func TestScaleForRefuses(t *testing.T) {
	if _, err := ScaleFor(infinite, 1); !errors.Is(err, ErrExponent) {
		t.Errorf("exponent of infinity: %v", err)
	}
	for _, addends := range []int{-1, 0, math.MaxInt32 + 1} {
		s, err := ScaleFor(1, addends)
		want := fmt.Sprintf("scaled: bad number of addends: %d is not in [1, 2147483647]", addends)
		if !errors.Is(err, ErrAddends) || err.Error() != want || s != (Scale{}) {
			t.Errorf("%d addends: %v, %v; want %q", addends, s, err, want)
		}
	}
}

func BenchmarkFromBits(b *testing.B) {
	s := Scale{20}
	var sum int32
	bits := uint32(0x3f800000)
	for b.Loop() {
		n, err := s.FromBits(bits)
		if err != nil {
			b.Fatal(err)
		}
		sum = Add(sum, n)
		bits ^= 0x80000fff
	}
	_ = sum
}
