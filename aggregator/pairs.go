// SPDX-License-Identifier: Apache-2.0

package aggregator

import (
	"math/bits"
	"slices"

	"github.com/libra-ina/libra/wire"
)

// pair is one (rank, number) of a frame, in the job's arithmetic.
type pair struct {
	position uint16 // in the frame: stripe × wire.Lanes + lane
	rank     uint32
	number   int64
	before   int64 // the slot before this pair was added
}

// rankOf returns the rank that a lane of a stripe addresses. It returns false if it is none of the
// job's.
func (j *job) rankOf(f wire.Flags, s *wire.Stripe, lane int) (int, bool) {
	rank, ok := s.Rank(lane, f&wire.FlagDense != 0)
	return rank, ok && rank < j.Slots
}

// lanes calls do for every used lane of a payload, in order, until do returns a refusal. It ignores
// lanes outside the mask.
func lanes(payload []byte, stripes int, do func(s *wire.Stripe, lane, position int) *wire.Refusal) *wire.Refusal {
	for i := range stripes {
		s := wire.StripeAt(payload, i)
		for mask := s.Mask(); mask != 0; mask &= mask - 1 {
			lane := bits.TrailingZeros32(mask)
			if r := do(s, lane, i*wire.Lanes+lane); r != nil {
				return r
			}
		}
	}
	return nil
}

// decodePairs checks and converts all pairs of a payload and appends them to dst.
func (j *job) decodePairs(f wire.Flags, payload []byte, stripes int, dst []pair) ([]pair, *wire.Refusal) {
	r := lanes(payload, stripes, func(s *wire.Stripe, lane, position int) *wire.Refusal {
		number, code := j.arithmetic.number(s.Bits(lane))
		rank, ok := j.rankOf(f, s, lane)
		switch {
		case code == wire.CodeNotFinite:
			return &wire.Refusal{Code: code, Index: uint16(position)}
		case !ok:
			return j.slotRange(position)
		case code != 0:
			return &wire.Refusal{Code: code, Index: uint16(position)}
		}
		dst = append(dst, pair{position: uint16(position), rank: uint32(rank), number: number})
		return nil
	})
	return dst, r
}

// checkRanks checks that all pairs of a payload address the job's slots.
func (j *job) checkRanks(f wire.Flags, payload []byte, stripes int) *wire.Refusal {
	return lanes(payload, stripes, func(s *wire.Stripe, lane, position int) *wire.Refusal {
		if _, ok := j.rankOf(f, s, lane); !ok {
			return j.slotRange(position)
		}
		return nil
	})
}

func (j *job) slotRange(position int) *wire.Refusal {
	return &wire.Refusal{Code: wire.CodeSlotRange, Index: uint16(position), Value: uint32(j.Slots)}
}

// applyPairs adds all pairs of a fresh frame to a bank and marks the frame as applied, or adds
// nothing and returns the reason. If the reason is a sum, it marks the frame as refused, because a
// copy must not be added when the sum is in range again.
func (m *Model) applyPairs(j *job, s *sender, b *bank, h wire.Header, payload []byte, stripes int) *wire.Refusal {
	pairs, r := j.decodePairs(h.Flags, payload, stripes, m.pairs[:0])
	if r != nil {
		return r
	}
	cut, r := j.addPairs(b, pairs)
	if r != nil {
		s.seen.Refuse(h.Seq, *r)
		return r
	}
	s.seen.Mark(h.Seq)
	if b.touched != nil {
		for i := range pairs {
			b.touched[pairs[i].rank/BlockSlots] = 1
		}
	}
	n := uint64(len(pairs))
	b.frames++
	b.pairs += n
	j.counters.Applied++
	j.counters.Pairs += n
	j.counters.Saturated += cut
	s.counters.Applied++
	s.counters.Pairs += n
	return nil
}

// addPairs adds all pairs, or none if the arithmetic cannot represent a sum. It returns how many
// sums were limited to the largest number.
func (j *job) addPairs(b *bank, pairs []pair) (cut uint64, r *wire.Refusal) {
	for i := range pairs {
		p := &pairs[i]
		p.before = b.slots[p.rank]
		sum, how := j.arithmetic.addNumber(p.before, p.number)
		switch how {
		case saturated:
			cut++
		case overflowed:
			for _, done := range slices.Backward(pairs[:i]) {
				b.slots[done.rank] = done.before
			}
			return 0, &wire.Refusal{Code: wire.CodeOverflow, Index: p.position}
		}
		b.slots[p.rank] = sum
	}
	return cut, nil
}

// putSums writes an ACK with the lanes of the request's payload and the sums of a bank after the
// whole frame. It returns the reply. The ranks must have been checked.
func (j *job) putSums(b *bank, h wire.Header, payload, reply []byte) []byte {
	stripes := (len(payload) - wire.HeaderLen) / wire.StripeLen
	reply = wire.PutSums(reply, h, stripes)
	for i := range stripes {
		s := wire.StripeAt(reply, i)
		s.Clear()
		asked := wire.StripeAt(payload, i)
		s.SetPage(asked.Page(), asked.Mask())
	}
	// The ranks were checked, so nothing is refused here.
	_ = lanes(payload, stripes, func(s *wire.Stripe, lane, position int) *wire.Refusal {
		sum := wire.StripeAt(reply, position/wire.Lanes)
		rank, _ := j.rankOf(h.Flags, s, lane)
		sum.SetSlot(lane, s.Slot(lane))
		sum.SetBits(lane, j.arithmetic.bits(b.slots[rank]))
		return nil
	})
	return reply
}
