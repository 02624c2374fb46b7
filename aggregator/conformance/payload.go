// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"math"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/wire"
)

// hot returns a new HOT payload that its job accepts, except that sums may overflow.
func (g *Generator) hot(f flow, seq uint32) []byte {
	job := g.jobs[f.job]
	h := g.header(f, seq)
	dense := job.Layouts&aggregator.Dense != 0 && (job.Layouts == aggregator.Dense || g.oneIn(2))
	if dense {
		h.Flags |= wire.FlagDense
	}
	if job.Mode == aggregator.FetchAdd && g.oneIn(2) {
		h.Flags |= wire.FlagWantSum
	}
	n := 1 + g.rng.IntN(job.MaxStripes)
	if g.oneIn(3) {
		n = job.MaxStripes
	}
	payload := make([]byte, wire.HotLen(n))
	h.Put(payload)
	number := g.numbers(job)
	few := g.oneIn(10) // few ranks, many times
	for i := range n {
		s := wire.StripeAt(payload, i)
		mask := uint32(wire.LaneMask)
		if g.oneIn(3) {
			mask &= g.rng.Uint32()
		}
		page := g.page(job)
		slots := min(job.Slots-page*aggregator.PageSlots, aggregator.PageSlots)
		if !dense && slots < wire.Lanes {
			mask &= 1<<slots - 1
		}
		if few {
			slots = min(slots, 40)
		}
		s.SetPage(page, mask)
		for lane := range wire.Lanes {
			if mask>>lane&1 == 0 && !g.oneIn(4) {
				continue // unused lanes are zero, but need not be
			}
			rank := g.rng.IntN(slots)
			if dense {
				s.SetSlot(lane, uint16(rank))
			} else {
				rank = g.rng.IntN((slots-lane-1)/wire.Lanes+1)*wire.Lanes + lane
				s.SetSlot(lane, uint16(rank/wire.Lanes))
			}
			s.SetBits(lane, number())
		}
	}
	return payload
}

// page returns a page of a job.
func (g *Generator) page(job aggregator.JobConfig) int {
	if job.Pages() == 1 {
		return 0
	}
	return g.rng.IntN(job.Pages())
}

// contribution returns a HOT payload with a group of slots of a job with rounds.
func (g *Generator) contribution(f flow, seq uint32, group int) []byte {
	job := g.jobs[f.job]
	first := group * job.MaxStripes
	ranks := min(job.Slots-first*wire.Lanes, job.MaxStripes*wire.Lanes)
	payload := make([]byte, wire.HotLen((ranks+wire.Lanes-1)/wire.Lanes))
	g.header(f, seq).Put(payload)
	number := g.numbers(job)
	for r := range ranks {
		s, lane := wire.StripeAt(payload, r/wire.Lanes), r%wire.Lanes
		s.SetMask(s.Mask() | 1<<lane)
		s.SetSlot(lane, uint16(first+r/wire.Lanes))
		s.SetBits(lane, number())
	}
	return payload
}

// groups returns the number of groups of a job with rounds.
func groups(job aggregator.JobConfig) int {
	n := job.MaxStripes * wire.Lanes
	return (job.Slots + n - 1) / n
}

// numbers returns a source of the numbers of one frame: mostly gradients, and sometimes numbers
// that round to zero, or whose sums are out of range.
func (g *Generator) numbers(job aggregator.JobConfig) func() uint32 {
	switch job.Arithmetic {
	case aggregator.Fixed:
		bits := [...]int{0, 12, 12, 12, 12, 12, 12, 2, 1}[g.rng.IntN(9)]
		return func() uint32 { return uint32(int32(g.rng.Uint32()) >> bits) }
	case aggregator.LUT:
		exponent := [...]int{0, 110, 110, 110, 110, 110, 30, 235, 250}[g.rng.IntN(9)]
		span := min(20, 255-exponent)
		return func() uint32 {
			return uint32(exponent+g.rng.IntN(span))<<23 | g.rng.Uint32()&0x807fffff
		}
	}
	magnitude := g.magnitude(job.Exp)
	return func() uint32 { return math.Float32bits(magnitude * float32(g.rng.NormFloat64())) }
}

// magnitude returns the magnitude of a frame's values in exact arithmetic.
func (g *Generator) magnitude(exp int) float32 {
	switch g.rng.IntN(12) {
	case 0:
		return float32(math.Ldexp(1, exp+g.rng.IntN(66)-3))
	case 1:
		return float32(math.Ldexp(1, exp+60))
	case 2:
		return math.SmallestNonzeroFloat32
	}
	return float32(math.Ldexp(1, exp+30))
}
