// SPDX-License-Identifier: Apache-2.0

package aggregator

import (
	"github.com/libra-ina/libra/internal/num/fixedpoint"
	"github.com/libra-ina/libra/wire"
)

// arithmetic has the operations that differ between jobs of [Exact], [LUT] and [Fixed]. In all of
// them a slot of 0 holds the number zero.
type arithmetic interface {
	// number converts the bits of a pair to the number that it adds to a slot, or returns the code
	// with which the frame is refused.
	number(bits uint32) (int64, wire.Code)
	// addNumber returns the slot after the addition of the number.
	addNumber(slot, number int64) (int64, outcome)
	// bits returns the encoding of a slot's sum on the wire.
	bits(slot int64) uint32
}

// outcome is the outcome of one addition.
type outcome uint8

const (
	fits       outcome = iota
	saturated          // the sum became the largest number of its sign
	overflowed         // the sum is out of range: the frame is refused
)

func newArithmetic(cfg JobConfig) arithmetic {
	switch cfg.Arithmetic {
	case LUT:
		return lutArithmetic{defaultTables()}
	case Fixed:
		return fixedArithmetic{}
	}
	return exactArithmetic{fixedpoint.Format{Exp: cfg.Exp}}
}
