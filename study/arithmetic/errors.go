// SPDX-License-Identifier: Apache-2.0

package arithmetic

import (
	"fmt"
	"math"
	"math/big"
	"math/bits"
	"math/rand/v2"

	"gonum.org/v1/gonum/stat"

	"github.com/libra-ina/libra/internal/num/fixedpoint"
	"github.com/libra-ina/libra/internal/num/scaled"
	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/lut"
)

// LongSum is the relative error of sums of as many numbers of a data set as there
// are additions: |got - true| / |true|, over several sums; 1 where a sum should be
// 0 and is not.
type LongSum struct {
	DataSet    string     `json:"data_set"`
	Arithmetic Arithmetic `json:"arithmetic"`
	Additions  int        `json:"additions"`
	Median     float64    `json:"median"`
	Largest    float64    `json:"largest"`
}

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
		for i, want := range trueSums(numbers, c.Additions) {
			for _, a := range arithmetics {
				got, err := slot{table, format}.sum(a, numbers[:c.Additions[i]], d.bound)
				if err != nil {
					return nil, fmt.Errorf("arithmetic study: long sum of %s: %w", d.name, err)
				}
				errors[a][i] = append(errors[a][i], relativeError(got, want))
			}
		}
	}
	var results []LongSum
	for _, a := range arithmetics {
		for i, n := range c.Additions {
			s := experiment.SpreadOf(errors[a][i])
			results = append(results, LongSum{DataSet: d.name, Arithmetic: a, Additions: n, Median: s.Median, Largest: s.Max})
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

// trueSums returns the sums of the first numbers, by lengths, each rounded once, to
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

// formatFor returns the default fixed point or, if that is coarser, the finest in
// which no sum of that length can overflow. A job's exponent is to be chosen
// likewise.
func formatFor(bound uint8, additions int) (fixedpoint.Format, error) {
	above := int(bound) - 126 // numbers are below 2^above
	return fixedpoint.NewFormat(max(fixedpoint.DefaultExp, above+bits.Len(uint(additions))-63))
}

// Precision is a row of the paper's Table 2. Shares are between 0 and 1.
type Precision struct {
	Arithmetic Arithmetic `json:"arithmetic"`
	DataSet    string     `json:"data_set"`
	Median     float64    `json:"median"`
	Average    float64    `json:"average"`
	// Worst is the lowest precision of all pairs.
	Worst float64 `json:"worst"`
	// Paper has the paper's figures, if it has any.
	Paper *PaperPrecision `json:"paper,omitempty"`
}

// PaperPrecision is what the paper has in Table 2.
type PaperPrecision struct {
	Median  float64 `json:"median"`
	Average float64 `json:"average"`
}

// paperTable2 is by arithmetic and place of the data set.
var paperTable2 = map[Arithmetic][2]PaperPrecision{
	Fixed: {{0.9997, 0.9989}, {0.3679, 0.6246}},
	LUT:   {{0.9992, 0.9987}, {1, 0.9984}},
}

func precision(got, want float64) float64 { return max(0, 1-relativeError(got, want)) }

// table2 adds every pair of a data set. bound, if positive, replaces the pairs'
// own bounds.
func table2(d dataSet, a Arithmetic, s slot, bound uint8) (Precision, error) {
	values := make([]float64, len(d.pairs))
	for i, p := range d.pairs {
		b := p.bound
		if bound > 0 {
			b = bound
		}
		got, err := s.sum(a, []float32{p.a, p.b}, b)
		if err != nil {
			return Precision{}, err
		}
		values[i] = precision(got, float64(p.a)+float64(p.b))
	}
	all := experiment.SpreadOf(values)
	return Precision{Arithmetic: a, DataSet: d.name, Median: all.Median, Average: stat.Mean(values, nil),
		Worst: all.Min}, nil
}

// Arithmetic names a way to add.
type Arithmetic string

// The arithmetics of the study.
const (
	// Fixed is int32 with a negotiated scale, SwitchML's (internal/num/scaled).
	Fixed Arithmetic = "fixed"
	// LUT is the paper's table lookup (lut).
	LUT Arithmetic = "lut"
	// Float32 is what a processor does, correctly rounded.
	Float32 Arithmetic = "float32"
	// Exact is int64 fixed point (internal/num/fixedpoint).
	Exact Arithmetic = "exact"
)

var arithmetics = []Arithmetic{Fixed, LUT, Float32, Exact}

// slot is where numbers are added, one after the other.
type slot struct {
	table  *lut.Adder        // of LUT
	format fixedpoint.Format // of Exact
}

// sum adds numbers in an arithmetic. bound is the largest exponent of all numbers
// that share the scale of Fixed.
func (s slot) sum(a Arithmetic, numbers []float32, bound uint8) (float64, error) {
	switch a {
	case Fixed:
		return fixedSum(numbers, bound)
	case LUT:
		var sum uint32
		for _, x := range numbers {
			sum = s.table.Add(sum, math.Float32bits(x))
		}
		return float64(math.Float32frombits(sum)), nil
	case Exact:
		return exactSum(numbers, s.format)
	}
	var sum float32
	for _, x := range numbers {
		sum += x
	}
	return float64(sum), nil
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

func exactSum(numbers []float32, format fixedpoint.Format) (float64, error) {
	var sum int64
	for _, x := range numbers {
		units, err := format.FromFloat32(x)
		if err != nil {
			return 0, err
		}
		fits := false
		if sum, fits = fixedpoint.Add(sum, units); !fits {
			return 0, fixedpoint.ErrRange
		}
	}
	return float64(format.ToFloat32(sum)), nil
}
