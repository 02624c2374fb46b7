// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"fmt"
	"math"
)

// infinity is the least float32, by its bits without the sign, that is not
// finite.
const infinity = 0x7f800000

// Numbers is how gradients stand in hot frames, and which of them an
// aggregator takes. The zero value is float32, any finite one. Cold frames hold
// float32 always.
type Numbers struct {
	scale, unit float64 // float32 to integer and back; 0: no integers
	limit       uint32  // bits of the least magnitude that is refused; 0: infinity
}

// Integers are int32 that count units of 2^exp: the aggregator's "fixed"
// arithmetic. Gradients are rounded to nearest, ties away from zero;
// magnitudes of 2^(31+exp) and more are out of range.
func Integers(exp int) Numbers {
	return Numbers{scale: math.Ldexp(1, -exp), unit: math.Ldexp(1, exp), limit: magnitudeOf(31 + exp)}
}

// FloatsBelow are float32 whose magnitude is below 2^exp.
func FloatsBelow(exp int) Numbers { return Numbers{limit: magnitudeOf(exp)} }

// magnitudeOf returns the bits of 2^exp, of infinity if that is no float32.
func magnitudeOf(exp int) uint32 {
	return min(infinity, math.Float32bits(float32(math.Ldexp(1, exp))))
}

// Check returns the position of the first gradient that is not finite or out
// of range, or -1.
func (n Numbers) Check(grads []float32) int {
	limit := n.limit
	if limit == 0 {
		limit = infinity
	}
	var largest uint32
	for _, g := range grads {
		largest = max(largest, magnitude(g))
	}
	if largest < limit {
		return -1
	}
	for i, g := range grads {
		if magnitude(g) >= limit {
			return i
		}
	}
	return -1
}

// magnitude returns the bits of |g|, which are in the order of the magnitudes.
func magnitude(g float32) uint32 { return math.Float32bits(g) & math.MaxInt32 }

// integers reports whether frames hold integers.
func (n Numbers) integers() bool { return n.scale != 0 }

// integer converts a gradient that is in range. The product is exact, and so is
// the sum wherever its integer part is not obvious.
func (n Numbers) integer(g float32) uint32 {
	x := float64(float64(g) * n.scale)
	return uint32(int32(x + math.Copysign(0.5, x)))
}

// Float32 converts what stands in a lane of an answer: the bits of a sum.
func (n Numbers) Float32(bits uint32) float32 {
	if n.integers() {
		return float32(float64(int32(bits)) * n.unit)
	}
	return math.Float32frombits(bits)
}

// RangeError refuses a batch with a hot gradient beyond the job's range.
// Nothing of the batch was sent.
type RangeError struct {
	Index int     // position of the first offending gradient in the batch
	Key   uint64  // row that it belongs to
	Value float32 // finite
}

func (e *RangeError) Error() string {
	return fmt.Sprintf("packer: gradient %d (key %d) is %v, out of the job's range; nothing of the batch was sent: scale the gradients down, or give the job a larger exponent", e.Index, e.Key, e.Value)
}

// outOfRange returns the position of the first hot gradient that is out of range,
// or -1. The gradients are finite.
func (p *Packer) outOfRange(where *places, grads []float32) int {
	if p.numbers.limit == 0 || p.numbers.Check(grads) < 0 {
		return -1
	}
	first := -1
	where.hot(func(_ int, at uint32, _ uint16) {
		if magnitude(grads[at]) >= p.numbers.limit && (first < 0 || int(at) < first) {
			first = int(at)
		}
	})
	return first
}
