// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"unsafe"

	"github.com/libra-ina/libra/internal/num/fixedpoint"
)

// infinity is the bits of the smallest float32 magnitude that is not finite.
const infinity = 0x7f800000

// Numbers is the format of gradients in hot frames, and the range that an
// aggregator accepts. The zero value is float32 with any finite value. Cold frames
// always hold float32.
type Numbers struct {
	scale, unit float64 // float32 to integer and back; 0 for floats
	limit       uint32  // bits of the smallest magnitude that is refused; 0 means infinity

	least uint32 // bits of the smallest magnitude that the aggregator does not round to 0; or 0

	// Of multiples of a unit; 0 otherwise.
	exp    int
	first  uint32 // bits of the smallest magnitude all of whose bits are worth a unit
	beyond uint32 // bits of the smallest magnitude that is too large
}

// Integers returns the format of the aggregator's "fixed" arithmetic: int32 in units
// of 2^exp. Gradients are rounded to nearest, ties away from zero; magnitudes of
// 2^(31+exp) and more are out of range.
func Integers(exp int) Numbers {
	return Numbers{scale: math.Ldexp(1, -exp), unit: math.Ldexp(1, exp), limit: magnitudeOf(31 + exp)}
}

// FloatsBelow returns the format of float32 with magnitudes below 2^exp.
func FloatsBelow(exp int) Numbers { return Numbers{limit: magnitudeOf(exp)} }

// Rounded returns the format of float32 for the aggregator's "exact" arithmetic in units of 2^exp.
// Any finite gradient is accepted; those below half a unit, which become 0, are counted:
// [Packer.Vanished].
func Rounded(exp int) Numbers { return Numbers{least: magnitudeOf(exp - 1)} }

// vanishes reports whether the aggregator rounds a gradient to 0.
func (n Numbers) vanishes(g float32) bool { return magnitude(g) < n.least && magnitude(g) != 0 }

// countVanished counts the gradients that the aggregator rounds to 0. It also reports whether it
// has found all to be finite on the way.
func (n Numbers) countVanished(grads []float32) (vanished int, finite bool) {
	if n.least == 0 {
		return 0, false
	}
	if allBetween(n.least, infinity, grads) { // nearly always
		return 0, true
	}
	for _, g := range grads {
		if n.vanishes(g) {
			vanished++
		}
	}
	return vanished, false
}

// sumBits bounds multiples of a unit: 2^sumBits of them fit the range of the aggregator's sums, so
// that the sum of one from each worker does. The aggregator refuses frames whose sums do not fit,
// and checks those with large ones slowly.
const sumBits = 7

// Multiples returns the format of float32 for the aggregator's "exact" arithmetic in units of 2^exp
// where sums must not be rounded: a hot row with a gradient that is no multiple of the unit, or
// that is 2^(56+exp) or more in size, is sent as a cold one. No finite gradient is refused.
func Multiples(exp int) Numbers {
	first, _ := fixedpoint.Format{Exp: exp}.Window()
	return Numbers{exp: exp, first: first, beyond: magnitudeOf(63 - sumBits + exp)}
}

// magnitudeOf returns the bits of 2^exp, or infinity if no float32 holds it.
func magnitudeOf(exp int) uint32 {
	return min(infinity, math.Float32bits(float32(math.Ldexp(1, exp))))
}

// Check returns the position of the first gradient that is not finite or out
// of range, or -1.
func (n Numbers) Check(grads []float32) int {
	limit := cmp.Or(n.limit, infinity)
	if allBelow(limit, grads) {
		return -1
	}
	return slices.IndexFunc(grads, func(g float32) bool { return magnitude(g) >= limit })
}

// multiples reports whether hot rows are only those of multiples of a unit.
func (n Numbers) multiples() bool { return n.first != 0 }

// fit reports whether all gradients are multiples of the unit, and not too large.
func (n Numbers) fit(grads []float32) bool {
	return allBetween(n.first, n.beyond, grads) || !slices.ContainsFunc(grads, n.excludes)
}

// excludes reports whether a gradient does not fit.
func (n Numbers) excludes(g float32) bool {
	return magnitude(g) >= n.beyond || !fixedpoint.Format{Exp: n.exp}.Holds(math.Float32bits(g))
}

// allBetween reports whether all magnitudes are 0, or at least first and below beyond. It is
// allBelow with a second subtraction, from which 0 comes out largest: of first-1 from the magnitude
// less 1, modulo 2^31.
func allBetween(first, beyond uint32, grads []float32) bool {
	const signs, ones = 1<<63 | 1<<31, 1<<32 | 1
	most, least, left := uint64(beyond-1)*ones|signs, uint64(first-1)*ones, uint64(signs)
	n := len(grads) / 2
	var pairs []uint64
	if n > 0 {
		pairs = unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(grads))), n)
	}
	for ; len(pairs) >= 2; pairs = pairs[2:] {
		one, other := pairs[0]&^signs, pairs[1]&^signs
		left &= (most - one) & ((one | signs - ones) | signs - least)
		left &= (most - other) & ((other | signs - ones) | signs - least)
	}
	for _, pair := range pairs {
		pair &^= signs
		left &= (most - pair) & ((pair | signs - ones) | signs - least)
	}
	for _, g := range grads[2*n:] {
		size := uint64(magnitude(g))
		left &= (most - size) & ((size | signs - ones) | signs - least)
	}
	return left == signs
}

// allBelow reports whether all magnitudes are below a limit, which is at most infinity. It
// subtracts them from limit-1 with the sign bit set, which stays set unless a magnitude is larger;
// two at a time, because every gradient passes here.
func allBelow(limit uint32, grads []float32) bool {
	const signs = 1<<63 | 1<<31
	most, left := uint64(limit-1)*(1<<32+1)|signs, uint64(signs)
	n := len(grads) / 2
	var pairs []uint64
	if n > 0 { // a pointer to a pair must not point to a single gradient
		pairs = unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(grads))), n)
	}
	for ; len(pairs) >= 4; pairs = pairs[4:] {
		left &= (most - pairs[0]&^signs) & (most - pairs[1]&^signs) & (most - pairs[2]&^signs) & (most - pairs[3]&^signs)
	}
	for _, pair := range pairs {
		left &= most - pair&^signs
	}
	for _, g := range grads[2*n:] {
		left &= most - uint64(magnitude(g))
	}
	return left == signs
}

// magnitude returns the bits of |g|, which sort like the magnitudes.
func magnitude(g float32) uint32 { return math.Float32bits(g) & math.MaxInt32 }

func (n Numbers) integers() bool { return n.scale != 0 }

// integer converts a gradient in range. The product is exact, as is the sum unless
// its integer part is obvious.
func (n Numbers) integer(g float32) uint32 {
	x := float64(float64(g) * n.scale)
	return uint32(int32(x + math.Copysign(0.5, x)))
}

// Float32 converts the bits of a sum in an answer.
func (n Numbers) Float32(bits uint32) float32 {
	if n.integers() {
		return float32(float64(int32(bits)) * n.unit)
	}
	return math.Float32frombits(bits)
}

// RangeError refuses a batch with a hot gradient out of the job's range.
// Nothing of the batch was sent.
type RangeError struct {
	Index int     // position in the batch of the first gradient out of range
	Key   uint64  // of its row
	Value float32 // finite
}

func (e *RangeError) Error() string {
	return fmt.Sprintf("packer: gradient %d (key %d) is %v, out of the job's range; nothing of the batch was sent: scale the gradients down, or give the job a larger exponent", e.Index, e.Key, e.Value)
}

// checkNumbers refuses the first gradient that is not finite, or else the first hot one that is out
// of range. Most batches have neither, and are read once.
func (p *Packer) checkNumbers(where *slotList, keys []uint64, grads []float32) error {
	if p.numbers.least != 0 {
		p.vanished, p.finite = p.numbers.countVanished(grads)
	}
	if p.finite || p.numbers.Check(grads) < 0 {
		return nil
	}
	if err := p.checkFinite(keys, grads); err != nil {
		return err
	}
	first := uint32(math.MaxUint32)
	where.eachHot(func(_ uint32, _ int, at uint32, _ uint16) {
		if magnitude(grads[at]) >= p.numbers.limit {
			first = min(first, at)
		}
	})
	if first == math.MaxUint32 { // the gradient out of range is a cold one
		return nil
	}
	return &RangeError{Index: int(first), Key: keys[int(first)/p.dim], Value: grads[first]}
}

// checkFinite refuses the first NaN or infinity.
func (p *Packer) checkFinite(keys []uint64, grads []float32) error {
	at := (Numbers{}).Check(grads)
	if at < 0 {
		return nil
	}
	return &NotFiniteError{Index: at, Key: keys[at/p.dim], Value: grads[at]}
}
