// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"errors"
	"math"
	"testing"
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
		if _, err := NewSampler(rate, 0); !errors.Is(err, ErrConfig) {
			t.Errorf("rate %v: %v", rate, err)
		}
	}
}
