// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"math"
	"slices"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/wire"
)

// fault is what may be wrong with a pair.
type fault struct {
	code wire.Code
	pair func(l *lanes, p *lanePair)
}

func bitsOf(bits uint32) func(*lanes, *lanePair) {
	return func(_ *lanes, p *lanePair) { p.bits = bits }
}

// ranks beyond the end, of a job whose last row lacks the last lane.
func rowOf(row int) func(*lanes, *lanePair) {
	return func(_ *lanes, p *lanePair) { p.row = row }
}

var (
	infinite = fault{wire.CodeNotFinite, bitsOf(0x7f800000)}
	rank     = fault{wire.CodeSlotRange, rowOf(3)}
	large    = fault{wire.CodeOverflow, func(l *lanes, p *lanePair) {
		p.bits = math.Float32bits(float32(math.Ldexp(1, 63+l.job.Exp)))
	}}
	faults = []fault{
		infinite, rank, large,
		{wire.CodeNotFinite, bitsOf(0xff800000)},
		{wire.CodeNotFinite, bitsOf(0x7fc00001)},
		{wire.CodeSlotRange, rowOf(math.MaxUint16)},
		{wire.CodeOverflow, func(l *lanes, p *lanePair) {
			p.bits = math.Float32bits(-float32(math.Ldexp(1.5, 63+l.job.Exp)))
		}},
		{wire.CodeNotFinite, func(l *lanes, p *lanePair) { infinite.pair(l, p); rank.pair(l, p) }}, // that comes first
		{wire.CodeSlotRange, func(l *lanes, p *lanePair) { large.pair(l, p); rank.pair(l, p) }},
	}
)

// applies reports that an arithmetic has such a fault: fixed has only ranks, lut no range.
func (l *lanes) applies(f fault) bool {
	return f.code == wire.CodeSlotRange || l.job.Arithmetic == aggregator.Exact ||
		l.job.Arithmetic == aggregator.LUT && f.code == wire.CodeNotFinite
}

// faults puts each fault into each lane, alone and with one in another lane, into new frames and
// into repeated ones, whose numbers are not looked at. A lane that is not used has no fault.
func (l *lanes) faults() {
	flags := wire.Flags(0)
	if l.job.Mode == aggregator.FetchAdd {
		flags = wire.FlagWantSum
	}
	good := func(int) uint32 { return math.Float32bits(float32(math.Ldexp(3, l.job.Exp+40))) }
	kinds := slices.DeleteFunc(slices.Clone(faults), func(f fault) bool { return !l.applies(f) })
	for lane := range wire.Lanes {
		for i, f := range kinds {
			one := everyLane(lane%2, good)
			f.pair(l, &one[lane])
			a := l.add(0, flags, one...)
			l.refused(a, f.code, lane)
			l.send(0, l.seq[0], flags, everyLane(0, good)...) // the number that was refused, with a frame that is not
			l.refused(l.add(1, 0, one...), f.code, lane)
			l.refused(l.add(1, 0, one[lane]), f.code, lane) // no other lane is used
			for _, other := range []int{0, wire.Lanes - 1, (lane + 1) % wire.Lanes} {
				if other == lane {
					continue
				}
				two, second := slices.Clone(one), kinds[(i+1)%len(kinds)]
				second.pair(l, &two[other])
				if first := l.add(2, flags, two...); other < lane {
					l.refused(first, second.code, other)
				} else {
					l.refused(first, f.code, lane)
				}
			}
			// The body of a number that was added before matters only for the sums it asks for.
			l.added(l.add(2, flags, everyLane(0, good)...))
			repeated := l.send(2, l.seq[2], flags|wire.FlagRetx, one...)
			if one[lane].row > 2 && flags != 0 {
				l.refused(repeated, wire.CodeSlotRange, lane)
			} else {
				l.added(repeated)
			}
			l.added(l.send(2, l.seq[2], wire.FlagRetx, one...))
			l.unused(lane, f)
		}
	}
}

// unused sends a frame whose only fault is in a lane that its mask leaves out.
func (l *lanes) unused(lane int, f fault) {
	payload := make([]byte, wire.HotLen(l.stripes))
	l.seq[1]++
	l.header(wire.TypeHot, 0, 1, l.seq[1]).Put(payload)
	s, p := wire.StripeAt(payload, 0), lanePair{lane: lane}
	f.pair(l, &p)
	s.SetMask(wire.LaneMask &^ (1 << lane))
	s.SetSlot(lane, uint16(p.row))
	s.SetBits(lane, p.bits)
	l.added(l.process(1, payload))
}

// lastRow tries the ends of a job whose last row has some lanes: each lane of that row, the next row,
// and the last of all, in new and repeated frames.
func (l *lanes) lastRow(more int) {
	last := l.job.Slots / wire.Lanes
	base := l.add(0, wire.FlagWantSum, everyLane(0, same4(0x3f800000))...)
	l.added(base)
	for lane := range wire.Lanes {
		for _, row := range []int{last - 1, last, last + 1, math.MaxUint16} {
			p := lanePair{lane, row, 0x3f800000 + uint32(lane)<<12}
			a := l.add(1, wire.FlagWantSum, p)
			again := l.send(0, 1, wire.FlagWantSum|wire.FlagRetx, p)
			if row > last || row == last && lane >= more {
				l.refused(a, wire.CodeSlotRange, lane)
				l.refused(again, wire.CodeSlotRange, lane)
			} else {
				l.added(a)
				l.added(again)
			}
		}
	}
}

// checksums makes answers of each kind whose UDP checksum computes to 0, which is sent as 0xffff: 0
// means no checksum (RFC 768).
func (l *lanes) checksums() {
	zeros := everyLane(0, same4(0))
	beyond := slices.Clone(zeros)
	beyond[5].row = 1
	for name, c := range map[string]struct {
		flags wire.Flags
		pairs []lanePair
	}{
		"ACK":   {0, zeros},
		"sums":  {wire.FlagWantSum, zeros},
		"ERROR": {0, beyond},
	} {
		l.stripes = 1
		first := l.add(0, c.flags, c.pairs...)
		l.seq[0] = balanced(l.seq[0], first.check)
		if second := l.send(0, l.seq[0], c.flags, c.pairs...); second.check != 0xffff {
			l.Errorf("%s: the checksums are %#x and %#x, want 0xffff", name, first.check, second.check)
		}
	}
}

// balanced returns a later number that makes the checksum 0 of an answer whose checksum was check:
// the ones' complement sum of a frame and its checksum is 0.
func balanced(seq uint32, check uint16) uint32 {
	low := (seq&0xffff + uint32(check) + 0xffff - 1) % 0xffff // the upper half grows by 1
	return seq&^0xffff + 0x10000 | low
}
