// SPDX-License-Identifier: Apache-2.0

package control

import (
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

// sumsSender sends the sums of a bank in messages of up to chunkLen.
type sumsSender struct {
	stream harvestStream
	gaps   bool // the owner takes messages with gaps
	chunk  *pb.HarvestChunk
	words  []byte // memory for the chunk's sums: a message is encoded when Send returns
	next   int    // rank of the first slot after the last group of the chunk
	groups int    // in the chunk, since the last gap
	spent  int    // bytes of the chunk's gaps, at most
}

const (
	// gapLen is the length of the two numbers of a gap in a message, at most.
	gapLen = 2 + 3

	// fewGroups is up to how many empty groups an owner that takes no gaps is sent, instead of
	// another message.
	fewGroups = 16
)

// addBlock adds the sums of a block of up to groupSlots slots, if there are any.
func (s *sumsSender) addBlock(first int, slots []int64) error {
	var mask uint64
	for i, sum := range slots {
		mask |= (uint64(sum) | -uint64(sum)) >> 63 << (uint(i) % groupSlots)
	}
	if mask == 0 {
		return nil
	}
	empty := (first - s.next) / groupSlots
	need := wordLen * (1 + bits.OnesCount64(mask))
	if !s.gaps {
		need += wordLen * empty
	}
	if s.chunk.Sums != nil && (s.spent+len(s.chunk.Sums)+need+gapLen > chunkLen || !s.gaps && empty > fewGroups) {
		if err := s.flushChunk(); err != nil {
			return err
		}
	}
	switch {
	case s.chunk.Sums == nil:
		s.chunk.First = uint32(first)
		s.chunk.Sums = s.words[:0]
	case empty > 0 && s.gaps:
		s.chunk.Gaps = append(s.chunk.Gaps, uint32(s.groups), uint32(empty))
		s.groups, s.spent = 0, s.spent+gapLen
	case empty > 0:
		s.chunk.Sums = append(s.chunk.Sums, make([]byte, wordLen*empty)...)
	}
	s.chunk.Sums = appendGroup(s.chunk.Sums, mask, slots)
	s.next = first + groupSlots
	s.groups++
	return nil
}

// flushChunk sends the chunk and begins another one.
func (s *sumsSender) flushChunk() error {
	if err := s.stream.Send(s.chunk); err != nil {
		return err
	}
	s.chunk = &pb.HarvestChunk{Number: s.chunk.Number}
	s.groups, s.spent = 0, 0
	return nil
}

// appendGroup appends a group with the sums of its slots; mask has those that are not zero. It has
// no branches on zero slots, which would be mispredicted.
func appendGroup(dst []byte, mask uint64, sums []int64) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, mask)
	n := len(dst)
	dst = slices.Grow(dst, wordLen*len(sums))[:n+wordLen*bits.OnesCount64(mask)]
	words := dst[n:]
	if len(words) == wordLen*len(sums) {
		for _, sum := range sums {
			binary.LittleEndian.PutUint64(words, uint64(sum))
			words = words[wordLen:]
		}
		return dst
	}
	for ; mask != 0; mask &= mask - 1 {
		binary.LittleEndian.PutUint64(words, uint64(sums[bits.TrailingZeros64(mask)]))
		words = words[wordLen:]
	}
	return dst
}

// take adds the groups and the marks of a message to the harvest.
func (h *Harvest) take(chunk *pb.HarvestChunk) error {
	if len(chunk.ProtoReflect().GetUnknown()) > 0 {
		return errors.New("the aggregator sends sums in a format that this version of libra does not read: run the same version on all hosts")
	}
	groups, n := chunk.Sums, len(h.Sums)
	if len(chunk.Gaps)%2 != 0 {
		return fmt.Errorf("a gap without a length at rank %d", chunk.First)
	}
	// The number of words is an upper bound on the number of sums.
	h.Ranks = slices.Grow(h.Ranks, len(groups)/wordLen)[:n+len(groups)/wordLen]
	h.Sums = slices.Grow(h.Sums, len(groups)/wordLen)[:n+len(groups)/wordLen]
	gaps, before := chunk.Gaps, uint32(0) // groups before the next gap
	if len(gaps) > 0 {
		before = gaps[0]
	}
	for rank := uint64(chunk.First); len(groups) > 0; rank += groupSlots {
		for ; len(gaps) > 0 && before == 0; gaps = gaps[2:] {
			rank += uint64(gaps[1]) * groupSlots
			if len(gaps) > 2 {
				before = gaps[2]
			}
		}
		before--
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
		for i := range out {
			out[i] = int64(binary.LittleEndian.Uint64(sums[wordLen*i:]))
		}
		if count == groupSlots {
			for i := range ranks {
				ranks[i] = uint32(rank) + uint32(i)
			}
		} else {
			for i := range ranks {
				ranks[i] = uint32(rank) + uint32(bits.TrailingZeros64(mask))
				mask &= mask - 1
			}
		}
		n += count
		groups = sums[wordLen*count:]
	}
	h.Ranks, h.Sums = h.Ranks[:n], h.Sums[:n]
	return h.takeMarks(chunk)
}
