package arithmetic

import (
	"math"
	"math/rand/v2"

	"github.com/libra-ina/libra/bench/harness"
)

// DataSet describes numbers that were added. Least, Median and Largest are
// magnitudes.
type DataSet struct {
	Name    string  `json:"name"`
	Pairs   int     `json:"pairs"`
	Least   float64 `json:"least"`
	Median  float64 `json:"median"`
	Largest float64 `json:"largest"`
	// Opposite is the share of pairs of opposite signs.
	Opposite float64 `json:"opposite_signs"`
}

// dataSet holds numbers to add.
type dataSet struct {
	name  string
	pairs []pair
	// bound is the largest exponent of all numbers.
	bound uint8
}

// pair is two numbers that meet in a slot.
type pair struct {
	a, b float32
	// bound is the largest exponent that the two workers report in the
	// iteration of the pair.
	bound uint8
}

// number returns one of the numbers of all pairs.
func (d dataSet) number(rng *rand.Rand) float32 {
	n := rng.IntN(2 * len(d.pairs))
	if n%2 == 0 {
		return d.pairs[n/2].a
	}
	return d.pairs[n/2].b
}

// medianBound returns the bound of a median iteration.
func (d dataSet) medianBound() uint8 {
	bounds := make([]uint8, len(d.pairs))
	for i, p := range d.pairs {
		bounds[i] = p.bound
	}
	return harness.Quantile(bounds, 0.5)
}

// uniform draws pairs of numbers between low and 1. Their bound is that of the
// interval.
func uniform(name string, low float64, n int, rng *rand.Rand) dataSet {
	const belowOne = 126
	d := dataSet{name, make([]pair, n), belowOne}
	draw := func() float32 {
		for {
			x := float32(low + (1-low)*rng.Float64())
			if x > -1 && x < 1 { // rounding may reach an end, which is outside
				return x
			}
		}
	}
	for i := range d.pairs {
		d.pairs[i] = pair{draw(), draw(), belowOne}
	}
	return d
}

func describe(d dataSet) DataSet {
	magnitudes := make([]float64, 0, 2*len(d.pairs))
	opposite := 0
	for _, p := range d.pairs {
		magnitudes = append(magnitudes, math.Abs(float64(p.a)), math.Abs(float64(p.b)))
		if math.Signbit(float64(p.a)) != math.Signbit(float64(p.b)) {
			opposite++
		}
	}
	s := harness.SpreadOf(magnitudes)
	return DataSet{
		Name: d.name, Pairs: len(d.pairs), Least: s.Min, Median: s.Median, Largest: s.Max,
		Opposite: float64(opposite) / float64(len(d.pairs)),
	}
}
