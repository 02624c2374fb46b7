// SPDX-License-Identifier: Apache-2.0

package aggregator

import (
	"sync"

	"github.com/libra-ina/libra/lut"
	"github.com/libra-ina/libra/wire"
)

// lutArithmetic is [LUT]: a slot holds the bits of a finite float32. Sums depend
// on the order in which frames arrive.
type lutArithmetic struct{ tables *lut.Adder }

// defaultTables builds the tables that all data planes use, once: that takes milliseconds, and they
// never change.
var defaultTables = sync.OnceValue(func() *lut.Adder {
	t, err := lut.New(lut.Config{})
	if err != nil {
		panic(err) // the zero Config is valid
	}
	return t
})

// Parts of a float32.
const (
	floatSign     = 1 << 31
	floatExponent = 0xff << 23 // all ones: infinity or NaN
	floatLargest  = 0x7f7fffff // the largest finite magnitude
)

func (lutArithmetic) number(bits uint32) (int64, wire.Code) {
	if bits&floatExponent == floatExponent {
		return 0, wire.CodeNotFinite
	}
	return int64(bits), 0
}

func (a lutArithmetic) addNumber(slot, number int64) (int64, outcome) {
	sum := a.tables.Add(uint32(slot), uint32(number))
	if sum&floatExponent == floatExponent {
		return int64(sum&floatSign | floatLargest), saturated
	}
	return int64(sum), fits
}

func (lutArithmetic) bits(slot int64) uint32 { return uint32(slot) }
