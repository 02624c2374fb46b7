// SPDX-License-Identifier: Apache-2.0

package experiment

import (
	"cmp"
	"fmt"
	"math"
	"reflect"
	"slices"
)

// Median returns the middle of the values, or the mean of the two middle ones.
// There must be one at least.
func Median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// Quantile returns the smallest value that a share q of the values, above 0 and
// at most 1, does not exceed. There must be one value at least.
func Quantile[T cmp.Ordered](values []T, q float64) T {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}

// Spread is a figure over the rounds: median, smallest, largest.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// SpreadOf returns the spread of values. That of none is zero.
func SpreadOf(values []float64) Spread {
	if len(values) == 0 {
		return Spread{}
	}
	return Spread{Median: Median(values), Min: slices.Min(values), Max: slices.Max(values)}
}

// Over returns the spread of one figure of all samples.
func Over[S any](samples []S, figure func(S) float64) Spread {
	return SpreadOf(Pick(samples, figure))
}

// MedianOf returns a sample whose numbers are the medians of those of all samples, field by field,
// down into structs and pointers; a nil pointer is no sample. There must be one sample at least.
func MedianOf[S any](samples []S) (median S) {
	setMedian(reflect.ValueOf(&median).Elem(), Pick(samples, func(s S) reflect.Value { return reflect.ValueOf(s) }))
	return median
}

func setMedian(median reflect.Value, of []reflect.Value) {
	switch median.Kind() {
	case reflect.Float64:
		median.SetFloat(Median(Pick(of, reflect.Value.Float)))
	case reflect.Int64:
		median.SetInt(int64(Median(Pick(of, func(v reflect.Value) float64 { return float64(v.Int()) }))))
	case reflect.Pointer:
		if of = slices.DeleteFunc(of, reflect.Value.IsNil); len(of) > 0 {
			median.Set(reflect.New(median.Type().Elem()))
			setMedian(median.Elem(), Pick(of, reflect.Value.Elem))
		}
	case reflect.Struct:
		for i := range median.NumField() {
			setMedian(median.Field(i), Pick(of, func(v reflect.Value) reflect.Value { return v.Field(i) }))
		}
	}
}

// Pick returns one figure, or one row of a table, of each sample.
func Pick[S, V any](samples []S, figure func(S) V) []V {
	values := make([]V, len(samples))
	for i, s := range samples {
		values[i] = figure(s)
	}
	return values
}

// Ratios returns the spread of the ratios within each round: a[i] and b[i] are of
// round i. A machine that is slower for a while is slower for both.
func Ratios(a, b []float64) Spread {
	var ratios []float64
	for i := range min(len(a), len(b)) {
		ratios = append(ratios, Quotient(a[i], b[i]))
	}
	return SpreadOf(ratios)
}

// Quotient is a/b, and 0 where b is: JSON has no infinity.
func Quotient(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// Distinct returns a property of all, each value once, in order of appearance.
func Distinct[T any, K comparable](all []T, of func(T) K) (values []K) {
	for _, v := range all {
		if k := of(v); !slices.Contains(values, k) {
			values = append(values, k)
		}
	}
	return values
}

// Rows makes a row of a table of all that have the same label: the label, and the
// cells of each.
func Rows[T any](all []T, label, cells func(T) []any) (rows [][]any) {
	key := func(v T) string { return fmt.Sprint(label(v)...) }
	for _, k := range Distinct(all, key) {
		same := slices.DeleteFunc(slices.Clone(all), func(v T) bool { return key(v) != k })
		rows = append(rows, slices.Concat(label(same[0]), slices.Concat(Pick(same, cells)...)))
	}
	return rows
}

// Find returns the first of all that fits, or nil.
func Find[T any](all []T, fits func(T) bool) *T {
	if i := slices.IndexFunc(all, fits); i >= 0 {
		return &all[i]
	}
	return nil
}

// Add adds those counters to others that are above 0. It makes the map if there is
// none.
func Add(to *map[string]uint64, counters map[string]uint64) {
	if *to == nil {
		*to = map[string]uint64{}
	}
	for name, n := range counters {
		if n > 0 {
			(*to)[name] += n
		}
	}
}

// Difference returns after - before for every counter that grew. A counter that only
// after has counts from 0.
func Difference(before, after map[string]uint64) map[string]uint64 {
	grown := map[string]uint64{}
	for name, n := range after {
		if n > before[name] {
			grown[name] = n - before[name]
		}
	}
	return grown
}
