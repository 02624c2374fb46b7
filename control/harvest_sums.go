// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"github.com/libra-ina/libra/aggregator"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// The sums of a harvest message are encoded in groups, see HarvestChunk: 8 bytes per sum and one
// bit per slot.
const (
	groupSlots = 64
	wordLen    = 8
	groupLen   = wordLen * (1 + groupSlots) // with a sum in each slot
)

// groups returns the groups of up to chunkSums slots, or nil if all slots are zero.
//
// Branches on zero slots would be mispredicted, so every slot is written, and the next one
// overwrites a zero.
func groups(slots []int64) []byte {
	var b [chunkSums / groupSlots * groupLen]byte
	at, any := 0, int64(0)
	for group := range slices.Chunk(slots, groupSlots) {
		words := b[at : at+groupLen]
		var mask uint64
		n := wordLen
		for i, sum := range group {
			binary.LittleEndian.PutUint64(words[n:], uint64(sum))
			set := (uint64(sum) | -uint64(sum)) >> 63
			mask |= set << (i % groupSlots)
			n += wordLen * int(set)
			any |= sum
		}
		binary.LittleEndian.PutUint64(words, mask)
		at += n
	}
	if any == 0 {
		return nil
	}
	return bytes.Clone(b[:at])
}

// take adds the groups and the marks of a message to the harvest.
func (h *Harvest) take(chunk *pb.HarvestChunk) error {
	if len(chunk.ProtoReflect().GetUnknown()) > 0 {
		return errors.New("the aggregator sends sums in a format that this version of libra does not read: run the same version on all hosts")
	}
	groups, n := chunk.Sums, len(h.Sums)
	// The number of words is an upper bound on the number of sums.
	h.Ranks = slices.Grow(h.Ranks, len(groups)/wordLen)[:n+len(groups)/wordLen]
	h.Sums = slices.Grow(h.Sums, len(groups)/wordLen)[:n+len(groups)/wordLen]
	for rank := uint64(chunk.First); len(groups) > 0; rank += groupSlots {
		if len(groups) < wordLen {
			return fmt.Errorf("%d bytes are left over at rank %d", len(groups), rank)
		}
		mask := binary.LittleEndian.Uint64(groups)
		sums := groups[wordLen:]
		count := bits.OnesCount64(mask)
		if len(sums) < wordLen*count {
			return fmt.Errorf("%d sums from rank %d on have %d bytes", count, rank, len(sums))
		}
		if last := rank + uint64(bits.Len64(mask)); mask != 0 && last > aggregator.MaxSlots {
			return fmt.Errorf("a sum of rank %d, but there are at most %d slots", last-1, aggregator.MaxSlots)
		}
		ranks, out := h.Ranks[n:n+count], h.Sums[n:n+count]
		for i := range ranks {
			ranks[i] = uint32(rank) + uint32(bits.TrailingZeros64(mask))
			mask &= mask - 1
			out[i] = int64(binary.LittleEndian.Uint64(sums[wordLen*i:]))
		}
		n += count
		groups = sums[wordLen*count:]
	}
	h.Ranks, h.Sums = h.Ranks[:n], h.Sums[:n]
	return h.takeMarks(chunk)
}
