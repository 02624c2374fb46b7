// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"math"
	"slices"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/wire"
)

const roundSlots = 2*wire.Lanes + 7

// rowOf returns a contribution to a row: all lanes that it has.
func (l *lanes) rowOf(row int, bits func(lane int) uint32) []lanePair {
	pairs := everyLane(row, bits)
	return pairs[:min(wire.Lanes, l.job.Slots-row*wire.Lanes)]
}

// numberOf returns x as the arithmetic has it.
func (l *lanes) numberOf(x int) uint32 {
	if l.job.Arithmetic == aggregator.Fixed {
		return uint32(int32(x))
	}
	return math.Float32bits(float32(x))
}

// runRounds completes rounds of every row with numbers that differ from lane to lane, tries what is
// no whole row, overflows each lane, and repeats contributions of a round that is complete.
func (l *lanes) runRounds() {
	rows := (l.job.Slots + wire.Lanes - 1) / wire.Lanes
	for round := range 5 {
		for row := range rows {
			for sender := range Senders {
				pairs := l.rowOf(row, func(lane int) uint32 {
					return l.numberOf((lane + 1) * (sender + 2) * (round + 3) * (1 - 2*(lane&1)))
				})
				l.checkAdded(l.sendNext(sender, 0, pairs...))
				if sender == 1 { // a contribution that comes too early
					if early := l.sendNext(1, 0, pairs...); early.refusal.Code != wire.CodeRound {
						l.Errorf("an early contribution: %v", early.refusal)
					}
				}
			}
			for sender := range Senders { // the result, for a worker that missed it
				if sender != 1 {
					l.checkAdded(l.sendFrame(sender, l.seq[sender], wire.FlagRetx, l.rowOf(row, same4(0))...))
				}
			}
		}
	}
	l.sendShapes(rows)
	if l.job.Arithmetic == aggregator.Exact {
		l.roundOverflows()
	}
	if l.job.Arithmetic == aggregator.Fixed {
		l.roundChecksums()
		l.scaleChecksums()
	}
}

// sendShapes sends what is no whole row of the job, by each lane.
func (l *lanes) sendShapes(rows int) {
	for row := range rows {
		whole := l.rowOf(row, same4(l.numberOf(1)))
		for lane := range wire.Lanes {
			other := slices.Clone(whole)
			if lane < len(whole) {
				other[lane].row = (row + 1) % rows
				l.sendNext(0, 0, slices.Delete(slices.Clone(whole), lane, lane+1)...)
			} else {
				other = append(other, lanePair{lane, row, 0})
			}
			if a := l.sendNext(0, 0, other...); a.refusal.Code == 0 {
				l.Errorf("row %d, lane %d: a part of a row is taken", row, lane)
			}
		}
		beyond := everyLane(rows+row, same4(0))
		if a := l.sendNext(0, 0, beyond...); a.refusal.Code == 0 {
			l.Errorf("row %d beyond the job is taken", rows+row)
		}
	}
}

// roundOverflows exceeds the range in each lane and direction within a round.
func (l *lanes) roundOverflows() {
	for lane := range wire.Lanes {
		for _, big := range []float64{math.Ldexp(1, 62+l.job.Exp), -math.Ldexp(1.25, 62+l.job.Exp)} {
			pairs := l.rowOf(0, same4(l.numberOf(1)))
			pairs[lane].bits = math.Float32bits(float32(big))
			l.checkAdded(l.sendNext(0, 0, pairs...))
			l.checkRefused(l.sendNext(1, 0, pairs...), wire.CodeOverflow, lane)
			pairs[lane].bits = 0
			l.checkAdded(l.sendNext(1, 0, pairs...))
			l.checkAdded(l.sendNext(2, 0, pairs...))
		}
	}
}

// roundChecksums makes the checksum 0 of an answer to all senders, by the number of a lane.
func (l *lanes) roundChecksums() {
	number, check := uint32(0), uint16(0)
	for round := range 2 {
		for sender := range Senders {
			pairs := l.rowOf(1, same4(0))
			if sender == 0 {
				pairs[3].bits = number
			}
			a := l.sendNext(sender, 0, pairs...)
			l.checkAdded(a)
			check = a.check
		}
		if round == 0 {
			number = (uint32(check) + 0xffff - 1) % 0xffff // the number of the round grows by 1
		}
	}
	if check != 0xffff {
		l.Errorf("the checksum of a round's answer is %#x, want 0xffff", check)
	}
}

// scaleChecksums makes the checksum 0 of answers to reports of a scale: one that is undecided, one
// that repeats a decision, and a refusal.
func (l *lanes) scaleChecksums() {
	report := func(sender int, iteration uint32, exponent uint8) answered {
		l.seq[sender]++
		h := l.headerOf(wire.TypeScale, 0, sender, l.seq[sender])
		r := wire.ScaleReport{Iteration: iteration, Exponent: exponent}
		return l.processBoth(sender, wire.PutScale(make([]byte, wire.ScaleLen), h, r))
	}
	zero := func(what string, iteration uint32) {
		first := report(0, iteration, 7)
		l.seq[0] = balanced(l.seq[0], first.check) - 1
		if a := report(0, iteration, 7); a.check != 0xffff {
			l.Errorf("%s: the checksum is %#x, want 0xffff", what, a.check)
		}
	}
	zero("undecided", 0)
	for sender := range Senders {
		report(sender, 0, uint8(90+sender))
	}
	zero("decided", 0)
	zero("refused", 5)
}
