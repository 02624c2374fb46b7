// SPDX-License-Identifier: Apache-2.0

package lut

import (
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

const (
	negative = signBit
	negInf   = signBit | infinity
)

// defaultAdder is shared, because building the tables takes a while under -race.
var defaultAdder = mustNew(Config{})

func mustNew(c Config) *Adder {
	a, err := New(c)
	if err != nil {
		panic(err)
	}
	return a
}

func value(bits uint32) float64 { return float64(math.Float32frombits(bits)) }

func isNaN(bits uint32) bool { return bits&magnitude > infinity }

// drawPair draws numbers of similar size: sums of independent bits are rarely interesting.
func drawPair(t *rapid.T) (a, b uint32) {
	a = rapid.Uint32().Draw(t, "a")
	if rapid.Bool().Draw(t, "independent") {
		return a, rapid.Uint32().Draw(t, "b")
	}
	e := int(a>>23&0xff) + rapid.IntRange(-26, 26).Draw(t, "distance")
	e = min(max(e, 0), 0xff)
	b = rapid.Uint32().Draw(t, "b")
	return a, b&^infinity | uint32(e)<<23
}

func TestAddCommutes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawPair(t)
		if ab, ba := defaultAdder.Add(a, b), defaultAdder.Add(b, a); ab != ba {
			t.Fatalf("%#08x + %#08x = %#08x, but %#08x in the other order", a, b, ab, ba)
		}
	})
}

func TestAddIsSymmetricInSign(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawPair(t)
		sum, mirrored := defaultAdder.Add(a, b), defaultAdder.Add(a^negative, b^negative)
		if sum != 0 && sum != notNumber { // which have one sign only
			mirrored ^= negative
		}
		if sum != mirrored {
			t.Fatalf("%#08x + %#08x = %#08x; with opposite signs %#08x", a, b, sum, mirrored)
		}
	})
}

func TestAddZero(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.Uint32().Draw(t, "a")
		want := a
		switch {
		case isNaN(a):
			want = notNumber
		case a&infinity == 0:
			want = 0
		}
		for _, zero := range []uint32{0, negative, 1, negative | fraction} {
			if got := defaultAdder.Add(a, zero); got != want {
				t.Fatalf("%#08x + %#08x = %#08x, want %#08x", a, zero, got, want)
			}
		}
	})
}

func TestAddSpecial(t *testing.T) {
	const (
		x       = 0x40490fdb // 3.14159274
		largest = infinity - 1
		least   = hidden
	)
	for _, c := range []struct {
		name       string
		a, b, want uint32
	}{
		{"number and its negative", x, negative | x, 0},
		{"infinity and a number", infinity, negative | largest, infinity},
		{"negative infinity and a number", negInf, largest, negInf},
		{"infinity and zero", infinity, negative, infinity},
		{"infinities of one sign", negInf, negInf, negInf},
		{"infinities of opposite signs", infinity, negInf, notNumber},
		{"NaN and a number", 0x7f800001, x, notNumber},
		{"NaN and infinity", 0xffc00000, negInf, notNumber},
		{"NaN and zero", 0xffffffff, 0, notNumber},
		{"overflow", largest, largest, infinity},
		{"negative overflow", negative | largest, negative | largest, negInf},
		{"largest and least", largest, least, largest},
		{"subnormal sum", least + 1, negative | least, 0},
		{"smallest normal difference", 2 * least, negative | least, least},
		{"last bits, equal exponents", x + 1, negative | x, 0x34800000},             // 2^-22
		{"across a power of two", 0x3f800000, negative | 0x3f7fffff, 0x33800000},    // 1 - (1 - 2^-24)
		{"lost bit of a difference", 0x3fffffff, negative | 0x3f000001, 0x3fbffffe}, // 1.9.. - 0.5..: a tie
		{"too small to be seen", 0x3f800001, 0x3f800001 - 17<<23, 0x3f800001},       // 2^-17
		{"too small to be seen, opposite signs", x, negative | (x - 18<<23), x},     // 2^-18
		{"negative zeros", negative, negative, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := defaultAdder.Add(c.a, c.b); got != c.want {
				t.Errorf("%#08x + %#08x = %#08x (%g), want %#08x (%g)", c.a, c.b, got, value(got), c.want, value(c.want))
			}
		})
	}
}

// checkSum compares a sum with the true one, within the stated bound.
func checkSum(t interface {
	Helper()
	Fatalf(string, ...any)
}, adder *Adder, bound Bound, a, b uint32) {
	t.Helper()
	sum := adder.Add(a, b)
	if a&infinity == infinity || b&infinity == infinity { // TestAddSpecial
		return
	}
	if isNaN(sum) {
		t.Fatalf("%g + %g is not a number", value(a), value(b))
	}
	want := flushed(a) + flushed(b)
	limit := relativeBound(bound, a, b)
	switch {
	case sum&magnitude == infinity:
		if math.Abs(want)*(1+limit) < 0x1p128 {
			t.Fatalf("%g + %g overflows, true sum %g", value(a), value(b), want)
		}
		if math.Signbit(value(sum)) != (want < 0) {
			t.Fatalf("%g + %g overflows to the wrong side", value(a), value(b))
		}
		return
	case sum&infinity == 0:
		if sum != 0 || math.Abs(want) >= 0x1p-126 {
			t.Fatalf("%g + %g = %#08x, true sum %g", value(a), value(b), sum, want)
		}
		return
	}
	if got := value(sum); math.Abs(got-want) > limit*math.Abs(want) {
		t.Fatalf("%g + %g (%#08x, %#08x) = %g, true sum %g: error %g, bound %g",
			value(a), value(b), a, b, got, want, math.Abs(got-want)/math.Abs(want), limit)
	}
}

// flushed is a number's value with subnormals as zero. The sum of two in float64 may be rounded,
// which is negligible compared with the bounds.
func flushed(bits uint32) float64 {
	if bits&infinity == 0 {
		return 0
	}
	return value(bits)
}

func relativeBound(b Bound, x, y uint32) float64 {
	if (x^y)&negative == 0 {
		return b.SameSigns
	}
	if d := int(x>>23&0xff) - int(y>>23&0xff); d >= -1 && d <= 1 {
		return b.Cancelling
	}
	return b.OppositeSigns
}

var configs = map[string]Config{
	"default":            {},
	"narrow":             {MantissaBits: 8, LogBits: 16, ExpKeyBits: 10, MiKeyBits: 8, SubKeyBits: 8, FinalKeyBits: 8},
	"wide significand":   {MantissaBits: 15, LogBits: 20, MiKeyBits: 13, SubKeyBits: 14, FinalKeyBits: 12},
	"narrow significand": {MantissaBits: 8},
	"4096 entries":       {ExpKeyBits: 12, MiKeyBits: 12, SubKeyBits: 12, FinalKeyBits: 12},
}

func TestAddIsWithinBound(t *testing.T) {
	for name, c := range configs {
		t.Run(name, func(t *testing.T) {
			adder := mustNew(c)
			bound := adder.Bound()
			rapid.Check(t, func(t *rapid.T) {
				a, b := drawPair(t)
				checkSum(t, adder, bound, a, b)
			})
			// And many pairs with close exponents.
			rng := rand.New(rand.NewPCG(1, 2))
			for range 50_000 {
				a := uint32(100+rng.IntN(20))<<23 | rng.Uint32()&(fraction|negative)
				b := uint32(100+rng.IntN(20))<<23 | rng.Uint32()&(fraction|negative)
				checkSum(t, adder, bound, a, b)
			}
		})
	}
}

// TestBoundOfTheDefault checks the numbers of the derivation.
func TestBoundOfTheDefault(t *testing.T) {
	b := defaultAdder.Bound()
	for name, c := range map[string][2]float64{
		"same signs":     {b.SameSigns, 2.90674365595045e-05},
		"opposite signs": {b.OppositeSigns, 2.9636404153876583e-05},
		"cancelling":     {b.Cancelling, 0x1p-24},
	} {
		if math.Abs(c[0]/c[1]-1) > 1e-9 {
			t.Errorf("%s: %g, want %g", name, c[0], c[1])
		}
	}
}

// TestBoundOfCoarseKeys has tables in which the error of ignoring small addends outweighs all other
// errors.
func TestBoundOfCoarseKeys(t *testing.T) {
	b := mustNew(Config{MantissaBits: 15, MiKeyBits: 8, SubKeyBits: 8}).Bound()
	if want := 0x1p-8 + 0x1p-17; b.SameSigns != want || b.OppositeSigns != want {
		t.Errorf("%g and %g, want %g", b.SameSigns, b.OppositeSigns, want)
	}
}

// TestBoundIsTight fails if a bound is too generous to be useful.
func TestBoundIsTight(t *testing.T) {
	bound := defaultAdder.Bound()
	worst := map[float64]float64{}
	rng := rand.New(rand.NewPCG(3, 4))
	for range 200_000 {
		a := 0x3f800000 | rng.Uint32()&fraction
		b := uint32(127-rng.IntN(4))<<23 | rng.Uint32()&(fraction|negative)
		want := value(a) + value(b)
		limit := relativeBound(bound, a, b)
		worst[limit] = max(worst[limit], math.Abs(value(defaultAdder.Add(a, b))-want)/math.Abs(want))
	}
	if len(worst) != 3 {
		t.Fatalf("%d of 3 cases seen", len(worst))
	}
	for limit, w := range worst {
		if w < limit/2 {
			t.Errorf("largest error seen is %g, bound %g", w, limit)
		}
	}
}

func TestNearSubtractionIsNearest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := uint32(rapid.IntRange(30, 254).Draw(t, "exponent"))<<23 | rapid.Uint32Max(fraction).Draw(t, "a")
		b := a&infinity - rapid.SampledFrom([]uint32{0, hidden}).Draw(t, "distance") | rapid.Uint32Max(fraction).Draw(t, "b")
		exact := value(a) - value(b) // in float64
		got := value(defaultAdder.Add(a, b|negative))
		nearest := float64(float32(exact))
		if math.Abs(got-exact) > math.Abs(nearest-exact) {
			t.Fatalf("%g - %g = %g, exactly %g", value(a), value(b), got, exact)
		}
	})
}

func FuzzAdd(f *testing.F) {
	for _, x := range []uint32{0, 1, hidden, 0x3f800000, 0x3f800001, infinity - 1, infinity, notNumber} {
		for _, y := range []uint32{negative, hidden + 1, 0x3f7fffff, 0xbf800000, 0xbe000000, negInf} {
			f.Add(x, y)
		}
	}
	bound := defaultAdder.Bound()
	f.Fuzz(func(t *testing.T, a, b uint32) {
		checkSum(t, defaultAdder, bound, a, b)
		if defaultAdder.Add(a, b) != defaultAdder.Add(b, a) {
			t.Fatalf("%#08x + %#08x depends on the order", a, b)
		}
	})
}
