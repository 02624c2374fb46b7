package arithmetic

import (
	"math"
	"slices"

	"gonum.org/v1/gonum/stat"

	"github.com/libra-ina/libra/internal/fixedpoint"
	"github.com/libra-ina/libra/internal/scaled"
	"github.com/libra-ina/libra/lut"
)

// paperTable2 is by arithmetic and place of the data set.
var paperTable2 = map[Arithmetic][2]PaperPrecision{
	Fixed: {{0.9997, 0.9989}, {0.3679, 0.6246}},
	LUT:   {{0.9992, 0.9987}, {1, 0.9984}},
}

// add returns the sum of a pair. scale is that of [Fixed].
type add func(p pair, scale scaled.Scale) (float64, error)

var exactFormat = fixedpoint.Format{Exp: fixedpoint.DefaultExp}

func adders(table *lut.Adder) map[Arithmetic]add {
	return map[Arithmetic]add{
		Fixed: func(p pair, scale scaled.Scale) (float64, error) {
			a, err := scale.FromFloat32(p.a)
			if err != nil {
				return 0, err
			}
			b, err := scale.FromFloat32(p.b)
			return float64(scale.ToFloat32(scaled.Add(a, b))), err
		},
		LUT: func(p pair, _ scaled.Scale) (float64, error) {
			sum := table.Add(math.Float32bits(p.a), math.Float32bits(p.b))
			return float64(math.Float32frombits(sum)), nil
		},
		Float32: func(p pair, _ scaled.Scale) (float64, error) {
			return float64(p.a + p.b), nil
		},
		Exact: func(p pair, _ scaled.Scale) (float64, error) {
			a, err := exactFormat.FromFloat32(p.a)
			if err != nil {
				return 0, err
			}
			b, err := exactFormat.FromFloat32(p.b)
			return float64(exactFormat.ToFloat32(a + b)), err // gradients and uniform numbers, far below 2^16
		},
	}
}

// precision of a sum: see the package's documentation.
func precision(got, want float64) float64 { return max(0, 1-relativeError(got, want)) }

// table2 adds every pair of a data set. bound, if positive, replaces the pairs'
// own bounds.
func table2(d dataSet, a Arithmetic, sum add, bound uint8) (Precision, error) {
	values := make([]float64, len(d.pairs))
	for i, p := range d.pairs {
		b := p.bound
		if bound > 0 {
			b = bound
		}
		scale, err := scaled.ScaleFor(b, 2)
		if err != nil {
			return Precision{}, err
		}
		got, err := sum(p, scale)
		if err != nil {
			return Precision{}, err
		}
		values[i] = precision(got, float64(p.a)+float64(p.b))
	}
	slices.Sort(values)
	return Precision{
		Arithmetic: a, DataSet: d.name,
		Median:  stat.Quantile(0.5, stat.Empirical, values, nil),
		Average: stat.Mean(values, nil),
		Worst:   values[0],
	}, nil
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
	slices.Sort(magnitudes)
	return DataSet{
		Name: d.name, Pairs: len(d.pairs),
		Least: magnitudes[0], Largest: magnitudes[len(magnitudes)-1],
		Median:   stat.Quantile(0.5, stat.Empirical, magnitudes, nil),
		Opposite: float64(opposite) / float64(len(d.pairs)),
	}
}
