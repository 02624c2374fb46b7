// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/wire"
)

// A data plane has the arithmetic and the checks of a lane 22 times: a P4 program spells each of
// them out. Random frames seldom reach the rare cases of each: a sum that rounds up to a power of
// two, an overflow in one lane alone, the last rank of a row. The frames of this file and the next
// visit them all.

// TestLanes passes directed frames through a device and the model, of jobs of its own, whose frames
// have some stripes; only one of them has pairs.
func TestLanes(t *testing.T, p *Pair, stripes int) {
	t.Helper()
	t.Cleanup(func() { p.Jobs = nil })
	p.Jobs = nil
	for _, visit := range []struct {
		name string
		job  aggregator.JobConfig
		run  func(*lanes)
	}{
		{"sums of every magnitude", aggregator.JobConfig{Mode: aggregator.FetchAdd, Exp: -46, Slots: sumRows * wire.Lanes}, (*lanes).runSums},
		{"numbers of every magnitude", aggregator.JobConfig{Mode: aggregator.FetchAdd, Exp: -46, Slots: numberRows * wire.Lanes}, (*lanes).runNumbers},
		{"overflow", aggregator.JobConfig{Mode: aggregator.FetchAdd, Exp: -46, Slots: overflowRows * wire.Lanes}, (*lanes).runOverflows},
		{"faults of exact", aggregator.JobConfig{Mode: aggregator.FetchAdd, Exp: -46, Slots: 3*wire.Lanes - 1}, (*lanes).runFaults},
		{"faults of fixed", aggregator.JobConfig{Mode: aggregator.FetchAdd, Arithmetic: aggregator.Fixed, Slots: 3*wire.Lanes - 1}, (*lanes).runFaults},
		{"faults of lut", aggregator.JobConfig{Mode: aggregator.Combine, Arithmetic: aggregator.LUT, Slots: 3*wire.Lanes - 1}, (*lanes).runFaults},
		{"saturation", aggregator.JobConfig{Mode: aggregator.FetchAdd, Arithmetic: aggregator.Fixed, Slots: 2 * wire.Lanes}, (*lanes).runSaturation},
		{"lut", aggregator.JobConfig{Mode: aggregator.FetchAdd, Arithmetic: aggregator.LUT, Slots: 2 * wire.Lanes}, (*lanes).runLookups},
		{"checksums of 0", aggregator.JobConfig{Mode: aggregator.FetchAdd, Exp: -46, Slots: wire.Lanes}, (*lanes).runChecksums},
		{"rounds of exact", aggregator.JobConfig{Mode: aggregator.Sync, Workers: Senders, Exp: -46, Slots: roundSlots}, (*lanes).runRounds},
		{"rounds of fixed", aggregator.JobConfig{Mode: aggregator.Sync, Workers: Senders, Arithmetic: aggregator.Fixed, Slots: roundSlots}, (*lanes).runRounds},
		{"rounds of lut", aggregator.JobConfig{Mode: aggregator.Sync, Workers: Senders, Arithmetic: aggregator.LUT, Slots: roundSlots}, (*lanes).runRounds},
	} {
		t.Run(visit.name, func(t *testing.T) {
			l := openLanes(t, p, visit.job, stripes)
			visit.run(l)
			l.endJob()
		})
	}
	t.Run("the end of the ranks", func(t *testing.T) {
		for more := range wire.Lanes {
			l := openLanes(t, p, aggregator.JobConfig{Mode: aggregator.FetchAdd, Exp: -46, Slots: wire.Lanes + more}, stripes)
			l.lastRow(more)
			l.endJob()
		}
	})
}

// lanes is a job with its senders.
type lanes struct {
	*testing.T
	pair    *Pair
	job     aggregator.JobConfig
	stripes int
	seq     [Senders]uint32
	turn    int // chooses the stripe that has pairs
}

// lanesJob and lanesEpoch are of no other job.
const lanesJob, lanesEpoch = 199, 40_000

func openLanes(t *testing.T, p *Pair, job aggregator.JobConfig, stripes int) *lanes {
	t.Helper()
	job.ID, job.Epoch, job.MaxStripes, job.Layouts = lanesJob, lanesEpoch, stripes, aggregator.Aligned
	if job.Mode.HasRounds() {
		job.MaxStripes, stripes = 1, 1 // a contribution has no empty stripes
	}
	for _, plane := range []aggregator.Plane{p.Device, p.Model} {
		if err := StartJob(plane, job); err != nil {
			t.Fatal(err)
		}
	}
	p.Jobs = []aggregator.JobConfig{job}
	return &lanes{T: t, pair: p, job: job, stripes: stripes}
}

// endJob compares both banks and all counters, and ends the job.
func (l *lanes) endJob() {
	l.Helper()
	for range 2 {
		if err := l.pair.Harvest(l.job.ID); err != nil {
			l.Fatal(err)
		}
	}
	if err := l.pair.CompareCounters(); err != nil {
		l.Fatal(err)
	}
	for _, plane := range []aggregator.Plane{l.pair.Device, l.pair.Model} {
		if err := plane.RemoveJob(l.job.ID); err != nil {
			l.Fatal(err)
		}
	}
}

// lanePair is a pair of a lane.
type lanePair struct {
	lane, row int
	bits      uint32
}

// everyLane returns a pair for each lane.
func everyLane(row int, bits func(lane int) uint32) (pairs []lanePair) {
	for lane := range wire.Lanes {
		pairs = append(pairs, lanePair{lane, row, bits(lane)})
	}
	return pairs
}

func same4(bits uint32) func(int) uint32 { return func(int) uint32 { return bits } }

// answered is the model's answer to a frame.
type answered struct {
	header  wire.Header
	refusal wire.Refusal // of an ERROR
	at      int          // position of lane 0 of the stripe that has pairs
	check   uint16       // its UDP checksum
}

// sendNext sends the next frame of a sender.
func (l *lanes) sendNext(sender int, flags wire.Flags, pairs ...lanePair) answered {
	l.Helper()
	l.seq[sender]++
	return l.sendFrame(sender, l.seq[sender], flags, pairs...)
}

// readSums repeats a sender's last number: the answer has the sums, and nothing is added.
func (l *lanes) readSums(sender int, pairs []lanePair) {
	l.Helper()
	l.checkAdded(l.sendFrame(sender, l.seq[sender], wire.FlagWantSum|wire.FlagRetx, pairs...))
}

// sendFrame sends a frame with a number.
func (l *lanes) sendFrame(sender int, seq uint32, flags wire.Flags, pairs ...lanePair) answered {
	l.Helper()
	stripe := l.turn % l.stripes
	l.turn++
	payload := make([]byte, wire.HotLen(l.stripes))
	l.headerOf(wire.TypeHot, flags, sender, seq).Put(payload)
	s := wire.StripeAt(payload, stripe)
	for _, p := range pairs {
		s.SetMask(s.Mask() | 1<<p.lane)
		s.SetSlot(p.lane, uint16(p.row))
		s.SetBits(p.lane, p.bits)
	}
	a := l.processBoth(sender, payload)
	a.at = stripe * wire.Lanes
	return a
}

// headerOf returns the header of a sender's frame.
func (l *lanes) headerOf(kind wire.Type, flags wire.Flags, sender int, seq uint32) wire.Header {
	return wire.Header{Type: kind, Flags: flags, Job: l.job.ID, Sender: Sender(sender).ID, Epoch: l.job.Epoch, Seq: seq}
}

// processBoth sends a payload to both.
func (l *lanes) processBoth(sender int, payload []byte) (a answered) {
	l.Helper()
	e, err := wire.NewEnvelope(Host(sender), Aggregator)
	if err != nil {
		l.Fatal(err)
	}
	frame := append(make([]byte, e.Len()), payload...)
	e.Seal(frame)
	if _, err := l.pair.Process(frame); err != nil {
		l.Fatal(err)
	}
	answer := l.pair.answer
	if len(answer) == 0 {
		return a
	}
	a.check = binary.BigEndian.Uint16(answer[e.Len()-2:])
	body := answer[e.Len():]
	if a.header, err = wire.ParseHeader(body); err != nil {
		l.Fatal(err)
	}
	if a.header.Type == wire.TypeError {
		if a.refusal, err = wire.ParseRefusal(body[:wire.ErrorLen]); err != nil {
			l.Fatal(err)
		}
	}
	return a
}

// checkRefused checks that the model's answer is the refusal that the frame was made for.
func (l *lanes) checkRefused(a answered, code wire.Code, lane int) {
	l.Helper()
	if a.refusal.Code != code || int(a.refusal.Index) != a.at+lane {
		l.Errorf("refused: %v, want %v in lane %d", a.refusal, code, lane)
	}
}

// checkAdded checks that the model has taken the frame.
func (l *lanes) checkAdded(a answered) {
	l.Helper()
	if a.header.Type == wire.TypeError || a.header.Type == 0 {
		l.Errorf("the answer is %v, %v", a.header, a.refusal)
	}
}

// floatsOf returns floats, at most three, whose sum is n units: a float has 24 bits.
func (l *lanes) floatsOf(n int64) (floats [3]uint32) {
	negative, m := n < 0, uint64(n)
	if negative {
		m = -m
	}
	for i := range floats {
		if m == 0 {
			break
		}
		shift := max(0, 64-24-leadingZeros(m))
		part := m >> shift << shift
		m -= part
		x := math.Ldexp(float64(part), l.job.Exp)
		if negative {
			x = -x
		}
		floats[i] = math.Float32bits(float32(x))
	}
	return floats
}

func leadingZeros(m uint64) (n int) {
	for ; m>>63 == 0; m <<= 1 {
		n++
	}
	return n
}

// roundings are sums with the leading one in place k: exact, a half of the last place of a float32
// on an even and on an odd one, just above and below a half, and all ones, which becomes the next
// power of two; and a carry by half alone.
func roundings(k int) []int64 {
	one := int64(1) << k
	if k < 26 {
		return []int64{one, one | one>>1, 2*one - 1, one + one>>2, one | 1, one}
	}
	last, half := one>>23, one>>24
	return []int64{one, one + half, one + last + half, one + half + 1, one + half - 1, 2*one - 1}
}

const (
	places  = 63
	sumRows = places * 6 * 2
)

// runSums makes, in every lane, a sum with the leading one in every place, of both signs, that is
// rounded in each way.
func (l *lanes) runSums() {
	for row := range sumRows {
		var parts [3][]lanePair
		for lane := range wire.Lanes {
			n := roundings((row/12 + 3*lane) % places)[row/2%6]
			if row%2 == 1 {
				n = -n
			}
			for i, bits := range l.floatsOf(n) {
				parts[i] = append(parts[i], lanePair{lane, row, bits})
			}
		}
		for i, pairs := range parts {
			l.checkAdded(l.sendNext(row%Senders, wire.FlagWantSum*wire.Flags(i/2), pairs...))
		}
		l.readSums(row%Senders, parts[0])
	}
}

const (
	magnitudes = 66
	patterns   = 6
	numberRows = magnitudes * patterns * 2
)

// runNumbers makes a number of every magnitude in every lane, from an eighth of a unit to the
// largest, which are rounded to units in each way; and numbers that are too small for a float's
// place.
func (l *lanes) runNumbers() {
	for row := range numberRows {
		l.checkAdded(l.sendNext(row%Senders, wire.FlagWantSum, everyLane(row, func(lane int) uint32 {
			exponent := 127 + l.job.Exp - 3 + (row/(2*patterns)+3*lane)%magnitudes
			mantissa := [patterns]uint32{0, 0x7fffff, 1, 0x400000, 0x400001, 0x3fffff}[row/2%patterns]
			if row/(2*patterns) == 7 && lane%2 == 0 {
				exponent = 0 // zero, or subnormal
			}
			return uint32(row%2)<<31 | uint32(exponent)<<23 | mantissa
		})...))
	}
}

const overflowRows = wire.Lanes * 2 * 4

// runOverflows makes sums of each lane exceed the range in both directions, in that lane alone and
// in another lane too: the lowest is named, and nothing is added. The ends of the range are sums.
func (l *lanes) runOverflows() {
	half := math.Float32bits(float32(math.Ldexp(1, 62+l.job.Exp)))
	almost := half - 1 // the float below
	unit := math.Float32bits(float32(math.Ldexp(1, l.job.Exp)))
	row := 0
	for lane := range wire.Lanes {
		for _, sign := range []uint32{0, 1 << 31} {
			for _, other := range []int{lane, 0, wire.Lanes - 1, (lane + 1) % wire.Lanes} {
				of := func(bits uint32) []lanePair {
					pairs := everyLane(row, same4(unit))
					pairs[lane].bits, pairs[other].bits = sign|bits, sign|bits
					return pairs
				}
				l.checkAdded(l.sendNext(0, 0, of(half)...))
				a := l.sendNext(1, wire.FlagWantSum, of(half)...)
				who := 1
				if sign != 0 { // -2^63 is in range
					l.checkAdded(a)
					who, a = 2, l.sendNext(2, 0, of(unit)...)
				}
				l.checkRefused(a, wire.CodeOverflow, min(lane, other))
				again := l.sendFrame(who, l.seq[who], 0, everyLane(row, same4(0))...)
				again.at = a.at // it is refused for good, for the pair of the first frame
				l.checkRefused(again, wire.CodeOverflow, min(lane, other))
				l.checkAdded(l.sendNext(0, wire.FlagWantSum, everyLane(row, same4(0))...)) // what the refused ones have left
				l.sendNext(2, wire.FlagWantSum, of(almost)...)
				l.sendNext(2, wire.FlagWantSum, of(unit)...)
				row++
			}
		}
	}
}

// runSaturation brings each lane to both ends of fixed arithmetic: exactly, beyond, and back.
func (l *lanes) runSaturation() {
	const top, least = math.MaxInt32, math.MinInt32
	for lane := range wire.Lanes {
		for _, number := range []int32{top, 0, 1, -1, top, least, -1, -top, 1, least, least, 1, top, top, -1 << 16, 1 << 16} {
			l.checkAdded(l.sendNext(lane%Senders, wire.FlagWantSum, lanePair{lane, lane % 2, uint32(number)}))
			l.readSums(lane%Senders, everyLane(lane%2, same4(0)))
		}
	}
	for _, number := range []int32{top, 1, 1, least, least, least, top} {
		l.checkAdded(l.sendNext(0, wire.FlagWantSum, everyLane(0, same4(uint32(number)))...))
		for lane := range wire.Lanes { // one is cut, the others are not
			pairs := everyLane(1, same4(0))
			pairs[lane].bits = uint32(number)
			l.checkAdded(l.sendNext(1, wire.FlagWantSum, pairs...))
		}
	}
}

// runLookups adds in each lane by table lookup: equal and opposite numbers, sums that are cut,
// numbers too small to be seen, and zeros of both signs.
func (l *lanes) runLookups() {
	const top = math.MaxFloat32
	numbers := []float32{1, 1, -2, 0, 1.5, -1e-3, 1e-30, top, top, -top, -top, -top, 3e38, 1e-38, -1e-38}
	for lane := range wire.Lanes {
		for _, number := range numbers {
			l.checkAdded(l.sendNext(lane%Senders, wire.FlagWantSum, lanePair{lane, lane % 2, math.Float32bits(number)}))
			l.readSums(lane%Senders, everyLane(lane%2, same4(0)))
		}
	}
	for i := range numbers {
		l.checkAdded(l.sendNext(0, wire.FlagWantSum, everyLane(i%2, func(lane int) uint32 {
			return math.Float32bits(numbers[(i+lane)%len(numbers)])
		})...))
	}
}
