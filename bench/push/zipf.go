package push

import (
	"math"
	"math/rand/v2"
)

// zipf draws ranks 0 to n-1, rank r with a probability proportional to
// (r+1)^-exponent, by Walker's alias method: one random number and one look at
// the table a draw. rand.Zipf, which rejects, takes ten times as long, and tens
// of millions of draws are needed.
type zipf struct {
	rng    *rand.Rand
	accept []uint32 // the share of a column that is its own, times 2^32
	alias  []uint32 // whose the rest is
}

func newZipf(rng *rand.Rand, n int, exponent float64) *zipf {
	z := &zipf{rng: rng, accept: make([]uint32, n), alias: make([]uint32, n)}
	weights := make([]float64, n)
	total := 0.0
	for r := range weights {
		weights[r] = math.Pow(float64(r+1), -exponent)
		total += weights[r]
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
	for _, r := range append(small, large...) {
		z.accept[r], z.alias[r] = math.MaxUint32, r
	}
	return z
}

// draw returns a rank.
func (z *zipf) draw() uint32 {
	x := z.rng.Uint64()
	column := uint32(x >> 32 * uint64(len(z.accept)) >> 32)
	if uint32(x) <= z.accept[column] {
		return column
	}
	return z.alias[column]
}
