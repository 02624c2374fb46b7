package arithmetic

import (
	"math"

	"github.com/libra-ina/libra/internal/fixedpoint"
	"github.com/libra-ina/libra/internal/scaled"
	"github.com/libra-ina/libra/lut"
)

// Arithmetic names a way to add.
type Arithmetic string

// The arithmetics of the study.
const (
	// Fixed is int32 with a negotiated scale, SwitchML's (internal/scaled).
	Fixed Arithmetic = "fixed"
	// LUT is the paper's table lookup (lut).
	LUT Arithmetic = "lut"
	// Float32 is what a processor does, correctly rounded.
	Float32 Arithmetic = "float32"
	// Exact is int64 fixed point (internal/fixedpoint).
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
