package arithmetic

import (
	"gonum.org/v1/gonum/stat"

	"github.com/libra-ina/libra/bench/harness"
)

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

// precision of a sum: see the package's documentation.
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
	all := harness.SpreadOf(values)
	return Precision{Arithmetic: a, DataSet: d.name, Median: all.Median, Average: stat.Mean(values, nil), Worst: all.Min}, nil
}
