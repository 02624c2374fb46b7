// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"slices"
	"testing"

	"github.com/libra-ina/libra/wire"
)

// TestPreparedKeepsNoScratch prepares all hot keys, and many of one lane: the memory for their
// possible places is freed.
func TestPreparedKeepsNoScratch(t *testing.T) {
	var hot, oneLane []uint64
	for i := range uint64(60 * wire.Lanes) {
		hot, oneLane = append(hot, i), append(oneLane, i%60*wire.Lanes)
	}
	for layout, keys := range map[Layout][]uint64{Dense: hot, LaneAligned: oneLane} {
		p, err := New(Config{HotSet: mustHotSet(t, 1, hot...), Layout: layout})
		if err != nil {
			t.Fatal(err)
		}
		prepared, err := p.Prepare(keys)
		if err != nil {
			t.Fatal(err)
		}
		b := prepared.placed.Load()
		for i, lists := range [][2][]uint32{{b.masks, slices.Clone(b.masks)}, {b.at, slices.Clone(b.at)}, {b.cold, slices.Clone(b.cold)}} {
			if cap(lists[0]) > cap(lists[1]) {
				t.Errorf("%v: list %d has room for %d of %d", layout, i, cap(lists[0]), len(lists[0]))
			}
		}
		if limit := cap(slices.Clone(b.slots)); cap(b.slots) > limit {
			t.Errorf("%v: there is room for %d of %d slots", layout, cap(b.slots), len(b.slots))
		}
	}
}
