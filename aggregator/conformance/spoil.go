// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"encoding/binary"
	"math"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/wire"
)

// Unusual floats: every class, and the neighbours of the limits.
var oddBits = []uint32{
	0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001, 0xffffffff, 0x7f7fffff, 0xff7fffff,
	0, 0x80000000, 1, 0x80000001, 0x007fffff, 0x00800000, 0x80800000, 0x3f800000,
}

// spoil returns a copy of a payload, in most cases with one fault.
func (g *Generator) spoil(payload []byte) []byte {
	p := append([]byte(nil), payload...)
	switch {
	case g.oneIn(2):
		return g.spoilHeader(p)
	case isScale(p):
		return g.spoilScale(p)
	case isTaken(p):
		return g.spoilTaken(p)
	case g.oneIn(4):
		return g.spoilShape(p)
	}
	g.spoilPair(p)
	return p
}

// spoilHeader spoils the header or the length of a payload.
func (g *Generator) spoilHeader(p []byte) []byte {
	job := g.jobs[g.rng.IntN(len(g.jobs))]
	switch g.rng.IntN(9) {
	case 0:
		p[0] = byte(g.rng.Uint32())
	case 1:
		p[0] = p[0]&0xf0 | byte(g.rng.IntN(16))
	case 2:
		p[1] = byte(g.rng.Uint32())
	case 3:
		binary.BigEndian.PutUint16(p[2:], [...]uint16{1, 254, 256, 0xffff, job.ID}[g.rng.IntN(5)])
	case 4:
		binary.BigEndian.PutUint16(p[4:], uint16(g.rng.Uint32N(65536)))
	case 5:
		binary.BigEndian.PutUint16(p[4:], senderID(g.rng.IntN(Senders)))
	case 6:
		p[6+g.rng.IntN(2)] ^= 1 << g.rng.IntN(8)
	case 7:
		p = p[:g.rng.IntN(len(p)+1)]
	case 8:
		for range g.rng.IntN(300) {
			p = append(p, byte(g.rng.Uint32()))
		}
	}
	return p
}

// spoilScale spoils the body of a SCALE payload.
func (g *Generator) spoilScale(p []byte) []byte {
	switch g.rng.IntN(4) {
	case 0:
		p[wire.HeaderLen+4] = wire.InfiniteExponent
	case 1:
		binary.BigEndian.PutUint32(p[wire.HeaderLen:], g.rng.Uint32())
	case 2:
		p[wire.ScaleLen-1-g.rng.IntN(3)] = byte(g.rng.Uint32()) // ignored
	case 3:
		p = append(p, 0)
	}
	return p
}

// spoilShape spoils the set of lanes of a HOT payload, which matters to a job with rounds.
func (g *Generator) spoilShape(p []byte) []byte {
	stripes := (len(p) - wire.HeaderLen) / wire.StripeLen
	head, s := wire.StripeAt(p, 0), wire.StripeAt(p, g.rng.IntN(stripes))
	switch g.rng.IntN(6) {
	case 0:
		p = p[:wire.HotLen(g.rng.IntN(stripes+1))]
	case 1:
		p = append(p, p[len(p)-wire.StripeLen:]...)
	case 2:
		s.SetPage(s.Page(), s.Mask()^1<<g.rng.IntN(wire.Lanes))
	case 3:
		head.SetPage(head.Page(), head.Mask()&^1)
	case 4:
		head.SetSlot(0, head.Slot(0)+1)
	case 5: // around the last slot of each job, and far beyond
		job := g.jobs[g.rng.IntN(len(g.jobs))]
		head.SetSlot(0, uint16(g.rng.IntN(job.Slots/wire.Lanes+2)))
		if g.oneIn(2) {
			head.SetSlot(0, uint16(g.rng.Uint32N(65536)))
		}
	}
	return p
}

// spoilPair spoils one pair or the mask of a HOT payload.
func (g *Generator) spoilPair(p []byte) {
	stripes := (len(p) - wire.HeaderLen) / wire.StripeLen
	s := wire.StripeAt(p, g.rng.IntN(stripes))
	lane := g.rng.IntN(wire.Lanes)
	job := g.jobs[g.rng.IntN(len(g.jobs))]
	kinds := 5
	if g.paged {
		kinds = 6
	}
	switch g.rng.IntN(kinds) {
	case 0:
		s.SetPage(s.Page()^1<<g.rng.IntN(10), s.Mask())
	case 1:
		s.SetBits(lane, oddBits[g.rng.IntN(len(oddBits))])
	case 2: // around the largest value of each job
		if job.Arithmetic == aggregator.Exact {
			limit := math.Float32bits(float32(math.Ldexp(1, 63+job.Exp)))
			s.SetBits(lane, limit-2+g.rng.Uint32N(4)|g.rng.Uint32()&(1<<31))
		}
	case 3: // around the last slot of each job
		last := job.Slots - (job.Pages()-1)*aggregator.PageSlots
		s.SetSlot(lane, uint16(last-2+g.rng.IntN(4)))
		if g.oneIn(2) {
			s.SetSlot(lane, uint16(last/wire.Lanes-1+g.rng.IntN(3)))
		}
		if g.paged && g.oneIn(2) {
			s.SetSlot(lane, aggregator.PageSlots/wire.Lanes+uint16(g.rng.IntN(2))) // around the end of a page
		}
	case 4:
		s.SetSlot(lane, uint16(g.rng.Uint32N(65536)))
	case 5: // around the last page of each job
		s.SetPage(max(0, job.Pages()-2+g.rng.IntN(3)), s.Mask())
	}
}
