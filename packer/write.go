// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"math/bits"

	"github.com/libra-ina/libra/wire"
)

func (p *Packer) fillHot(payload []byte) []byte {
	first := p.sent.HotStripes
	if p.shareEnds != nil {
		return p.fillShare(payload, first)
	}
	n := min(p.stripes, len(p.masks)-first)
	payload = payload[:wire.HotLen(n)]
	for k := range n {
		p.writeStripe(wire.StripeAt(payload, k), first+k, 0)
	}
	p.sent.HotStripes += n
	p.sent.HotFrames++
	return payload
}

// fillShare is fillHot of a job with several shares.
func (p *Packer) fillShare(payload []byte, first int) []byte {
	n := min(p.stripes, p.shareEnds[p.share]-first)
	payload = payload[:wire.HotLen(n)]
	for i, k := range p.order[first:][:n] {
		p.writeStripe(wire.StripeAt(payload, i), int(k), p.places.shares.FirstPage(p.share))
	}
	p.sent.HotStripes += n
	p.sent.HotFrames++
	p.aimBatch()
	return payload
}

// writeStripe gathers the gradients of a stripe; its places are prepared, in pages after base.
func (p *Packer) writeStripe(s *wire.Stripe, k int, base uint32) {
	grads, page, mask := p.grads, p.masks[k]>>wire.Lanes-base, p.masks[k]&wire.LaneMask
	at, slots := p.lanesOf(k)
	p.sent.HotPairs += bits.OnesCount32(mask)
	if mask != wire.LaneMask {
		s.Clear()
	}
	s.SetPage(int(page), mask)
	s.SetSlots(slots)
	switch {
	case mask == wire.LaneMask && !p.numbers.integers():
		s.GatherValues(grads, at)
	case p.numbers.integers():
		for ; mask != 0; mask &= mask - 1 {
			j := bits.TrailingZeros32(mask)
			s.SetBits(j, p.numbers.integer(grads[at[j]]))
		}
	default:
		for ; mask != 0; mask &= mask - 1 {
			j := bits.TrailingZeros32(mask)
			s.SetValue(j, grads[at[j]])
		}
	}
}

// fillCold writes up to n cold rows of one server, in batch order.
func (p *Packer) fillCold(payload []byte, n int) []byte {
	first := p.sent.ColdRows
	end := p.endOf(p.server)
	if first < p.plain {
		end = p.plain
	}
	rows := p.cold[first:end]
	rows = rows[:min(n, len(rows))]
	var body wire.Rows
	if p.rows != nil {
		payload = payload[:wire.ColdAtLen(len(rows), p.dim)]
		body = wire.PutNumbered(payload, wire.TypeColdAt, len(rows), p.dim, p.rows.Numberings[p.server])
		body.SetNumbers(p.rows.Numbers[first:][:len(rows)])
	} else {
		payload = payload[:wire.ColdLen(len(rows), p.dim)]
		body = wire.PutRows(payload, wire.TypeCold, len(rows), p.dim)
		body.GatherKeys(p.keys, rows)
	}
	body.GatherRows(p.grads, rows)
	p.coldSent(len(rows))
	return payload
}

// coldSent counts a cold frame of n rows.
func (p *Packer) coldSent(n int) {
	p.sent.ColdRows += n
	p.sent.ColdFrames++
	p.aimBatch()
}
