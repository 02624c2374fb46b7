// SPDX-License-Identifier: Apache-2.0

// Package zipf draws from Zipf's distribution in constant time.
package zipf

import (
	"math"
	"math/rand/v2"
)

// Distribution is Zipf's distribution of the ranks 0 to n-1: that of rank r is proportional to
// (r+1)^-exponent. Exponent 0 is the uniform distribution.
//
// It draws by Walker's alias method: one random number and one look at a table.
// rand.Zipf, which rejects, takes ten times as long, and experiments draw tens of
// millions of ranks.
type Distribution struct {
	cumulative []float64 // weight of the first ranks, by their number
	accept     []uint32  // the share of a column that is its own, times 2^32
	alias      []uint32  // rank returned when the draw exceeds accept
}

// New makes the tables of n ranks.
func New(n int, exponent float64) *Distribution {
	z := &Distribution{cumulative: make([]float64, n+1), accept: make([]uint32, n), alias: make([]uint32, n)}
	weights := make([]float64, n)
	total := 0.0
	for r := range weights {
		weights[r] = math.Pow(float64(r+1), -exponent)
		total += weights[r]
		z.cumulative[r+1] = total
	}
	var small, large []uint32
	for r := range weights {
		weights[r] *= float64(n) / total
		if weights[r] < 1 {
			small = append(small, uint32(r))
		} else {
			large = append(large, uint32(r))
		}
	}
	for len(small) > 0 && len(large) > 0 {
		s, l := small[len(small)-1], large[len(large)-1]
		small = small[:len(small)-1]
		z.accept[s], z.alias[s] = uint32(weights[s]*(1<<32-1)), l
		weights[l] -= 1 - weights[s]
		if weights[l] < 1 {
			large = large[:len(large)-1]
			small = append(small, l)
		}
	}
	for _, r := range append(small, large...) { // what rounding left over
		z.accept[r], z.alias[r] = math.MaxUint32, r
	}
	return z
}

// Draw returns a rank.
func (z *Distribution) Draw(rng *rand.Rand) int {
	x := rng.Uint64()
	column := x >> 32 * uint64(len(z.accept)) >> 32
	if uint32(x) <= z.accept[column] {
		return int(column)
	}
	return int(z.alias[column])
}

// DrawFrom returns a rank of [from, to). It draws until there is one, which takes
// the longer the smaller their share is.
func (z *Distribution) DrawFrom(rng *rand.Rand, from, to int) int {
	for {
		if r := z.Draw(rng); r >= from && r < to {
			return r
		}
	}
}

// Share returns the probability of the first n ranks.
func (z *Distribution) Share(n int) float64 {
	return z.cumulative[n] / z.cumulative[len(z.cumulative)-1]
}
