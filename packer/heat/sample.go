// SPDX-License-Identifier: Apache-2.0

package heat

import (
	"fmt"
	"math"

	"github.com/libra-ina/libra/packer"
)

// Sampler samples training rows, each with the same probability and independently
// of the others (Bernoulli sampling). The sample depends only on the seed and the
// row's number, so it is the same for any order of reading and any division of
// rows among workers.
type Sampler struct {
	rate  float64
	seed  uint64
	limit uint64 // a row is kept if its hash is at most this
}

// NewSampler returns a sampler that keeps a share rate of the rows, 0 < rate <=
// 1. It returns [packer.ErrConfig] for other rates.
func NewSampler(rate float64, seed uint64) (Sampler, error) {
	if !(rate > 0 && rate <= 1) {
		return Sampler{}, fmt.Errorf("%w: sampling rate %v is not in (0, 1]", packer.ErrConfig, rate)
	}
	limit := uint64(math.MaxUint64)
	if scaled := rate * (1 << 64); scaled < 1<<64 {
		limit = uint64(scaled)
	}
	return Sampler{rate: rate, seed: seed, limit: limit}, nil
}

// Rate returns the sampling rate.
func (s Sampler) Rate() float64 { return s.rate }

// Keep reports whether the row with this number is in the sample.
func (s Sampler) Keep(row uint64) bool { return splitmix(splitmix(s.seed)^row) <= s.limit }

// splitmix is the output function of SplitMix64 (Steele, Lea, Flood, "Fast
// splittable pseudorandom number generators", OOPSLA 2014): a bijection that
// makes consecutive numbers look random.
func splitmix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
