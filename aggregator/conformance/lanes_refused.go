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

// hasFault reports that an arithmetic has such a fault: fixed has only ranks, lut no range.
func (l *lanes) hasFault(f fault) bool {
	return f.code == wire.CodeSlotRange || l.job.Arithmetic == aggregator.Exact ||
		l.job.Arithmetic == aggregator.LUT && f.code == wire.CodeNotFinite
}

// runFaults puts each fault into each lane, alone and with one in another lane, into new frames and
// into repeated ones, whose numbers are not looked at. A lane that is not used has no fault.
func (l *lanes) runFaults() {
	flags := wire.Flags(0)
	if l.job.Mode == aggregator.FetchAdd {
		flags = wire.FlagWantSum
	}
	good := func(int) uint32 { return math.Float32bits(float32(math.Ldexp(3, l.job.Exp+40))) }
	kinds := slices.DeleteFunc(slices.Clone(faults), func(f fault) bool { return !l.hasFault(f) })
	for lane := range wire.Lanes {
		for i, f := range kinds {
			one := everyLane(lane%2, good)
			f.pair(l, &one[lane])
			a := l.sendNext(0, flags, one...)
			l.checkRefused(a, f.code, lane)
			l.sendFrame(0, l.seq[0], flags, everyLane(0, good)...) // the number that was refused, with a frame that is not
			l.checkRefused(l.sendNext(1, 0, one...), f.code, lane)
			l.checkRefused(l.sendNext(1, 0, one[lane]), f.code, lane) // no other lane is used
			for _, other := range []int{0, wire.Lanes - 1, (lane + 1) % wire.Lanes} {
				if other == lane {
					continue
				}
				two, second := slices.Clone(one), kinds[(i+1)%len(kinds)]
				second.pair(l, &two[other])
				if first := l.sendNext(2, flags, two...); other < lane {
					l.checkRefused(first, second.code, other)
				} else {
					l.checkRefused(first, f.code, lane)
				}
			}
			// The body of a number that was added before matters only for the sums it asks for.
			l.checkAdded(l.sendNext(2, flags, everyLane(0, good)...))
			repeated := l.sendFrame(2, l.seq[2], flags|wire.FlagRetx, one...)
			if one[lane].row > 2 && flags != 0 {
				l.checkRefused(repeated, wire.CodeSlotRange, lane)
			} else {
				l.checkAdded(repeated)
			}
			l.checkAdded(l.sendFrame(2, l.seq[2], wire.FlagRetx, one...))
			l.sendUnused(lane, f, flags)
		}
	}
}

// sendUnused sends a frame whose only fault is in a lane that its mask leaves out, and which is
// zero in an answer with sums.
func (l *lanes) sendUnused(lane int, f fault, flags wire.Flags) {
	payload := make([]byte, wire.HotLen(l.stripes))
	l.seq[1]++
	l.headerOf(wire.TypeHot, flags, 1, l.seq[1]).Put(payload)
	s, p := wire.StripeAt(payload, 0), lanePair{lane: lane}
	f.pair(l, &p)
	s.SetMask(wire.LaneMask &^ (1 << lane))
	s.SetSlot(lane, uint16(p.row))
	s.SetBits(lane, p.bits)
	l.checkAdded(l.processBoth(1, payload))
}

// lastRow tries the ends of a job whose last row has some lanes: each lane of that row, the next
// row, and the last of all, in new and repeated frames.
func (l *lanes) lastRow(more int) {
	last := l.job.Slots / wire.Lanes
	base := l.sendNext(0, wire.FlagWantSum, everyLane(0, same4(0x3f800000))...)
	l.checkAdded(base)
	for lane := range wire.Lanes {
		for _, row := range []int{last - 1, last, last + 1, math.MaxUint16} {
			p := lanePair{lane, row, 0x3f800000 + uint32(lane)<<12}
			a := l.sendNext(1, wire.FlagWantSum, p)
			again := l.sendFrame(0, 1, wire.FlagWantSum|wire.FlagRetx, p)
			if row > last || row == last && lane >= more {
				l.checkRefused(a, wire.CodeSlotRange, lane)
				l.checkRefused(again, wire.CodeSlotRange, lane)
			} else {
				l.checkAdded(a)
				l.checkAdded(again)
			}
		}
	}
}

// runChecksums makes answers of each kind whose UDP checksum computes to 0, which is sent as
// 0xffff: 0 means no checksum (RFC 768).
func (l *lanes) runChecksums() {
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
		first := l.sendNext(0, c.flags, c.pairs...)
		l.seq[0] = balanced(l.seq[0], first.check)
		if second := l.sendFrame(0, l.seq[0], c.flags, c.pairs...); second.check != 0xffff {
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
