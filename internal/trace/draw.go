// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"math"
	"math/rand/v2"
	"slices"
)

// Skew is that of a made-up training: of Parameters parameters, the Hot most frequent get the Share
// of all updates.
type Skew struct {
	Name       string
	Parameters uint64
	Hot        int
	Share      float64
}

// OA and SE have the skew of the two industrial trainings of the Libra paper, on-line advertising
// and search (its Figure 5).
var (
	OA = Skew{"oa", 150_000_000, 30_000, 0.5}
	SE = Skew{"se", 9_000_000, 30_000, 0.7}
)

// Shape is how much of a made-up training there is.
type Shape struct {
	Workers, Pushes int // pushes of each worker
	Rows            int // of a push, with distinct keys
}

// Draw draws a training, the same for the same seed. The keys of a push are those of as many draws
// from Zipf's distribution as have its number of distinct ones, with an exponent for which the hot
// parameters have their share of the updates; so the hottest are in every push. The keys are
// scattered over 64 bits, as hashed features are.
func Draw(s Skew, shape Shape, seed uint64) *Trace {
	z := s.fit(shape.Rows)
	hot := make([]float64, s.Hot) // probability of each to be in a push
	for i := range hot {
		hot[i] = z.within(float64(i)+0.5, float64(i)+1.5)
	}
	t := &Trace{Name: s.Name, Dim: 1, Parameters: s.Parameters, Workers: make([]Worker, shape.Workers)}
	for i := range t.Workers {
		w := &t.Workers[i]
		w.Starts, w.Steps = []int{0}, shape.Pushes
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		for range shape.Pushes {
			w.Keys = append(w.Keys, drawPush(rng, z, hot, shape.Rows)...)
			w.Starts = append(w.Starts, len(w.Keys))
			for range shape.Rows {
				w.Grads = append(w.Grads, float32(rng.NormFloat64())*0x1p-7)
			}
		}
	}
	return t
}

// drawPush draws the keys of a push: each hot parameter by its probability, and then cold ones.
func drawPush(rng *rand.Rand, z *zipf, hot []float64, rows int) []uint64 {
	keys := make([]uint64, 0, rows)
	for rank, p := range hot {
		if rng.Float64() < p && len(keys) < rows {
			keys = append(keys, keyOf(uint64(rank)))
		}
	}
	drawn := make(map[uint64]bool, rows)
	for len(keys) < rows {
		if rank := z.drawFrom(float64(len(hot)), rng.Float64()); !drawn[rank] {
			drawn[rank] = true
			keys = append(keys, keyOf(rank))
		}
	}
	slices.Sort(keys)
	return keys
}

// keyOf returns the key of the parameter of a rank, from 0 on. It is a bijection (the finalizer of
// SplitMix64).
func keyOf(rank uint64) uint64 {
	x := rank + 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// zipf is Zipf's distribution of n ranks, and a number of draws from it. Sums over ranks are
// approximated by integrals, in which rank r, from 0 on, stands for r+1/2 to r+3/2.
type zipf struct{ n, exponent, draws float64 }

// integral is that of x^-exponent.
func (z *zipf) integral(from, to float64) float64 {
	if z.exponent == 1 {
		return math.Log(to / from)
	}
	return (math.Pow(to, 1-z.exponent) - math.Pow(from, 1-z.exponent)) / (1 - z.exponent)
}

// drawFrom returns the rank, of those from a first one on, below which the share u of their draws
// is.
func (z *zipf) drawFrom(first, u float64) uint64 {
	from := first + 0.5
	v := u * z.integral(from, z.n+0.5)
	x := from * math.Exp(v)
	if z.exponent != 1 {
		x = math.Pow(v*(1-z.exponent)+math.Pow(from, 1-z.exponent), 1/(1-z.exponent))
	}
	return uint64(min(max(first, math.Floor(x-0.5)), z.n-1))
}

// within returns the expected number of distinct ranks in an interval: one of probability p is
// among n draws with the probability 1-(1-p)^n.
func (z *zipf) within(from, to float64) float64 {
	p := z.integral(from, to) / z.integral(0.5, z.n+0.5) / (to - from)
	return (to - from) * -math.Expm1(z.draws*math.Log1p(-min(p, 1-1e-12)))
}

// distinct is within for long intervals, by strips of equal width in the logarithm of the rank.
func (z *zipf) distinct(from, to float64) (sum float64) {
	const strips = 500
	step := math.Pow(to/from, 1.0/strips)
	for range strips {
		sum += z.within(from, from*step)
		from *= step
	}
	return sum
}

// fit returns the distribution from which a push with the given number of distinct rows takes the
// share s.Share from the hot parameters. The share grows with the exponent.
func (s Skew) fit(rows int) *zipf {
	z := &zipf{n: float64(s.Parameters)}
	bisect(0, 4, func(exponent float64) bool {
		z.exponent = exponent
		bisect(0, 40, func(x float64) bool {
			z.draws = math.Exp(x)
			return z.distinct(0.5, z.n+0.5) < float64(rows)
		})
		return z.distinct(0.5, float64(s.Hot)+0.5) < s.Share*float64(rows)
	})
	return z
}

// bisect narrows where between two numbers below ceases to hold.
func bisect(low, high float64, below func(float64) bool) {
	for range 40 {
		if middle := (low + high) / 2; below(middle) {
			low = middle
		} else {
			high = middle
		}
	}
}
