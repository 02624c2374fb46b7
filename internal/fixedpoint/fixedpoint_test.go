package fixedpoint

import (
	"errors"
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

func TestFromBitsMatchesBigArithmetic(t *testing.T) {
	limit := new(big.Int).Lsh(big.NewInt(1), 63)
	rapid.Check(t, func(t *rapid.T) {
		exp := rapid.IntRange(MinExp, MaxExp).Draw(t, "exp")
		bits := rapid.Uint32().Draw(t, "bits")
		x := math.Float32frombits(bits)
		n, err := Format{exp}.FromBits(bits)
		if math.IsNaN(float64(x)) || math.IsInf(float64(x), 0) {
			if !errors.Is(err, ErrNotFinite) {
				t.Fatalf("%g: error %v, want ErrNotFinite", x, err)
			}
			return
		}
		want := reference(x, exp)
		if want.CmpAbs(limit) >= 0 {
			if !errors.Is(err, ErrRange) {
				t.Fatalf("%g: error %v, want ErrRange", x, err)
			}
			return
		}
		if err != nil || n != want.Int64() {
			t.Fatalf("%g at 2^%d: %d, %v; want %v", x, exp, n, err, want)
		}
	})
}

func TestToFloat32IsNearest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		exp := rapid.IntRange(MinExp, MaxExp).Draw(t, "exp")
		n := rapid.Int64().Draw(t, "n")
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
		want := new(big.Int).Add(big.NewInt(a), big.NewInt(b))
		if _, ok := Add(a, b); ok != want.IsInt64() {
			t.Fatalf("Add(%d, %d) fits: %v, want %v", a, b, ok, want.IsInt64())
		}
	})
}
