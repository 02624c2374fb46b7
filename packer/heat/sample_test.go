// SPDX-License-Identifier: Apache-2.0

package heat

import (
	"errors"
	"math"
	"testing"

	"github.com/libra-ina/libra/packer"
)

func TestSamplerKeepsItsShare(t *testing.T) {
	const rows = 200_000
	for _, rate := range []float64{0.01, 0.04, 0.5, 0.99, 1} {
		s, err := NewSampler(rate, 42)
		if err != nil {
			t.Fatal(err)
		}
		kept := 0
		for row := range uint64(rows) {
			if s.Keep(row) {
				kept++
			}
		}
		// Five standard deviations of a binomial; the seed is fixed.
		if diff := math.Abs(float64(kept) - rate*rows); diff > 5*math.Sqrt(rows*rate*(1-rate)) {
			t.Errorf("rate %v kept %d of %d rows", rate, kept, rows)
		}
	}
}

func TestSamplerSeeds(t *testing.T) {
	const rows = 100_000
	sampler := func(rate float64, seed uint64) Sampler {
		s, err := NewSampler(rate, seed)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	a, same, wider, other := sampler(0.1, 1), sampler(0.1, 1), sampler(0.2, 1), sampler(0.1, 2)
	both := 0
	for row := range uint64(rows) {
		if a.Keep(row) != same.Keep(row) {
			t.Fatalf("row %d: the same seed decides differently", row)
		}
		if a.Keep(row) && !wider.Keep(row) {
			t.Fatalf("row %d is in the 10 %% sample but not in the 20 %% one", row)
		}
		if a.Keep(row) && other.Keep(row) {
			both++
		}
	}
	if both < 800 || both > 1200 { // independent: 1 % of the rows
		t.Errorf("two seeds share %d of %d rows, want about 1000", both, rows)
	}
}

func TestNewSamplerErrors(t *testing.T) {
	for _, rate := range []float64{0, -0.1, 1.1, math.NaN(), math.Inf(1)} {
		if _, err := NewSampler(rate, 0); !errors.Is(err, packer.ErrConfig) {
			t.Errorf("rate %v: %v", rate, err)
		}
	}
}

// TestSamplerKeepsItsLimit looks at the row whose hash is the limit.
func TestSamplerKeepsItsLimit(t *testing.T) {
	s := Sampler{seed: 5, limit: splitmix(splitmix(5) ^ 77)}
	if !s.Keep(77) {
		t.Error("the row at the limit is not kept")
	}
	s.limit--
	if s.Keep(77) {
		t.Error("a row beyond the limit is kept")
	}
}

// TestSplitmixIsTheReference compares with the first numbers that SplitMix64
// gives from seed 0: its state goes up by the constant that splitmix adds.
func TestSplitmixIsTheReference(t *testing.T) {
	const step uint64 = 0x9e3779b97f4a7c15
	for i, want := range []uint64{0xe220a8397b1dcdaf, 0x6e789e6aa1b965f4, 0x06c45d188009454f, 0xf88bb8a8724c81ec} {
		if got := splitmix(uint64(i) * step); got != want {
			t.Errorf("number %d is %#x, want %#x", i, got, want)
		}
	}
}

func TestSamplerSaysHowItSamples(t *testing.T) {
	s, err := NewSampler(0.25, 9)
	if err != nil || s.Rate() != 0.25 || s.seed != 9 {
		t.Errorf("rate %v, seed %v, %v", s.Rate(), s.seed, err)
	}
}
