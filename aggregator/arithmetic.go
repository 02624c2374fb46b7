// SPDX-License-Identifier: Apache-2.0

package aggregator

import (
	"github.com/libra-ina/libra/internal/fixedpoint"
	"github.com/libra-ina/libra/wire"
)

// arithmetic is all in which jobs of [Exact], [LUT] and [Fixed] differ. A slot
// that is 0 holds the number zero in all of them.
type arithmetic interface {
	// number returns what the bits of a pair add to a slot, or the code with
	// which the frame is refused.
	number(bits uint32) (int64, wire.Code)
	// add returns slot + number as the slot holds it afterwards.
	add(slot, number int64) (int64, outcome)
	// bits returns the sum that a slot holds as it goes over the wire.
	bits(slot int64) uint32
}

// outcome is what became of one addition.
type outcome uint8

const (
	fits       outcome = iota
	saturated          // the sum became the largest number of its sign
	overflowed         // the sum cannot be held: the frame is refused
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
