package arithmetic

import (
	"fmt"
	"math"
	"math/big"
	"math/bits"
	"math/rand/v2"
	"slices"

	"gonum.org/v1/gonum/stat"

	"github.com/libra-ina/libra/internal/fixedpoint"
	"github.com/libra-ina/libra/internal/scaled"
	"github.com/libra-ina/libra/lut"
)

// truthPrecision holds the sum of 2^32 float32 numbers of any size: 2 × 127 + 24
// bits, and 32.
const truthPrecision = 320

// longSums adds numbers that are drawn at random from a data set, one after the
// other into one slot, and looks at the sum at each length.
func longSums(d dataSet, c Config, table *lut.Adder) ([]LongSum, error) {
	errors := map[Arithmetic][][]float64{}
	for _, a := range arithmetics {
		errors[a] = make([][]float64, len(c.Additions))
	}
	numbers := make([]float32, c.Additions[len(c.Additions)-1])
	format, err := formatFor(d.bound, len(numbers))
	if err != nil {
		return nil, fmt.Errorf("arithmetic study: long sum of %s: %w", d.name, err)
	}
	for trial := range c.Trials {
		rng := rand.New(rand.NewPCG(c.Seed, uint64(trial)))
		for i := range numbers {
			numbers[i] = d.number(rng)
		}
		truth := trueSums(numbers, c.Additions)
		got, err := sums(numbers, c.Additions, d.bound, format, table)
		if err != nil {
			return nil, fmt.Errorf("arithmetic study: long sum of %s: %w", d.name, err)
		}
		for _, a := range arithmetics {
			for i, want := range truth {
				errors[a][i] = append(errors[a][i], relativeError(got[a][i], want))
			}
		}
	}
	var results []LongSum
	for _, a := range arithmetics {
		for i, n := range c.Additions {
			slices.Sort(errors[a][i])
			results = append(results, LongSum{
				DataSet: d.name, Arithmetic: a, Additions: n,
				Median:  stat.Quantile(0.5, stat.Empirical, errors[a][i], nil),
				Largest: errors[a][i][c.Trials-1],
			})
		}
	}
	return results, nil
}

// relativeError is |got - want| / |want|, and 1 where a sum should be 0 and is not.
func relativeError(got, want float64) float64 {
	switch {
	case got == want:
		return 0
	case want == 0:
		return 1
	}
	return math.Abs(got-want) / math.Abs(want)
}

// trueSums returns the sums of the first so many numbers, rounded once, to
// float64.
func trueSums(numbers []float32, lengths []int) []float64 {
	sum := new(big.Float).SetPrec(truthPrecision)
	term := new(big.Float)
	var results []float64
	done := 0
	for _, n := range lengths {
		for _, x := range numbers[done:n] {
			sum.Add(sum, term.SetFloat64(float64(x)))
		}
		done = n
		f, _ := sum.Float64()
		results = append(results, f)
	}
	return results
}

// formatFor returns the default fixed point, or the finest in which no sum of so
// many numbers can overflow if that is coarser. A job's exponent is to be chosen
// likewise.
func formatFor(bound uint8, additions int) (fixedpoint.Format, error) {
	above := int(bound) - 126 // numbers are below 2^above
	return fixedpoint.NewFormat(max(fixedpoint.DefaultExp, above+bits.Len(uint(additions))-63))
}

// sums is trueSums by each arithmetic.
func sums(numbers []float32, lengths []int, bound uint8, format fixedpoint.Format, table *lut.Adder) (map[Arithmetic][]float64, error) {
	results := map[Arithmetic][]float64{}
	var byTable uint32
	var single float32
	var exact int64
	done := 0
	for _, n := range lengths {
		for _, x := range numbers[done:n] {
			byTable = table.Add(byTable, math.Float32bits(x))
			single += x
			units, err := format.FromFloat32(x)
			if err != nil {
				return nil, err
			}
			fits := false
			if exact, fits = fixedpoint.Add(exact, units); !fits {
				return nil, fixedpoint.ErrRange
			}
		}
		done = n
		// Its scale depends on the number of additions, so it starts anew.
		fixed, err := fixedSum(numbers[:n], bound)
		if err != nil {
			return nil, err
		}
		results[Fixed] = append(results[Fixed], fixed)
		results[LUT] = append(results[LUT], float64(math.Float32frombits(byTable)))
		results[Float32] = append(results[Float32], float64(single))
		results[Exact] = append(results[Exact], float64(format.ToFloat32(exact)))
	}
	return results, nil
}

func fixedSum(numbers []float32, bound uint8) (float64, error) {
	scale, err := scaled.ScaleFor(bound, len(numbers))
	if err != nil {
		return 0, err
	}
	var sum int32
	for _, x := range numbers {
		n, err := scale.FromFloat32(x)
		if err != nil {
			return 0, err
		}
		sum = scaled.Add(sum, n)
	}
	return float64(scale.ToFloat32(sum)), nil
}
