package node

import (
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/control"
	"github.com/libra-ina/libra/ps"
)

// What slots hold becomes units of the store, whatever the arithmetic.
func TestConverter(t *testing.T) {
	bits := func(f float32) int64 { return int64(math.Float32bits(f)) }
	for name, c := range map[string]struct {
		job       aggregator.JobConfig
		exp       int // of the store
		sum, want int64
	}{
		"exact":          {aggregator.JobConfig{Exp: -40}, -40, -7, -7},
		"fixed":          {aggregator.JobConfig{Arithmetic: aggregator.Fixed, Exp: -20}, -46, math.MinInt32, math.MinInt32 << 26},
		"fixed, one":     {aggregator.JobConfig{Arithmetic: aggregator.Fixed, Exp: 0}, -46, 5, 5 << 46},
		"coarse":         {aggregator.JobConfig{Arithmetic: aggregator.Fixed, Exp: 7}, -46, 5, 5 << 53},
		"exact, one":     {aggregator.JobConfig{Exp: 0}, 0, -7, -7},
		"very fine":      {aggregator.JobConfig{Arithmetic: aggregator.Fixed, Exp: -60}, -60, 5, 5},
		"lut":            {aggregator.JobConfig{Arithmetic: aggregator.LUT}, -46, bits(-1.5), -3 << 45},
		"lut, too small": {aggregator.JobConfig{Arithmetic: aggregator.LUT}, -46, bits(0x1p-60), 0},
		"lut, minus 0":   {aggregator.JobConfig{Arithmetic: aggregator.LUT}, -46, 1 << 31, 0},
	} {
		if got := storeExp(c.job); got != c.exp {
			t.Errorf("%s: the store has exponent %d, want %d", name, got, c.exp)
		}
		h := &control.Harvest{Ranks: []uint32{9}, Sums: []int64{c.sum}}
		if err := converter(c.job, c.exp)(h); err != nil || !slices.Equal(h.Sums, []int64{c.want}) {
			t.Errorf("%s: %v, %v, want %d", name, h.Sums, err, c.want)
		}
	}
	for name, c := range map[string]struct {
		job aggregator.JobConfig
		sum int64
	}{
		"lut":   {aggregator.JobConfig{Arithmetic: aggregator.LUT}, bits(math.MaxFloat32)},
		"fixed": {aggregator.JobConfig{Arithmetic: aggregator.Fixed, Exp: -10}, 1 << 30},
	} {
		h := &control.Harvest{Ranks: []uint32{9}, Sums: []int64{c.sum}}
		if err := converter(c.job, storeExp(c.job))(h); !errors.Is(err, ps.ErrOverflow) {
			t.Errorf("%s: %v for a sum beyond the store's range", name, err)
		}
	}
}
