// SPDX-License-Identifier: Apache-2.0

package aggregator

import (
	"errors"
	"math"

	"github.com/libra-ina/libra/internal/num/fixedpoint"
	"github.com/libra-ina/libra/wire"
)

// exactArithmetic is [Exact]: gradients are converted to int64 fixed point, and nothing is rounded
// afterwards. Values out of range are refused.
type exactArithmetic struct{ format fixedpoint.Format }

func (a exactArithmetic) number(bits uint32) (int64, wire.Code) {
	n, err := a.format.FromBits(bits)
	switch {
	case errors.Is(err, fixedpoint.ErrNotFinite):
		return 0, wire.CodeNotFinite
	case err != nil:
		return 0, wire.CodeOverflow
	}
	return n, 0
}

func (exactArithmetic) addNumber(slot, number int64) (int64, outcome) {
	sum, ok := fixedpoint.Add(slot, number)
	if !ok {
		return slot, overflowed
	}
	return sum, fits
}

func (a exactArithmetic) bits(slot int64) uint32 {
	return math.Float32bits(a.format.ToFloat32(slot))
}
