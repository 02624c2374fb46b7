// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/control"
	"github.com/libra-ina/libra/ps"
)

// TestHarvestsInUnits converts the sums of a harvest in place, and names the rank of
// one that is too large.
func TestHarvestsInUnits(t *testing.T) {
	for _, c := range []struct {
		job  aggregator.JobConfig
		want []int64
	}{
		{aggregator.JobConfig{Exp: -46}, []int64{4, -6}},
		{aggregator.JobConfig{Exp: -44}, []int64{16, -24}},
		{aggregator.JobConfig{Arithmetic: aggregator.Fixed, Exp: -44}, []int64{16, -24}},
	} {
		h := &control.Harvest{Ranks: []uint32{9, 11}, Sums: []int64{4, -6}}
		if err := toUnits(h, c.job, -46); err != nil || !slices.Equal(h.Sums, c.want) {
			t.Errorf("%v of 2^%d: %v, %v, want %v", c.job.Arithmetic, c.job.Exp, h.Sums, err, c.want)
		}
	}
	for _, exp := range []int{0, -46} { // no exponent of floats, which have their own
		h := &control.Harvest{Ranks: []uint32{9}, Sums: []int64{int64(math.Float32bits(1.5))}}
		if err := toUnits(h, aggregator.JobConfig{Arithmetic: aggregator.LUT, Exp: exp}, -46); err != nil || h.Sums[0] != 3<<45 {
			t.Errorf("1.5 is %d units of 2^-46, %v", h.Sums[0], err)
		}
	}
	h := &control.Harvest{Ranks: []uint32{9, 11}, Sums: []int64{0, int64(math.Float32bits(math.MaxFloat32))}}
	err := toUnits(h, aggregator.JobConfig{Arithmetic: aggregator.LUT}, -46)
	if !errors.Is(err, ps.ErrOverflow) || !strings.HasPrefix(err.Error(), "sum 3.4028235e+38 of rank 11: ") {
		t.Errorf("a sum beyond the store's range: %v", err)
	}
}

// A job's memory on a P4 switch is that of whole rows of 22 sums, twice.
func TestP4JobMemory(t *testing.T) {
	for slots, want := range map[int]uint64{1: 352, 22: 352, 23: 704, 44: 704, 1000: 46 * 352} {
		if got := p4JobMemory(slots); got != want {
			t.Errorf("%d slots take %d bytes, want %d", slots, got, want)
		}
	}
}

// Slots that the host's memory cannot hold are refused before a job has them.
func TestSlotsBeyondTheHostsMemory(t *testing.T) {
	const slots = 1 << 26
	for _, c := range []struct {
		memory uint64
		fits   bool
	}{{0, true}, {1<<30 - 1, false}, {1 << 30, true}} {
		err := (&plane{}).checkMemory("switch", slots, c.memory)
		want := "switch.slots: 67108864 slots take 1024 MiB, and this host has 1023 MiB: give the jobs fewer slots"
		if (err == nil) != c.fits || err != nil && err.Error() != want {
			t.Errorf("%d bytes: error %v", c.memory, err)
		}
	}
	pages := plane{jobMemory: func(n int) uint64 { return 1 << 40 }}
	if err := pages.checkMemory("switch", 1, 1<<39); err == nil {
		t.Error("the plane's own measure does not count")
	}
}

// The slots that are configured count, also those of a plane with room for more.
func TestSlotLimit(t *testing.T) {
	for _, c := range []struct{ configured, room, want int }{{0, 0, 0}, {0, 4096, 4096}, {100, 0, 100}, {100, 4096, 100}} {
		if got := (&plane{slots: c.room}).slotLimit(c.configured); got != c.want {
			t.Errorf("%d of %d slots are configured: %d, want %d", c.configured, c.room, got, c.want)
		}
	}
}
