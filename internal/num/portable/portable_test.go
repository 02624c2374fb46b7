// SPDX-License-Identifier: Apache-2.0

package portable_test

import (
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/libra-ina/libra/internal/num/portable"
)

func TestExp(t *testing.T) {
	for i := range 100_000 {
		x := 1399 * (float64(i)/100_000 - 0.5)
		if got, want := portable.Exp(x), math.Exp(x); math.Abs(got-want) > 1e-15*want {
			t.Fatalf("Exp(%g) = %g, want %g", x, got, want)
		}
	}
	for x, want := range map[float64]float64{0: 1, math.Copysign(0, -1): 1, -700: 0, -701: 0, 700: math.Inf(1), math.Inf(-1): 0, math.Inf(1): math.Inf(1)} {
		if got := portable.Exp(x); got != want {
			t.Errorf("Exp(%g) = %g, want %g", x, got, want)
		}
	}
	if !math.IsNaN(portable.Exp(math.NaN())) {
		t.Error("Exp(NaN) is a number")
	}
}

func TestLogAndPow(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 100_000 {
		x, y := math.Ldexp(0.5+rng.Float64(), rng.IntN(80)-40), 10*(rng.Float64()-0.5)
		if got, want := portable.Log(x), math.Log(x); math.Abs(got-want) > 1e-15*max(1, math.Abs(want)) {
			t.Fatalf("Log(%g) = %g, want %g", x, got, want)
		}
		if got, want := portable.Pow(x, y), math.Pow(x, y); math.Abs(got-want) > 1e-15*want*max(1, math.Abs(y*math.Log(x))) {
			t.Fatalf("Pow(%g, %g) = %g, want %g", x, y, got, want)
		}
	}
	if portable.Log(1) != 0 || portable.Pow(7, 0) != 1 || portable.Log(5e-324) > -744 {
		t.Errorf("ln 1 = %g, 7^0 = %g, ln 5e-324 = %g", portable.Log(1), portable.Pow(7, 0), portable.Log(5e-324))
	}
	for _, x := range []float64{0, -1, math.Inf(1), math.NaN()} {
		if got := portable.Log(x); !math.IsNaN(got) {
			t.Errorf("Log(%g) = %g", x, got)
		}
	}
}

// The bits are the same on every architecture.
func TestBits(t *testing.T) {
	rng, h := rand.New(rand.NewPCG(3, 4)), fnv.New64a()
	for range 10_000 {
		x := math.Ldexp(0.5+rng.Float64(), rng.IntN(40)-20)
		fmt.Fprintf(h, "%x %x %x\n", math.Float64bits(portable.Exp(-x)), math.Float64bits(portable.Log(x)), math.Float64bits(portable.Pow(x, -rng.Float64())))
	}
	if got, want := h.Sum64(), uint64(0xdcf1ea00e43e899f); got != want {
		t.Errorf("the results have the hash %#x, want %#x", got, want)
	}
}
