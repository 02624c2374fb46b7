// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"github.com/libra-ina/libra/wire"
)

// VectorStripes returns the number of lane-aligned stripes for consecutive ranks, the
// first in lane 0.
func VectorStripes(ranks int) int { return (ranks + wire.Lanes - 1) / wire.Lanes }

// PutVector writes the gradients of consecutive ranks into lane-aligned stripes:
// values[i] belongs to rank slot × wire.Lanes + i. Every lane is used, except at the
// end of the last stripe. It writes the whole body of the payload, which has
// VectorStripes(len(values)) stripes.
func PutVector(payload []byte, slot int, values []float32, n Numbers) {
	for i := 0; len(values) > 0; i++ {
		run := values[:min(len(values), wire.Lanes)]
		values = values[len(run):]
		s := wire.StripeAt(payload, i)
		if len(run) < wire.Lanes {
			s.Clear()
		}
		s.SetMask(1<<len(run) - 1)
		if n.integers() {
			for j, v := range run {
				s.SetBits(j, n.integer(v))
			}
		} else {
			for j, v := range run {
				s.SetValue(j, v)
			}
		}
		for j := range run {
			s.SetSlot(j, uint16(slot+i))
		}
	}
}

// TakeVector reads sums from a payload of [PutVector]. It returns false and leaves
// sums unchanged if the stripes are not exactly those of len(sums) ranks from slot
// on.
func TakeVector(payload []byte, slot int, sums []float32, n Numbers) bool {
	if stripes, err := wire.StripeCount(payload); err != nil || stripes != VectorStripes(len(sums)) {
		return false
	}
	for i, rest := 0, len(sums); rest > 0; i++ {
		used := min(rest, wire.Lanes)
		rest -= used
		s := wire.StripeAt(payload, i)
		if s.Page() != 0 || s.Mask() != 1<<used-1 {
			return false
		}
		for j := range used {
			if s.Slot(j) != uint16(slot+i) {
				return false
			}
		}
	}
	for i := 0; len(sums) > 0; i++ {
		run := sums[:min(len(sums), wire.Lanes)]
		sums = sums[len(run):]
		s := wire.StripeAt(payload, i)
		if n.integers() {
			for j := range run {
				run[j] = n.Float32(s.Bits(j))
			}
		} else {
			for j := range run {
				run[j] = s.Value(j)
			}
		}
	}
	return true
}
