// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"math"
)

const (
	// Lanes is the number of pairs in a stripe, and the number of registers m that a lane-aligned
	// frame addresses: as many as fit the 192 bytes that a switch parser reads (the paper's §3.4).
	Lanes = 22

	// LaneMask has one bit for every lane of a stripe.
	LaneMask = 1<<Lanes - 1

	// PageRanks is the number of ranks of a page: as many as a uint16 names in a dense stripe.
	PageRanks = 1 << 16

	// MaxPages is the number of pages that the bits above a lane mask can name.
	MaxPages = 1 << (32 - Lanes)

	// MaxRanks is the number of ranks of all pages.
	MaxRanks = MaxPages * PageRanks

	// StripeLen is the size of a stripe in bytes: a uint32 lane mask, Lanes
	// float32 values, Lanes uint16 slots.
	StripeLen = 4 + Lanes*4 + Lanes*2

	// DefaultStripes is the number of stripes that fit an MTU of 1500 bytes. A frame has more only
	// if its path is known to carry more.
	DefaultStripes = 10

	// MaxStripes is the number of stripes that fit the buffer of 4 KB that drivers give an XDP
	// program for a frame: after 256 bytes of headroom, before 320 bytes that the kernel reserves
	// at its end, and with an Ethernet header and a VLAN tag, it has room for an IP packet of 3500
	// bytes. A packet with 25 stripes has 3440, see [MaxMTU].
	MaxStripes = 25

	stripeValues = 4
	stripeSlots  = stripeValues + Lanes*4
)

// Stripe is the encoded form of up to [Lanes] (slot, float32) pairs, as a structure of arrays; in
// jobs of fixed arithmetic (slot, int32). Offsets do not depend on the mask; lanes outside the mask
// are zero.
//
//	bytes 0-3     lane mask, bit j = lane j holds a pair; bits 22-31: page
//	bytes 4-91    Lanes × float32
//	bytes 92-135  Lanes × uint16: slot (lane-aligned) or rank (dense) within the page
type Stripe [StripeLen]byte

// HotLen returns the length of a HOT payload with n stripes, header included.
func HotLen(n int) int { return HeaderLen + n*StripeLen }

// HotMTU returns the size of an IPv4 packet with a HOT payload of n stripes: the smallest MTU for
// it.
func HotMTU(n int) int { return ipv4Len + udpLen + HotLen(n) }

// StripeCount returns how many stripes follow the header of a payload. It returns [ErrLength] if
// the body is not a whole number of stripes between 1 and [MaxStripes].
func StripeCount(payload []byte) (int, error) {
	body := len(payload) - HeaderLen
	if body < StripeLen || body > MaxStripes*StripeLen || body%StripeLen != 0 {
		return 0, ErrLength
	}
	return body / StripeLen, nil
}

// StripeAt returns a view of stripe i of a payload, which must contain it.
func StripeAt(payload []byte, i int) *Stripe {
	return (*Stripe)(payload[HeaderLen+i*StripeLen:])
}

// Mask returns the lane mask.
func (s *Stripe) Mask() uint32 { return binary.BigEndian.Uint32(s[:]) & LaneMask }

// SetMask sets the lane mask, and page 0.
func (s *Stripe) SetMask(m uint32) { s.SetPage(0, m) }

// Page returns the page whose ranks the stripe has.
func (s *Stripe) Page() int { return int(binary.BigEndian.Uint32(s[:]) >> Lanes) }

// SetPage sets the page < [MaxPages], and the lane mask.
func (s *Stripe) SetPage(page int, m uint32) {
	binary.BigEndian.PutUint32(s[:], uint32(page)<<Lanes|m&LaneMask)
}

// Rank returns the rank of the pair in lane j < Lanes of a dense or lane-aligned stripe. It returns
// false if a slot is not in the stripe's page; then no job has the rank.
func (s *Stripe) Rank(j int, dense bool) (rank int, ok bool) {
	if rank = int(s.Slot(j)); !dense {
		rank = rank*Lanes + j
	}
	return s.Page()*PageRanks + rank, rank < PageRanks
}

// Value returns the float in lane j < Lanes.
func (s *Stripe) Value(j int) float32 { return math.Float32frombits(s.Bits(j)) }

// Bits returns the bits of the float in lane j < Lanes.
func (s *Stripe) Bits(j int) uint32 {
	_ = lanes[j]
	return binary.BigEndian.Uint32(s[stripeValues+4*j:])
}

// SetValue sets the float in lane j < Lanes.
func (s *Stripe) SetValue(j int, v float32) { s.SetBits(j, math.Float32bits(v)) }

// SetBits sets the bits of the number in lane j < Lanes, which is an int32 in
// jobs of fixed arithmetic.
func (s *Stripe) SetBits(j int, v uint32) {
	_ = lanes[j]
	binary.BigEndian.PutUint32(s[stripeValues+4*j:], v)
}

// Slot returns the slot (lane-aligned) or rank (dense) within the page, in lane j < Lanes.
func (s *Stripe) Slot(j int) uint16 {
	_ = lanes[j]
	return binary.BigEndian.Uint16(s[stripeSlots+2*j:])
}

// SetSlot sets the slot (lane-aligned) or rank (dense) within the page, in lane j < Lanes.
func (s *Stripe) SetSlot(j int, slot uint16) {
	_ = lanes[j]
	binary.BigEndian.PutUint16(s[stripeSlots+2*j:], slot)
}

// SetSlots sets the slots or ranks in all lanes.
func (s *Stripe) SetSlots(slots *[Lanes]uint16) {
	for j, slot := range slots {
		binary.BigEndian.PutUint16(s[stripeSlots+2*j:], slot)
	}
}

// GatherValues sets the floats in all lanes: values[at[j]] in lane j.
func (s *Stripe) GatherValues(values []float32, at *[Lanes]uint32) {
	for j, i := range at {
		binary.BigEndian.PutUint32(s[stripeValues+4*j:], math.Float32bits(values[i]))
	}
}

// lanes is indexed to panic on a lane that does not exist, whose value would lie among the slots.
// It also bounds j for the compiler, which makes the check cheaper than the two that it replaces.
var lanes [Lanes]struct{}

// Clear zeroes the stripe.
func (s *Stripe) Clear() { *s = Stripe{} }
