package aggregator

import (
	"math"
	"math/rand/v2"
	"slices"
)

// skew is a Zipf distribution of ranks: rank r, from 0 on, has a probability
// proportional to (r+1)^-exponent. Exponent 0 is the uniform distribution.
type skew struct{ cumulative []float64 }

func newSkew(n int, exponent float64) skew {
	c := make([]float64, n)
	sum := 0.0
	for r := range c {
		sum += math.Pow(float64(r+1), -exponent)
		c[r] = sum
	}
	return skew{c}
}

// mass returns the weight of the first n ranks.
func (s skew) mass(n int) float64 {
	if n == 0 {
		return 0
	}
	return s.cumulative[n-1]
}

// share returns the probability of the first n ranks.
func (s skew) share(n int) float64 { return s.mass(n) / s.mass(len(s.cumulative)) }

// draw returns a rank of [from, to).
func (s skew) draw(rng *rand.Rand, from, to int) int {
	low := s.mass(from)
	x := low + rng.Float64()*(s.mass(to)-low)
	r, _ := slices.BinarySearch(s.cumulative[from:to], x)
	return min(from+r, to-1) // x may be rounded up to the end
}
