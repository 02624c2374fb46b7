// SPDX-License-Identifier: Apache-2.0

package aggregator_test

import (
	"fmt"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/aggregator/vectors"
	"github.com/libra-ina/libra/wire"
)

// ackedVectors is one group of slots, two workers, three rounds.
func ackedVectors(a aggregator.Arithmetic) *vectors.File {
	s := newScript("acked-"+a.String(), fmt.Sprintf("acked with %v arithmetic: two workers, one group of 24 slots, three rounds", a))
	cfg := aggregator.JobConfig{
		ID: 4, Epoch: 2, Mode: aggregator.Acked, Arithmetic: a, Exp: aggregator.DefaultExp(a), Workers: 2, Slots: 24, MaxStripes: 2,
	}
	s.addJob(2, cfg)
	payload := func(sender int, seq uint32, scale float64) []byte {
		numbers := make([]uint32, cfg.Slots)
		for i := range numbers {
			numbers[i] = number(a, scale*float64(i-11))
		}
		return groupPayload(cfg, s.header(sender, seq, 0), 0, numbers)
	}
	top := func(p []byte) []byte {
		wire.StripeAt(p, 0).SetBits(21, largest(a))
		return p
	}
	s.send("round 0, worker 0: plain ACK", 0, payload(0, 1, 0.1))
	s.send("worker 0 again: waiting for the other", 0, payload(0, 1, 0.1))
	s.send("worker 0 has a result that is not there", 0, s.taken(0, 1, 0, 0))
	s.send("round 0, worker 1: complete", 1, payload(1, 1, -0.03))
	s.send("worker 0 has missed the result", 0, payload(0, 1, 0.1))
	s.send("worker 1, which contributes to round 1 too early", 1, payload(1, 2, 3))
	s.send("worker 1 has the result: not answered", 1, s.taken(1, 1, 0, 0))
	s.send("worker 1 again: it has the result, and worker 0 has not", 1, s.taken(1, 1, 0, 0))
	s.send("worker 0 has missed the result again", 0, payload(0, 1, 0.1))
	s.send("worker 0 has the result: round 1 begins", 0, s.taken(0, 1, 0, 0))
	s.send("worker 1 has missed that", 1, s.taken(1, 1, 0, 0))
	s.send("a late copy of the contribution of worker 0: the round in progress is 1", 0, payload(0, 1, 0.1))
	s.send("round 1, worker 1, with the number that was refused in round 0", 1, payload(1, 2, 3))
	s.send("round 1, worker 1", 1, top(payload(1, 3, 3)))
	s.send("round 1, worker 0, with the largest number in rank 21: refused or cut", 0, top(payload(0, 2, 0.5)))
	s.send("the same number, less: refused again, or complete", 0, payload(0, 2, 0.5))
	s.send("worker 0, less, under another number: complete if it was refused", 0, payload(0, 3, 0.5))
	s.send("a late copy of the contribution of worker 0 to round 0: the result of round 1", 0, payload(0, 1, 0.1))
	s.send("a late copy of TAKEN of round 0", 0, s.taken(0, 1, 0, 0))
	s.send("worker 0 has the result of round 2", 0, s.taken(0, 3, 0, 2))
	s.send("worker 0 has the result of round 1", 0, s.taken(0, 3, 0, 1))
	s.send("worker 1 has the result of round 1", 1, s.taken(1, 3, 0, 1))
	s.send("round 2, worker 0: nothing is left of round 1", 0, payload(0, 4, 1))
	s.send("round 2, worker 1", 1, payload(1, 4, 1))
	return s.file
}

// takenVectors is about TAKEN frames: which are refused, which group they are of, and answers that
// say who has a result.
func takenVectors() *vectors.File {
	s := newScript("acked-rounds", "acked with fixed arithmetic: three groups of 44, 44 and 12 slots, three workers; TAKEN frames that are refused, quiet contributions, tags")
	cfg := aggregator.JobConfig{ID: 5, Epoch: 1, Mode: aggregator.Acked, Arithmetic: aggregator.Fixed, Exp: -20, Workers: 3, Slots: 100, MaxStripes: 2}
	s.addJob(3, cfg)
	sizes := []int{44, 44, 12}
	const quiet, cover, retx = wire.FlagQuiet, wire.FlagCover, wire.FlagRetx
	payload := func(sender int, seq uint32, group int, flags wire.Flags) []byte {
		numbers := make([]uint32, sizes[group])
		for i := range numbers {
			numbers[i] = uint32((sender + 1) * (1000*group + i))
		}
		return groupPayload(cfg, s.header(sender, seq, flags), group, numbers)
	}
	edit := func(about string, change func(p []byte) []byte) { s.send(about, 0, change(s.taken(0, 1, 0, 0))) }
	edit("no round", func(p []byte) []byte { return p[:wire.HeaderLen+4] })
	edit("too long", func(p []byte) []byte { return append(p, 0) })
	edit("no body", func(p []byte) []byte { return p[:wire.HeaderLen] })
	edit("beyond the last slot", func(p []byte) []byte { p[wire.HeaderLen+1] = 6; return p })
	edit("far beyond the last slot", func(p []byte) []byte { p[wire.HeaderLen] = 0xff; return p })
	edit("beyond the last rank, and within a group", func(p []byte) []byte { p[wire.HeaderLen+1] = 5; return p })
	edit("within a group", func(p []byte) []byte { p[wire.HeaderLen+1] = 1; return p })
	edit("a round before the first", func(p []byte) []byte { p[wire.HeaderLen+4] = 0xff; return p })
	edit("a round in progress, without contributions", func(p []byte) []byte { return p })
	for sender := range 2 {
		s.send("the last group, quiet: not answered", sender, payload(sender, 1, 2, quiet))
	}
	s.send("worker 0 asks: workers 0 and 1 have contributed", 0, payload(0, 1, 2, cover|retx))
	s.send("the last worker, quiet: the result goes to all", 2, payload(2, 1, 2, quiet))
	s.send("worker 0 asks: the result", 0, payload(0, 1, 2, cover|retx))
	s.send("group 0, worker 0", 0, payload(0, 2, 0, quiet))
	s.send("worker 2 has the result of the last group", 2, s.taken(2, 1, 2, 0))
	s.send("worker 0 has it", 0, s.taken(0, 1, 2, 0))
	s.send("worker 0 again: workers 0 and 2 have it", 0, s.taken(0, 1, 2, 0))
	again := s.taken(2, 1, 2, 0)
	wire.MarkRetx(again)
	s.send("worker 2 again, with RETX", 2, again)
	strange := s.taken(2, 9, 2, 0)
	strange[1], strange[wire.HeaderLen+3] = 0xff, 7
	s.send("worker 2 again, with all flags, another number, and bytes that are not zero: the same", 2, strange)
	tagged := withTag(seal(conformance.Host(1), conformance.Aggregator, s.taken(1, 1, 2, 0)))
	s.frame("worker 1 has it, with an 802.1Q tag: the answer to all has it too", tagged)
	s.send("worker 2 has missed the answer", 2, strange)
	s.send("worker 2 has the result of the last group's next round, of which there is none", 2, s.taken(2, 2, 2, 1))
	s.send("group 1 has not begun", 1, s.taken(1, 1, 1, 0))
	s.send("group 0, worker 1", 1, payload(1, 2, 0, 0))
	s.send("group 0, worker 2: the slots of the other groups are others", 2, payload(2, 2, 0, 0))
	for sender := range 3 {
		s.send("round 1 of the last group: nothing is left of round 0", sender, payload(sender, 3, 2, 0))
	}
	s.addJob(1, aggregator.JobConfig{ID: 6, Mode: aggregator.Sync, Exp: -46, Workers: 1, Slots: 10})
	s.send("a job in mode sync", 0, s.taken(0, 1, 0, 0))
	s.addJob(1, aggregator.JobConfig{ID: 7, Exp: -46, Slots: 10})
	s.send("a job without rounds", 0, s.taken(0, 1, 0, 0))
	s.send("a job without rounds, too long", 0, append(s.taken(0, 1, 0, 0), 0))
	return s.file
}
