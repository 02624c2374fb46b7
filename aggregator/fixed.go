// SPDX-License-Identifier: Apache-2.0

package aggregator

import (
	"github.com/libra-ina/libra/internal/num/scaled"
	"github.com/libra-ina/libra/wire"
)

// fixedArithmetic is [Fixed]: workers have scaled their gradients to int32, so every pair is valid,
// and sums saturate.
type fixedArithmetic struct{}

func (fixedArithmetic) number(bits uint32) (int64, wire.Code) { return int64(int32(bits)), 0 }

func (fixedArithmetic) addNumber(slot, number int64) (int64, outcome) {
	sum := int64(scaled.Add(int32(slot), int32(number)))
	if sum != slot+number {
		return sum, saturated
	}
	return sum, fits
}

func (fixedArithmetic) bits(slot int64) uint32 { return uint32(int32(slot)) }
