package aggregator

import (
	"errors"
	"math/bits"
	"slices"

	"github.com/libra-ina/libra/internal/fixedpoint"
	"github.com/libra-ina/libra/wire"
)

// pair is one (rank, gradient) of a frame, converted to the job's arithmetic.
type pair struct {
	position uint16 // in the frame: stripe × wire.Lanes + lane
	rank     uint16
	units    int64
}

// rank returns the rank that lane j of a stripe addresses. It may exceed the
// job's slots.
func rank(f wire.Flags, s *wire.Stripe, lane int) int {
	if f&wire.FlagDense != 0 {
		return int(s.Slot(lane))
	}
	return int(s.Slot(lane))*wire.Lanes + lane
}

// lanes calls do for every used lane of a payload, in order, until do returns
// a refusal. Lanes outside the mask might as well not be there.
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

// decode checks and converts all pairs of a payload and appends them to dst.
func (j *job) decode(f wire.Flags, payload []byte, stripes int, dst []pair) ([]pair, *wire.Refusal) {
	r := lanes(payload, stripes, func(s *wire.Stripe, lane, position int) *wire.Refusal {
		units, err := j.format.FromBits(s.Bits(lane))
		rank := rank(f, s, lane)
		switch {
		case errors.Is(err, fixedpoint.ErrNotFinite):
			return &wire.Refusal{Code: wire.CodeNotFinite, Index: uint16(position)}
		case rank >= j.Slots:
			return j.slotRange(position)
		case err != nil:
			return &wire.Refusal{Code: wire.CodeOverflow, Index: uint16(position)}
		}
		dst = append(dst, pair{position: uint16(position), rank: uint16(rank), units: units})
		return nil
	})
	return dst, r
}

// checkRanks checks that all pairs of a payload address the job's slots.
func (j *job) checkRanks(f wire.Flags, payload []byte, stripes int) *wire.Refusal {
	return lanes(payload, stripes, func(s *wire.Stripe, lane, position int) *wire.Refusal {
		if rank(f, s, lane) >= j.Slots {
			return j.slotRange(position)
		}
		return nil
	})
}

func (j *job) slotRange(position int) *wire.Refusal {
	return &wire.Refusal{Code: wire.CodeSlotRange, Index: uint16(position), Value: uint32(j.Slots)}
}

// add adds all pairs, or none if a sum leaves the range of int64.
func (b *bank) add(pairs []pair) *wire.Refusal {
	for i, p := range pairs {
		sum, ok := fixedpoint.Add(b.slots[p.rank], p.units)
		if !ok {
			for _, done := range slices.Backward(pairs[:i]) {
				b.slots[done.rank] -= done.units
			}
			return &wire.Refusal{Code: wire.CodeOverflow, Index: p.position}
		}
		b.slots[p.rank] = sum
	}
	return nil
}

// putSums writes an ACK with the lanes of the payload that is answered and the
// sums as they are after the whole frame. It returns the length of the reply.
// The ranks must have been checked.
func (j *job) putSums(h wire.Header, payload, reply []byte) int {
	stripes := (len(payload) - wire.HeaderLen) / wire.StripeLen
	reply = wire.PutSums(reply, h, stripes)
	for i := range stripes {
		s := wire.StripeAt(reply, i)
		s.Clear()
		s.SetMask(wire.StripeAt(payload, i).Mask())
	}
	slots := j.banks[j.current].slots
	// The ranks were checked, so nothing is refused here.
	_ = lanes(payload, stripes, func(s *wire.Stripe, lane, position int) *wire.Refusal {
		sum := wire.StripeAt(reply, position/wire.Lanes)
		sum.SetSlot(lane, s.Slot(lane))
		sum.SetValue(lane, j.format.ToFloat32(slots[rank(h.Flags, s, lane)]))
		return nil
	})
	return len(reply)
}
