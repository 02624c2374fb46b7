// SPDX-License-Identifier: Apache-2.0

package aggregator

import "encoding/binary"

// BlockSlots is the number of slots that share an entry of [Bank.Touched].
const BlockSlots = 64

// PageBlocks is the number of blocks of a page.
const PageBlocks = PageSlots / BlockSlots

// Blocks returns the number of entries of [Bank.Touched]: one for each block of the job's slots, or
// 0 for a job of one page, of which reading all slots is cheap.
func (c JobConfig) Blocks() int {
	if c.Pages() == 1 {
		return 0
	}
	return (c.Slots + BlockSlots - 1) / BlockSlots
}

// All calls do for each block that may hold sums, in order, with the rank of its first slot, until
// do returns false. Without [Bank.Touched] these are all blocks.
func (b *Bank) All(do func(first int, slots []int64) bool) {
	if b.Touched == nil {
		for first := 0; first < len(b.Slots); first += BlockSlots {
			if !do(first, b.block(first)) {
				return
			}
		}
		return
	}
	const word = 8
	for i := 0; i < len(b.Touched); {
		if i%word == 0 && i+word <= len(b.Touched) && binary.NativeEndian.Uint64(b.Touched[i:]) == 0 {
			i += word
			continue
		}
		if b.Touched[i] != 0 && !do(i*BlockSlots, b.block(i*BlockSlots)) {
			return
		}
		i++
	}
}

func (b *Bank) block(first int) []int64 {
	return b.Slots[first:min(first+BlockSlots, len(b.Slots))]
}

// Wipe zeroes the slots of all blocks that frames have touched, and forgets that they have. Data
// planes call it in Clear: the slots of a bank belong to its plane.
func (b *Bank) Wipe() {
	if b.Touched == nil {
		clear(b.Slots)
		return
	}
	b.All(func(_ int, slots []int64) bool {
		clear(slots)
		return true
	})
	clear(b.Touched)
}
