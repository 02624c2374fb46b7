package aggregator

import "slices"

// Spread is a figure over the rounds: median, smallest, largest.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// spreadOf returns the spread of one value at least.
func spreadOf(values []float64) Spread {
	return Spread{Median: median(values), Min: slices.Min(values), Max: slices.Max(values)}
}

// median returns the middle of the values, or the mean of the two middle ones.
// There must be one at least.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// paired returns the median of the ratios within each round, or 0 if there is no
// round. A machine that is slower for a while is slower for both.
func paired(a, b []float64) float64 {
	var ratios []float64
	for i := range min(len(a), len(b)) {
		ratios = append(ratios, quotient(a[i], b[i]))
	}
	if ratios == nil {
		return 0
	}
	return median(ratios)
}

// quotient is a/b, and 0 where b is: JSON has no infinity.
func quotient(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// rate turns nanoseconds a frame into pairs a second.
func rate(ns float64, pairs int) float64 { return quotient(1e9*float64(pairs), ns) }

// distinct returns a property of all, each value once, in order.
func distinct[T any, K comparable](all []T, of func(T) K) (values []K) {
	for _, v := range all {
		if k := of(v); !slices.Contains(values, k) {
			values = append(values, k)
		}
	}
	return values
}
