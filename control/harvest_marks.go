// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/libra-ina/libra/aggregator"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/wire"
)

const (
	// chunkMarks is the number of marks in a message, at most: it stays below chunkLen.
	chunkMarks = 256

	appliedLen = wire.DefaultWindow / 8
	markLen    = appliedLen + 24 // of a mark in a message, at most
)

func marksMessage(marks []aggregator.Mark) []*pb.HarvestMark {
	out := make([]*pb.HarvestMark, len(marks))
	for i, m := range marks {
		applied := make([]byte, 0, appliedLen)
		for _, word := range m.Applied {
			applied = binary.LittleEndian.AppendUint64(applied, word)
		}
		out[i] = &pb.HarvestMark{Sender: uint32(m.Sender), Epoch: uint32(m.Epoch), Newest: m.Newest, Applied: applied}
	}
	return out
}

// takeMarks adds the marks of a message to the harvest.
func (h *Harvest) takeMarks(chunk *pb.HarvestChunk) error {
	for _, in := range chunk.Marks {
		last := len(h.Marks) - 1
		switch {
		case in.Sender > math.MaxUint16 || in.Epoch > math.MaxUint16:
			return fmt.Errorf("a mark of sender %d in epoch %d: both end at %d", in.Sender, in.Epoch, math.MaxUint16)
		case len(in.Applied) != appliedLen:
			return fmt.Errorf("the mark of sender %d has %d bytes, want %d", in.Sender, len(in.Applied), appliedLen)
		case last >= 0 && in.Sender <= uint32(h.Marks[last].Sender):
			return fmt.Errorf("a mark of sender %d after that of sender %d", in.Sender, h.Marks[last].Sender)
		}
		m := aggregator.Mark{Sender: uint16(in.Sender), Epoch: uint16(in.Epoch), Newest: in.Newest}
		for i := range m.Applied {
			m.Applied[i] = binary.LittleEndian.Uint64(in.Applied[wordLen*i:])
		}
		h.Marks = append(h.Marks, m)
	}
	return nil
}

// findMark returns where the mark of a sender is among marks in their order, or would be.
func findMark(marks []aggregator.Mark, sender uint16) (at int, found bool) {
	return slices.BinarySearchFunc(marks, sender, func(m aggregator.Mark, sender uint16) int {
		return cmp.Compare(m.Sender, sender)
	})
}

// keepMarks adds the marks that a harvest before had of senders which are not admitted any more:
// they have no frames in this one.
func (h *Harvest) keepMarks(before []aggregator.Mark) {
	for _, m := range before {
		if at, found := findMark(h.Marks, m.Sender); !found {
			h.Marks = slices.Insert(h.Marks, at, m)
		}
	}
}

// checkMarks compares the marks with those of the harvest before: they name the frames of that one,
// and no more others than this one has.
func (h *Harvest) checkMarks(before []aggregator.Mark) error {
	var others uint64
	for i := range h.Marks {
		m := &h.Marks[i]
		var old aggregator.Mark
		at, found := findMark(before, m.Sender)
		found = found && before[at].Epoch == m.Epoch
		if found {
			old = before[at]
		}
		if int32(m.Newest-old.Newest) < 0 {
			return fmt.Errorf("the mark of sender %d goes back from frame %d to frame %d", m.Sender, old.Newest, m.Newest)
		}
		for i := range uint32(wire.DefaultWindow) {
			seq := m.Newest - i
			switch was, is := old.Has(seq), m.Has(seq); {
			case was && !is:
				return fmt.Errorf("the mark of sender %d has lost frame %d, which an earlier harvest has", m.Sender, seq)
			case is && !was && (found || seq != 0): // number 0 counts as applied at admission
				others++
			}
		}
	}
	if others > h.Frames {
		return fmt.Errorf("the marks have %d frames that no earlier harvest has, but it has %d", others, h.Frames)
	}
	return nil
}
