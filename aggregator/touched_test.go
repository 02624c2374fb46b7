// SPDX-License-Identifier: Apache-2.0

package aggregator_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
)

func TestTouched(t *testing.T) {
	m, err := aggregator.NewModel(aggregator.Config{Address: conformance.Aggregator.IP})
	if err != nil {
		t.Fatal(err)
	}
	conformance.TestTouched(t, conformance.ModelDevice(m))
}

// All visits the touched blocks in order, Wipe clears them and nothing else.
func TestBlocksOfABank(t *testing.T) {
	const size = aggregator.BlockSlots
	rng := rand.New(rand.NewPCG(3, 4))
	for _, part := range []int{0, 1, 3, 40} {
		for _, slots := range []int{1, size, size + 1, 8 * size, 9*size - 1, 200*size + 5} {
			b := &aggregator.Bank{Slots: make([]int64, slots), Touched: make([]uint8, (slots+size-1)/size)}
			if part == 0 { // not known
				b.Touched = nil
			}
			var want, got []int
			for i := range b.Slots {
				b.Slots[i] = int64(i + 1)
			}
			for i := range (slots + size - 1) / size {
				if part == 0 || rng.IntN(part) == 0 {
					want = append(want, i)
					if b.Touched != nil {
						b.Touched[i] = 1
					}
				}
			}
			b.All(func(first int, sums []int64) bool {
				got = append(got, first/size)
				if sums[0] != int64(first+1) || len(sums) != min(size, slots-first) {
					t.Errorf("the block of rank %d has %d slots, of which the first holds %d", first, len(sums), sums[0])
				}
				return true
			})
			if !slices.Equal(got, want) {
				t.Errorf("one block in %d of %d slots: %v, want %v", part, slots, got, want)
			}
			visited := 0
			b.All(func(int, []int64) bool { visited++; return visited < 2 })
			if visited != min(2, len(want)) {
				t.Errorf("%d blocks are visited although the second call ends it", visited)
			}
			b.Wipe()
			for i, sum := range b.Slots {
				if (sum == 0) != slices.Contains(want, i/size) {
					t.Fatalf("rank %d holds %d after a wipe of blocks %v", i, sum, want)
				}
			}
			if slices.Contains(b.Touched, 1) {
				t.Error("a wiped bank has touched blocks")
			}
		}
	}
}
