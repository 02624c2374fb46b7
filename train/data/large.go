// SPDX-License-Identifier: Apache-2.0

package data

import (
	"cmp"
	"math"
	"slices"
)

// Largest is the largest absolute value of a feature.
type Largest struct {
	Key   uint64
	Value float32
}

// LargestValues returns at most n features with absolute values above a bound, the largest first.
func (d *Dataset) LargestValues(bound float32, n int) []Largest {
	if d.values == nil {
		return nil
	}
	largest := make([]float32, len(d.keys))
	for i, id := range d.features {
		largest[id] = max(largest[id], float32(math.Abs(float64(d.values[i]))))
	}
	var found []Largest
	for id, value := range largest {
		if value > bound {
			found = append(found, Largest{d.keys[id], value})
		}
	}
	slices.SortStableFunc(found, func(a, b Largest) int { return cmp.Compare(b.Value, a.Value) })
	return found[:min(n, len(found))]
}

// LargestLabel returns the largest absolute value of the labels.
func (d *Dataset) LargestLabel() float32 {
	largest := float32(0)
	for _, label := range d.labels {
		largest = max(largest, float32(math.Abs(float64(label))))
	}
	return largest
}
