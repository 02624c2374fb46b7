// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"fmt"

	"github.com/libra-ina/libra/wire"
)

const (
	// MaxSlots is the largest number of slots of one job: the ranks that frames can name.
	MaxSlots = wire.MaxRanks

	// PageSlots is the largest number of slots of one job on a switch without pages, such as P4's.
	PageSlots = wire.PageRanks
)

// Layout determines which lane of a stripe a pair may use, and the meaning of its
// uint16. An aggregator announces the layouts that it accepts at admission.
type Layout uint8

const (
	// LaneAligned means that the pair in lane j of a stripe belongs to
	// register j (its scalar rank mod wire.Lanes is j) and that the uint16 is
	// the slot (rank div wire.Lanes). A stripe accesses no register twice, so
	// a switch never recirculates.
	LaneAligned Layout = iota
	// Dense allows any pair in any lane; the uint16 is the scalar rank.
	Dense
)

func (l Layout) String() string {
	switch l {
	case LaneAligned:
		return "lane-aligned"
	case Dense:
		return "dense"
	}
	return fmt.Sprintf("Layout(%d)", uint8(l))
}

// within returns the rank within its page of the pair in a lane whose uint16 is slot.
func (l Layout) within(lane int, slot uint16) uint32 {
	if l == Dense {
		return uint32(slot)
	}
	return uint32(slot)*wire.Lanes + uint32(lane)
}

// Rank returns the scalar rank of the pair in a lane of a stripe, or [Cold] if the slot is not in
// the stripe's page.
func (l Layout) Rank(s *wire.Stripe, lane int) uint32 {
	rank, ok := s.Rank(lane, l == Dense)
	if !ok {
		return Cold
	}
	return uint32(rank)
}
