// SPDX-License-Identifier: Apache-2.0

package zipf

import (
	"math"
	"math/rand/v2"
	"testing"
)

// TestZipf draws from a distribution and from its parts.
func TestZipf(t *testing.T) {
	const n, exponent, draws = 50, 1.3, 500_000
	z := New(n, exponent)
	weight := func(from, to int) (sum float64) {
		for r := from; r < to; r++ {
			sum += math.Pow(float64(r+1), -exponent)
		}
		return sum
	}
	rng := rand.New(rand.NewPCG(1, 1))
	for _, part := range [][2]int{{0, n}, {0, 10}, {10, n}, {5, 6}} {
		counts := make([]float64, n)
		for range draws {
			counts[z.DrawFrom(rng, part[0], part[1])]++
		}
		for r, got := range counts {
			want := 0.0
			if r >= part[0] && r < part[1] {
				want = draws * weight(r, r+1) / weight(part[0], part[1])
			}
			if math.Abs(got-want) > 6*math.Sqrt(want) {
				t.Errorf("of [%d, %d): rank %d was drawn %.0f times, want about %.0f", part[0], part[1], r, got, want)
			}
		}
	}
	for _, first := range []int{0, 1, n} {
		if got, want := z.Share(first), weight(0, first)/weight(0, n); math.Abs(got-want) > 1e-12 {
			t.Errorf("the first %d ranks have a share of %v, want %v", first, got, want)
		}
	}
}
