// SPDX-License-Identifier: Apache-2.0

package aggregator_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/aggregator/vectors"
	"github.com/libra-ina/libra/wire"
)

// vectorFiles returns all files of vectors, without what a device does.
func vectorFiles() []*vectors.File {
	var files []*vectors.File
	for a := aggregator.Exact; a <= aggregator.Fixed; a++ {
		for m := aggregator.Combine; m <= aggregator.FetchAdd; m++ {
			files = append(files, plainVectors(m, a), laneVectors(m, a), pageVectors(m, a))
		}
		files = append(files, syncVectors(a, 24, 2, ""), syncVectors(a, 22, 1, "-lanes"), ackedVectors(a))
	}
	return append(files, longVectors(), coverVectors(),
		refusedVectors("refused-combine", aggregator.Combine, 2), refusedVectors("refused-fetchadd", aggregator.FetchAdd, 2),
		refusedVectors("refused-lanes", aggregator.FetchAdd, 1), roundVectors(), quietRoundVectors(), takenVectors(), scaleVectors(), epochVectors(), readmissionVectors(), addressVectors(),
		hostileVectors("hostile", aggregator.Dense, 2), hostileVectors("hostile-lanes", aggregator.Aligned, 1))
}

// plainVectors is a job without rounds: sums, repetitions, the ends of the range.
func plainVectors(mode aggregator.Mode, a aggregator.Arithmetic) *vectors.File {
	s := newScript(mode.String()+"-"+a.String(), mode.String()+" with "+a.String()+" arithmetic: sums, repetitions, the ends of the range")
	s.addJob(2, aggregator.JobConfig{ID: 3, Epoch: 7, Mode: mode, Arithmetic: a, Exp: aggregator.DefaultExp(a), Slots: 48, MaxStripes: 2})
	x := func(v float64) uint32 { return number(a, v) }
	const dense = wire.FlagDense
	s.send("lane-aligned, ranks 0, 25 and 47", 0, stripes(s.header(0, 1, 0), []bitsPair{{0, 0, x(1.5)}, {3, 1, x(-0.25)}}, []bitsPair{{3, 2, x(1e-3)}}))
	s.send("dense, the same ranks, one of them twice", 1, stripes(s.header(1, 1, dense), []bitsPair{{0, 47, x(0.1)}, {1, 0, x(-7.3)}, {9, 25, x(0.3)}, {21, 0, x(1e-5)}}))
	again := stripes(s.header(0, 1, 0), []bitsPair{{0, 0, x(99)}})
	wire.MarkRetx(again)
	s.send("number 1 again: not added, whatever it holds", 0, again)
	want := stripes(s.header(0, 2, dense|wire.FlagWantSum), []bitsPair{{0, 0, x(0.7)}, {5, 25, x(-0.7)}, {6, 0, x(-0.2)}, {7, 30, x(0)}})
	s.send("WANT_SUM", 0, want)
	s.send("WANT_SUM again", 0, want)
	s.send("rank 48 of 48", 1, stripes(s.header(1, 2, dense), []bitsPair{{0, 1, x(1)}, {2, 48, x(1)}}))
	s.send("NaN in lane 1: a number in fixed arithmetic", 1, stripes(s.header(1, 2, dense), []bitsPair{{0, 1, x(1)}, {1, 2, 0x7fc00000}}))
	top := largest(a)
	s.send("the largest number", 0, stripes(s.header(0, 3, dense), []bitsPair{{0, 10, top}, {1, 11, top}}))
	s.send("rank 10 beyond the largest: refused or cut", 0, stripes(s.header(0, 4, dense), []bitsPair{{4, 12, x(2)}, {5, 11, x(-1)}, {6, 10, top}}))
	s.send("the same number, less: refused again, or not added", 0, stripes(s.header(0, 4, dense), []bitsPair{{0, 10, x(-1)}}))
	if a == aggregator.Exact {
		half := math.Float32bits(-(1 << 16)) // half of the range
		s.send("the least sum, -2^63 units", 0, stripes(s.header(0, 5, dense), []bitsPair{{0, 14, half}, {1, 14, half}}))
		s.send("three quarters of that less: refused, with the pair before it", 1, stripes(s.header(1, 3, dense), []bitsPair{{0, 13, x(1)}, {7, 14, math.Float32bits(-0.75 * (1 << 16))}}))
		if mode == aggregator.FetchAdd {
			s.send("the least sum as a float", 0, stripes(s.header(0, 6, dense|wire.FlagWantSum), []bitsPair{{3, 14, 0}}))
		}
	}
	if a == aggregator.Fixed {
		s.send("the least number, twice", 1, stripes(s.header(1, 3, dense), []bitsPair{{0, 13, 1 << 31}, {1, 13, 1 << 31}, {2, 13, x(1)}}))
	}
	s.harvest()
	s.harvest()
	return s.file
}

// laneVectors is a job that takes lane-aligned frames of one stripe only, as a
// switch does. It has 24 slots: two in lanes 0 and 1, one in the others.
func laneVectors(mode aggregator.Mode, a aggregator.Arithmetic) *vectors.File {
	s := newScript("lanes-"+mode.String()+"-"+a.String(), mode.String()+" with "+a.String()+" arithmetic, one lane-aligned stripe in a frame: every lane, repetitions, the ends of the range")
	s.addJob(2, aggregator.JobConfig{
		ID: 9, Epoch: 65535, Mode: mode, Arithmetic: a, Exp: aggregator.DefaultExp(a), Slots: 24, MaxStripes: 1, Layouts: aggregator.Aligned,
	})
	x := func(v float64) uint32 { return number(a, v) }
	row := func(scale float64) (pairs []bitsPair) {
		for lane := range wire.Lanes {
			pairs = append(pairs, bitsPair{lane, 0, x(scale * float64(lane-9))})
		}
		return pairs
	}
	top := largest(a)
	s.send("all lanes", 0, stripes(s.header(0, 1, 0), row(0.1)))
	s.send("all lanes, another sender", 1, stripes(s.header(1, 1, 0), row(-0.37)))
	s.send("ranks 22 and 23, and no pair between", 0, stripes(s.header(0, 2, 0), []bitsPair{{0, 1, x(3)}, {1, 1, x(-4)}}))
	s.send("number 2 again, with another body: not added", 0, stripes(s.header(0, 2, wire.FlagRetx), row(5)))
	s.send("number 1026 takes the place of number 2", 0, stripes(s.header(0, 1026, 0), []bitsPair{{21, 0, x(1)}}))
	s.send("number 2, late", 0, stripes(s.header(0, 2, 0), row(5)))
	s.send("an empty mask", 0, stripes(s.header(0, 3, 0), nil))
	s.send("WANT_SUM", 0, stripes(s.header(0, 4, wire.FlagWantSum), []bitsPair{{0, 0, x(0.3)}, {7, 0, x(0)}, {21, 0, x(-0.7)}}))
	s.send("WANT_SUM again, of other slots", 0, stripes(s.header(0, 4, wire.FlagWantSum), []bitsPair{{1, 1, x(9)}, {20, 0, x(9)}}))
	s.send("WANT_SUM again, of a rank that is not there", 0, stripes(s.header(0, 4, wire.FlagWantSum), []bitsPair{{1, 1, x(9)}, {2, 1, x(9)}}))
	s.send("number 1 again, of a rank that is not there", 0, stripes(s.header(0, 1, 0), []bitsPair{{2, 1, x(9)}}))
	s.send("rank 24 of 24", 1, stripes(s.header(1, 2, 0), []bitsPair{{0, 0, x(1)}, {2, 1, x(1)}}))
	s.send("the last of all slots", 1, stripes(s.header(1, 2, 0), []bitsPair{{0, 65535, x(1)}}))
	s.send("two bad pairs: the lower lane decides", 1, stripes(s.header(1, 2, 0), []bitsPair{{5, 2, x(1)}, {4, 9, x(1)}}))
	s.send("NaN in lane 1: a number in fixed arithmetic", 1, stripes(s.header(1, 2, 0), []bitsPair{{0, 0, x(1)}, {1, 1, 0x7fc00000}}))
	s.send("infinity behind a rank that is not there", 1, stripes(s.header(1, 2, 0), []bitsPair{{3, 1, x(1)}, {4, 0, 0xff800000}}))
	s.send("the largest number", 0, stripes(s.header(0, 5, 0), []bitsPair{{10, 0, top}, {11, 0, top}}))
	s.send("the largest number again: refused or cut", 0, stripes(s.header(0, 6, 0), []bitsPair{{9, 0, x(1)}, {11, 0, top}, {12, 0, top}}))
	s.send("the same number, less: refused again, or not added", 0, stripes(s.header(0, 6, 0), []bitsPair{{11, 0, x(-1)}}))
	s.send("the least number of each lane", 1, stripes(s.header(1, 3, 0), []bitsPair{{0, 0, top ^ 1<<31}, {21, 0, 1 << 31}}))
	s.harvest()
	s.send("into the other bank", 1, stripes(s.header(1, 4, 0), row(1e-3)))
	s.send("sums of the other bank", 0, stripes(s.header(0, 7, wire.FlagWantSum), row(2)))
	s.harvest()
	s.harvest()
	return s.file
}

// longVectors are frames that an MTU of 1500 does not carry. One of 26 stripes is not among them:
// an XDP program in native mode never sees it as a whole.
func longVectors() *vectors.File {
	s := newScript("long", "frames of more than ten stripes: taken up to what the job takes, which is ten if it does not say")
	// full has a number in each lane of n stripes, which is that of the frame at first and larger
	// by one in each lane.
	full := func(seq uint32, flags wire.Flags, n int) []byte {
		content := make([][]bitsPair, n)
		for i := range content {
			for lane := range wire.Lanes {
				slot := i
				if flags&wire.FlagDense != 0 {
					slot = i*wire.Lanes + lane
				}
				content[i] = append(content[i], bitsPair{lane, slot, number(aggregator.Exact, float64(int(seq)+i*wire.Lanes+lane))})
			}
		}
		return stripes(s.header(0, seq, flags), content...)
	}
	const sums, dense = wire.FlagWantSum, wire.FlagDense
	s.addJob(1, aggregator.JobConfig{ID: 12, Epoch: 5, Mode: aggregator.FetchAdd, Exp: -46, Slots: 550, MaxStripes: 25})
	s.send("11 stripes, lane-aligned", 0, full(1, 0, 11))
	s.send("25 stripes, lane-aligned, and their sums", 0, full(2, sums, 25))
	s.send("24 stripes, dense", 0, full(3, dense, 24))
	s.send("25 stripes, dense, and their sums", 0, full(4, sums|dense, 25))
	tagged := seal(conformance.Host(0), conformance.Aggregator, full(5, sums|dense, 25))
	s.frame("the longest frame: 25 stripes with a VLAN tag", slices.Concat(tagged[:12], []byte{0x81, 0, 0, 100}, tagged[12:]))
	s.send("25 stripes again: not added twice", 0, full(4, sums|dense, 25))
	bad := full(6, dense, 25)
	wire.StripeAt(bad, 24).SetSlot(21, 550)
	s.send("the last pair of 25 stripes is out of range", 0, bad)
	s.harvest()
	s.addJob(1, aggregator.JobConfig{ID: 13, Epoch: 6, Mode: aggregator.FetchAdd, Exp: -46, Slots: 550, MaxStripes: 24})
	s.send("25 stripes, but the job takes 24", 0, full(1, dense, 25))
	s.send("24 stripes", 0, full(1, dense, 24))
	s.harvest()
	s.addJob(1, aggregator.JobConfig{ID: 14, Epoch: 7, Mode: aggregator.FetchAdd, Exp: -46, Slots: 550})
	s.send("11 stripes, but the job does not say how many it takes", 0, full(1, dense, 11))
	s.send("10 stripes", 0, full(1, dense, 10))
	s.harvest()
	return s.file
}

// coverVectors is about frames that are answered together.
func coverVectors() *vectors.File {
	s := newScript("cover", "quiet frames, which are answered if one before them is missing, and answers that cover others")
	s.addJob(1, aggregator.JobConfig{ID: 6, Epoch: 11, Mode: aggregator.FetchAdd, Exp: -46, Slots: 48, MaxStripes: 2})
	const quiet, cover = wire.FlagQuiet, wire.FlagCover
	send := func(about string, seq uint32, flags wire.Flags) {
		s.send(about, 0, stripes(s.header(0, seq, flags), []bitsPair{{1, 1, number(aggregator.Exact, 1)}}))
	}
	send("the first frame, quiet", 1, quiet)
	send("quiet", 2, quiet)
	send("asks: covers 1 and 2", 3, cover)
	send("quiet again: a repetition is answered", 2, quiet|wire.FlagRetx)
	send("quiet, while 4 is missing: answered", 5, quiet)
	send("quiet, while 4 is missing but 5 is there", 6, quiet)
	send("quiet and cover: quiet", 7, quiet|cover)
	send("4 asks: covers three before it and three behind it", 4, cover)
	send("no flag: a plain ACK", 8, 0)
	send("quiet, but the sums are wanted", 9, quiet|wire.FlagWantSum)
	send("cover, but the sums are wanted", 10, cover|wire.FlagWantSum)
	s.send("quiet, refused", 0, stripes(s.header(0, 11, quiet), []bitsPair{{0, 3, number(aggregator.Exact, 1)}}))
	send("quiet, while 11 was refused: answered", 12, quiet)
	send("ahead", 43, quiet)
	send("further ahead", 107, cover)
	send("75 asks: the answer tells of 43 and not of 107", 75, cover)
	send("76 asks: the answer tells of 107 and not of 43", 76, cover)
	send("far ahead, with number 1098 in the place of 74", 1098, cover)
	send("1099, quiet", 1099, quiet)
	s.harvest()
	return s.file
}

// syncVectors is one group of slots, two workers, four rounds.
func syncVectors(a aggregator.Arithmetic, slots, most int, suffix string) *vectors.File {
	s := newScript("sync-"+a.String()+suffix, fmt.Sprintf("sync with %v arithmetic: two workers, one group of %d slots, four rounds", a, slots))
	cfg := aggregator.JobConfig{
		ID: 4, Epoch: 2, Mode: aggregator.Sync, Arithmetic: a, Exp: aggregator.DefaultExp(a), Workers: 2, Slots: slots, MaxStripes: most,
		Layouts: aggregator.Aligned,
	}
	s.addJob(2, cfg)
	payload := func(sender int, seq uint32, scale float64) []byte {
		numbers := make([]uint32, cfg.Slots)
		for i := range numbers {
			numbers[i] = number(a, scale*float64(i-11))
		}
		return groupPayload(cfg, s.header(sender, seq, 0), 0, numbers)
	}
	s.send("round 0, worker 0: plain ACK", 0, payload(0, 1, 0.1))
	s.send("worker 0 again: waiting for the other", 0, payload(0, 1, 0.1))
	s.send("round 0, worker 1: complete", 1, payload(1, 1, -0.03))
	s.send("worker 0 has missed the result", 0, payload(0, 1, 0.1))
	s.send("round 1, worker 1", 1, payload(1, 2, 3))
	s.send("worker 0 still asks for round 0", 0, payload(0, 1, 0.1))
	s.send("round 1, worker 0: complete", 0, payload(0, 2, 0.5))
	s.send("a late copy of round 0: the result of round 1", 0, payload(0, 1, 0.1))
	top := func(p []byte) []byte {
		wire.StripeAt(p, 0).SetBits(21, largest(a))
		return p
	}
	s.send("round 2, worker 0, with the largest number in rank 21", 0, top(payload(0, 3, 1)))
	s.send("worker 0 again, under another number", 0, payload(0, 4, 1))
	twice := payload(0, 5, 1)
	wire.StripeAt(twice, 0).SetBits(3, 0x7fc00000)
	s.send("worker 0 again, with NaN: the round comes first", 0, twice)
	s.send("round 2, worker 1, with the largest number: refused or cut", 1, top(payload(1, 3, -1)))
	s.send("the same number, less: refused again, or complete", 1, payload(1, 3, -1))
	s.send("worker 1, less, under another number: complete if it was refused", 1, payload(1, 4, -1))
	s.send("worker 0 in round 3, with the number that was refused in round 2", 0, payload(0, 4, 1))
	s.send("worker 0 in round 3, with the number that had NaN in round 2", 0, payload(0, 5, 1))
	s.send("round 3, worker 0, under a number of its own", 0, payload(0, 6, 1))
	s.send("the number that was refused, again", 0, payload(0, 4, 1))
	s.send("worker 1 in round 3, with the number of the sum that was refused, or is applied", 1, payload(1, 3, -1))
	s.send("round 3, worker 1", 1, payload(1, 5, -1))
	return s.file
}

// roundVectors is about groups: which frames are one, and their independence.
func roundVectors() *vectors.File {
	s := newScript("rounds", "sync with fixed arithmetic: three groups of 44, 44 and 12 slots, three workers; shapes that are no group")
	cfg := aggregator.JobConfig{ID: 5, Epoch: 1, Mode: aggregator.Sync, Arithmetic: aggregator.Fixed, Exp: -20, Workers: 3, Slots: 100, MaxStripes: 2}
	s.addJob(3, cfg)
	sizes := []int{44, 44, 12}
	payload := func(sender int, seq uint32, group int) []byte {
		numbers := make([]uint32, sizes[group])
		for i := range numbers {
			numbers[i] = uint32((sender + 1) * (1000*group + i))
		}
		return groupPayload(cfg, s.header(sender, seq, 0), group, numbers)
	}
	edit := func(about string, group int, change func(p []byte) []byte) {
		s.send(about, 0, change(payload(0, 1, group)))
	}
	edit("DENSE", 0, func(p []byte) []byte { p[1] |= byte(wire.FlagDense); return p })
	edit("WANT_SUM", 0, func(p []byte) []byte { p[1] |= byte(wire.FlagWantSum); return p })
	edit("mask bit 22", 0, func(p []byte) []byte { wire.StripeAt(p, 1).SetPage(1, wire.LaneMask); return p })
	edit("lane 0 of stripe 0 is not used", 0, func(p []byte) []byte { wire.StripeAt(p, 0).SetMask(wire.LaneMask &^ 1); return p })
	edit("first slot is beyond the last", 0, func(p []byte) []byte { wire.StripeAt(p, 0).SetSlot(0, 5); return p })
	edit("first slot is within a group", 0, func(p []byte) []byte { wire.StripeAt(p, 0).SetSlot(0, 1); return p })
	edit("two whole stripes that begin within a group", 0, func(p []byte) []byte {
		for i := range 2 {
			for lane := range wire.Lanes {
				wire.StripeAt(p, i).SetSlot(lane, uint16(1+i))
			}
		}
		return p
	})
	edit("one stripe of two", 0, func(p []byte) []byte { return p[:wire.HotLen(1)] })
	edit("two stripes of one", 2, func(p []byte) []byte { return append(p, make([]byte, wire.StripeLen)...) })
	edit("three stripes", 0, func(p []byte) []byte { return append(p, make([]byte, wire.StripeLen)...) })
	edit("no stripe", 0, func(p []byte) []byte { return p[:wire.HeaderLen] })
	edit("a lane is missing", 1, func(p []byte) []byte { wire.StripeAt(p, 1).SetMask(wire.LaneMask >> 1); return p })
	edit("a lane beyond the last slot", 2, func(p []byte) []byte { wire.StripeAt(p, 0).SetMask(1<<13 - 1); return p })
	edit("another slot in a lane", 1, func(p []byte) []byte { wire.StripeAt(p, 1).SetSlot(7, 2); return p })
	for sender := range 3 {
		s.send("the last group, 12 slots", sender, payload(sender, 1, 2))
	}
	s.send("group 1", 2, payload(2, 2, 1))
	s.send("group 0 under the number of group 1: not fresh, and there is no result yet", 2, payload(2, 2, 0))
	s.send("group 0", 0, payload(0, 2, 0))
	s.send("group 1", 0, payload(0, 3, 1))
	s.send("group 0", 1, payload(1, 2, 0))
	s.send("group 1", 1, payload(1, 3, 1))
	s.send("group 0", 2, payload(2, 3, 0))
	s.send("group 0 is late at worker 0, which has contributed to nothing since", 0, payload(0, 2, 0))
	tagged := seal(conformance.Host(0), conformance.Aggregator, payload(0, 4, 2))
	s.frame("round 1 of the last group, with an 802.1Q tag", withTag(tagged))
	s.send("worker 1", 1, payload(1, 4, 2))
	s.frame("worker 2, with a tag: the answer to all has it too", withTag(seal(conformance.Host(2), conformance.Aggregator, payload(2, 4, 2))))
	return s.file
}

// quietRoundVectors is a job with rounds whose workers say which answers they need.
func quietRoundVectors() *vectors.File {
	s := newScript("rounds-quiet", "sync with exact arithmetic: quiet contributions, and answers that say who has contributed")
	cfg := aggregator.JobConfig{ID: 8, Epoch: 2, Mode: aggregator.Sync, Exp: -46, Workers: 3, Slots: 50, MaxStripes: 2}
	s.addJob(3, cfg)
	const quiet, cover, retx = wire.FlagQuiet, wire.FlagCover, wire.FlagRetx
	send := func(about string, sender int, seq uint32, group int, flags wire.Flags) {
		numbers := make([]uint32, []int{44, 6}[group])
		for i := range numbers {
			numbers[i] = number(aggregator.Exact, float64((sender+1)*(100*group+i)))
		}
		s.send(about, sender, groupPayload(cfg, s.header(sender, seq, flags), group, numbers))
	}
	send("quiet: not answered", 0, 1, 0, quiet)
	send("asks: worker 0 has contributed", 0, 1, 0, cover|retx)
	send("quiet, repeated: a plain ACK", 0, 1, 0, quiet|retx)
	send("quiet and cover, repeated", 0, 1, 0, quiet|cover|retx)
	send("repeated without a flag: a plain ACK", 0, 1, 0, retx)
	send("asks at once: workers 0 and 2 have contributed", 2, 1, 0, cover)
	send("quiet, and completes the round: the result goes to all", 1, 1, 0, quiet)
	send("worker 0 asks for the result", 0, 1, 0, cover|retx)
	send("quiet, with a number missing before it: not answered", 0, 3, 0, quiet)
	send("quiet and cover, in the other group: not answered", 0, 4, 1, quiet|cover)
	send("number 2 for the group that number 3 has contributed to: refused", 0, 2, 0, quiet)
	send("number 2 repeated: refused again", 0, 2, 0, cover|retx)
	send("number 1 repeated, while worker 0 waits for round 1: who has contributed to that", 0, 1, 0, cover|retx)
	send("number 1 for the other group: not fresh, and round 0 is in progress there", 1, 1, 1, cover|retx)
	send("asks, and completes no round: workers 0 and 1", 1, 2, 0, cover)
	send("asks, and completes round 1", 2, 2, 0, cover)
	return s.file
}

func withTag(frame []byte) []byte {
	return append(append(append([]byte(nil), frame[:12]...), 0x81, 0, 0x60, 5), frame[12:]...)
}

// scaleVectors is a negotiation over two iterations.
func scaleVectors() *vectors.File {
	s := newScript("scale", "SCALE frames: two workers agree on the exponents of two iterations")
	s.addJob(2, aggregator.JobConfig{ID: 6, Epoch: 1, Arithmetic: aggregator.Fixed, Exp: -20, Workers: 2, Slots: 10})
	s.send("future iteration", 0, s.scaleReport(0, 1, 1, 100))
	s.send("the iteration before the first", 0, s.scaleReport(0, 1, math.MaxUint32, 100))
	s.send("exponent of infinity", 0, s.scaleReport(0, 1, 0, 255))
	s.send("too long", 0, append(s.scaleReport(0, 1, 0, 100), 0))
	s.send("iteration 0, worker 0", 0, s.scaleReport(0, 1, 0, 100))
	s.send("again", 0, s.scaleReport(0, 1, 0, 100))
	s.send("again, another exponent: the first counts", 0, s.scaleReport(0, 1, 0, 101))
	s.send("a HOT frame with the same number: the duplicate filter does not know it", 0, stripes(s.header(0, 1, wire.FlagDense), []bitsPair{{0, 1, 7}}))
	s.send("iteration 0, worker 1: decided", 1, s.scaleReport(1, 1, 0, 90))
	s.send("worker 0 has missed it", 0, s.scaleReport(0, 1, 0, 100))
	s.send("iteration 1, worker 1", 1, s.scaleReport(1, 2, 1, 0))
	s.send("worker 0 still asks for iteration 0", 0, s.scaleReport(0, 1, 0, 100))
	s.send("iteration 1, worker 0: decided", 0, s.scaleReport(0, 2, 1, 0))
	s.send("iteration 0 is too old", 0, s.scaleReport(0, 1, 0, 100))
	s.harvest()
	s.addJob(1, aggregator.JobConfig{ID: 7, Arithmetic: aggregator.Fixed, Exp: -20, Slots: 10})
	s.send("no number of workers", 0, s.scaleReport(0, 1, 0, 100))
	s.addJob(1, aggregator.JobConfig{ID: 8, Mode: aggregator.Sync, Exp: -46, Workers: 1, Slots: 10})
	s.send("exact arithmetic", 0, s.scaleReport(0, 1, 0, 100))
	return s.file
}

// epochVectors ends a job and begins it anew.
func epochVectors() *vectors.File {
	s := newScript("epochs", "a job with rounds ends and begins anew: frames of the old epoch change nothing")
	cfg := aggregator.JobConfig{ID: 9, Epoch: 65535, Mode: aggregator.Sync, Arithmetic: aggregator.Fixed, Exp: -20, Workers: 2, Slots: 2, MaxStripes: 1}
	s.addJob(2, cfg)
	payload := func(sender int, n ...uint32) []byte {
		return groupPayload(cfg, s.header(sender, 1, 0), 0, n)
	}
	s.send("round 0, worker 0", 0, payload(0, 1, 2))
	old := payload(1, 10, 20)
	s.removeJob()
	s.send("no job", 1, old)
	cfg.Epoch = 0
	s.addJob(2, cfg)
	s.send("the old epoch", 1, old)
	s.send("a scale report of the old epoch", 1, func() []byte {
		p := s.scaleReport(1, 1, 0, 9)
		binary.BigEndian.PutUint16(p[6:], 65535)
		return p
	}())
	s.send("round 0 again, worker 1 first", 1, payload(1, 100, 200))
	s.send("round 0, worker 0: complete, without what the old epoch added", 0, payload(0, 3, 4))
	return s.file
}

// readmissionVectors admits one of two senders anew.
func readmissionVectors() *vectors.File {
	s := newScript("readmission", "a sender is admitted anew: its numbers start over, and frames of its former epoch are refused")
	s.addJob(2, aggregator.JobConfig{ID: 9, Epoch: 65535, Mode: aggregator.FetchAdd, Exp: -20, Slots: 3})
	payload := func(sender int, seq uint32, value float32) []byte {
		return stripes(s.header(sender, seq, wire.FlagDense|wire.FlagWantSum), []bitsPair{{0, sender, math.Float32bits(value)}})
	}
	one, two := payload(0, 1, 1), payload(0, 2, 2)
	s.send("number 1", 0, one)
	s.send("the other sender, which stays", 1, payload(1, 1, 50))
	s.readmit(0, 0)
	s.send("a late copy of number 1", 0, one)
	s.send("number 2 of the former epoch, for the first time", 0, two)
	s.send("number 1 of the new epoch", 0, payload(0, 1, 100))
	s.send("a late copy of number 1", 0, one)
	s.send("number 1 of the new epoch again", 0, payload(0, 1, 100))
	s.send("the other sender again: its filter has not changed", 1, payload(1, 1, 50))
	s.readmit(0, 1)
	s.send("number 1 of a third epoch", 0, payload(0, 1, 1000))
	s.harvest()
	return s.file
}

// pageVectors is a job of three pages, the last with 30 slots.
func pageVectors(mode aggregator.Mode, a aggregator.Arithmetic) *vectors.File {
	const dense = wire.FlagDense
	s := newScript("pages-"+mode.String()+"-"+a.String(), mode.String()+" with "+a.String()+" arithmetic, two pages and 30 slots: the page of a stripe, and pages and slots that are none of the job's")
	s.addJob(2, aggregator.JobConfig{ID: 4, Epoch: 9, Mode: mode, Arithmetic: a, Exp: aggregator.DefaultExp(a), Slots: 2*aggregator.PageSlots + 30, MaxStripes: 3})
	x := func(v float64) uint32 { return number(a, v) }
	paged := func(p []byte, pages ...int) []byte {
		for i, page := range pages {
			stripe := wire.StripeAt(p, i)
			stripe.SetPage(page, stripe.Mask())
		}
		return p
	}
	row := []bitsPair{{0, 0, x(1.5)}, {1, 1, x(-0.25)}, {7, 2, x(1e-3)}}
	ends := []bitsPair{{3, 0, x(3)}, {4, 65535, x(-4)}}
	s.send("dense, the same numbers in all pages", 0, paged(stripes(s.header(0, 1, dense), row, row, row), 0, 1, 2))
	s.send("dense, pages out of order, one of them twice", 1, paged(stripes(s.header(1, 1, dense), row, ends, row), 2, 1, 2))
	s.send("lane-aligned, the same numbers in all pages", 0, paged(stripes(s.header(0, 2, 0), row, row, row[:2]), 0, 1, 2))
	s.send("lane-aligned, the last slots of a page", 1, paged(stripes(s.header(1, 2, 0), []bitsPair{{19, 2978, x(2)}, {20, 2977, x(2)}}), 1))
	s.send("lane-aligned, beyond the last slot of a page", 1, paged(stripes(s.header(1, 3, 0), []bitsPair{{19, 2978, x(2)}, {20, 2978, x(2)}}), 0))
	s.send("lane-aligned, the last slots of the job", 1, paged(stripes(s.header(1, 3, 0), []bitsPair{{7, 1, x(2)}, {21, 0, x(2)}}), 2))
	s.send("lane-aligned, beyond the last slot of the job", 1, paged(stripes(s.header(1, 4, 0), []bitsPair{{7, 1, x(2)}, {8, 1, x(2)}}), 2))
	s.send("dense, the last slot of the job", 0, paged(stripes(s.header(0, 3, dense), []bitsPair{{0, 29, x(2)}}), 2))
	s.send("dense, beyond the last slot of the job", 0, paged(stripes(s.header(0, 4, dense), row, []bitsPair{{5, 29, x(2)}, {6, 30, x(2)}}), 1, 2))
	s.send("a page beyond the job's", 0, paged(stripes(s.header(0, 4, dense), row, row), 2, 3))
	s.send("the last page that a mask can name", 0, paged(stripes(s.header(0, 4, dense), []bitsPair{{9, 0, x(1)}}), 1023))
	s.send("no pair of a page beyond the job's", 0, paged(stripes(s.header(0, 4, dense), row, nil, row), 1, 3, 2))
	s.send("number 4 again, of a page beyond the job's: not added", 0, paged(stripes(s.header(0, 4, dense), row), 3))
	s.send("the largest number, in two pages", 1, paged(stripes(s.header(1, 4, dense), []bitsPair{{0, 9, largest(a)}}, []bitsPair{{0, 9, largest(a)}}), 0, 2))
	s.send("the largest number again, after others: refused, with those, or cut", 1, paged(stripes(s.header(1, 5, dense), row, ends, []bitsPair{{0, 9, largest(a)}}), 2, 0, 2))
	if mode == aggregator.FetchAdd {
		s.send("WANT_SUM", 0, paged(stripes(s.header(0, 5, dense|wire.FlagWantSum), row, ends, row), 1, 1, 2))
		s.send("WANT_SUM again, of other pages", 0, paged(stripes(s.header(0, 5, dense|wire.FlagWantSum), row, ends, row), 2, 0, 0))
		s.send("WANT_SUM again, of a page beyond the job's", 0, paged(stripes(s.header(0, 5, dense|wire.FlagWantSum), row, row), 2, 3))
		s.send("WANT_SUM, lane-aligned", 1, paged(stripes(s.header(1, 6, wire.FlagWantSum), row, row, row[:2]), 0, 1, 2))
	}
	s.harvest()
	s.send("into the other bank", 1, paged(stripes(s.header(1, 7, dense), row, row), 2, 1))
	s.harvest()
	s.harvest()
	return s.file
}
