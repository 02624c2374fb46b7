// SPDX-License-Identifier: Apache-2.0

package aggregator

import (
	"math"
	"testing"
)

// TestUnits: what slots hold becomes units of a parameter server's sums, whatever
// the arithmetic.
func TestUnits(t *testing.T) {
	bits := func(f float32) int64 { return int64(math.Float32bits(f)) }
	for name, c := range map[string]struct {
		job       JobConfig
		exp       int // of the store
		sum, want int64
	}{
		"exact":          {JobConfig{Exp: -40}, -40, -7, -7},
		"fixed":          {JobConfig{Arithmetic: Fixed, Exp: -20}, -46, math.MinInt32, math.MinInt32 << 26},
		"fixed, one":     {JobConfig{Arithmetic: Fixed, Exp: 0}, -46, 5, 5 << 46},
		"coarse":         {JobConfig{Arithmetic: Fixed, Exp: 7}, -46, 5, 5 << 53},
		"exact, one":     {JobConfig{Exp: 0}, 0, -7, -7},
		"very fine":      {JobConfig{Arithmetic: Fixed, Exp: -60}, -60, 5, 5},
		"lut":            {JobConfig{Arithmetic: LUT}, -46, bits(-1.5), -3 << 45},
		"lut, too small": {JobConfig{Arithmetic: LUT}, -46, bits(0x1p-60), 0},
		"lut, minus 0":   {JobConfig{Arithmetic: LUT}, -46, 1 << 31, 0},
	} {
		if got := c.job.StoreExp(); got != c.exp {
			t.Errorf("%s: the store has exponent %d, want %d", name, got, c.exp)
		}
		if got, ok := c.job.Units(c.sum, c.exp); !ok || got != c.want {
			t.Errorf("%s: %d, %v, want %d", name, got, ok, c.want)
		}
	}
	fine := JobConfig{Exp: -40}
	if got, ok := fine.Units(-7, -46); !ok || got != -7<<6 {
		t.Errorf("exact, in a finer store: %d, %v", got, ok)
	}
}

func TestUnitsOutOfRange(t *testing.T) {
	bits := func(f float64) int64 { return int64(math.Float32bits(float32(f))) }
	lut, fixed := JobConfig{Arithmetic: LUT}, JobConfig{Arithmetic: Fixed, Exp: -10}
	for name, c := range map[string]struct {
		job JobConfig
		sum int64
		exp int
		ok  bool
	}{
		"lut":             {lut, bits(math.MaxFloat32), -46, false},
		"lut, infinite":   {lut, bits(math.Inf(-1)), -46, false},
		"lut, NaN":        {lut, bits(math.NaN()), -46, false},
		"lut, largest":    {lut, bits(0x1.fffffep16), -46, true},
		"fixed":           {fixed, 1 << 30, -46, false},
		"fixed, largest":  {fixed, 1<<27 - 1, -46, true},
		"fixed, least":    {fixed, -1 << 27, -46, true},
		"fixed, too many": {fixed, 1 << 27, -46, false},
		"far too fine":    {fixed, 1, -10 - 64, false},
		"coarser store":   {fixed, 2, -9, false},
		"coarser, zero":   {fixed, 0, -9, true},
	} {
		if got, ok := c.job.Units(c.sum, c.exp); ok != c.ok {
			t.Errorf("%s: %d, %v", name, got, ok)
		}
	}
}
