// SPDX-License-Identifier: Apache-2.0

package aggregator_test

import (
	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/vectors"
	"github.com/libra-ina/libra/wire"
)

// refusedVectors is about frames whose sum is out of range, and the copies of them that come when
// the bank is empty again: they are refused for good.
func refusedVectors(name string, mode aggregator.Mode, most int) *vectors.File {
	s := newScript(name, mode.String()+": sums out of range, and what comes with the number of such a frame after a harvest")
	s.addJob(2, aggregator.JobConfig{
		ID: 11, Epoch: 21, Mode: mode, Exp: aggregator.DefaultExp(aggregator.Exact), Slots: 48, MaxStripes: most, Layouts: aggregator.Aligned,
	})
	const quiet, cover, retx = wire.FlagQuiet, wire.FlagCover, wire.FlagRetx
	top, one := largest(aggregator.Exact), number(aggregator.Exact, 1)
	send := func(about string, seq uint32, flags wire.Flags, pairs ...bitsPair) {
		if most == 1 {
			flags &^= quiet | cover // a switch ignores them
		}
		s.send(about, 0, stripes(s.header(0, seq, flags), pairs))
	}
	much := []bitsPair{{3, 0, one}, {10, 0, top}} // too much for what is there
	send("the largest number", 1, 0, much...)
	send("the largest again, quiet: refused", 2, quiet, much...)
	send("its repetition", 2, retx|cover, much...)
	send("quiet, behind it: answered, by a cover of 1 and 3", 3, quiet, bitsPair{3, 0, one})
	send("quiet, behind one that is applied", 4, quiet, bitsPair{3, 0, one})
	send("a rank that is not there: depends on nothing, and is not remembered", 5, 0, bitsPair{10, 2, one})
	send("the number of it, with a rank that is there", 5, 0, bitsPair{10, 0, one ^ 1<<31})
	s.harvest()
	for _, f := range []wire.Flags{0, retx, quiet, retx | cover} {
		send("a copy of number 2, after the harvest: refused", 2, f, much...)
	}
	send("number 2 with other contents", 2, 0, bitsPair{3, 0, one})
	if mode == aggregator.FetchAdd {
		send("a copy of number 2 that wants the sums", 2, wire.FlagWantSum, much...)
		send("number 2, a rank that is not there, and the sums", 2, wire.FlagWantSum, bitsPair{10, 2, one})
	}
	send("asks: covers 1 and 3 to 5", 6, cover, much...)
	send("refused in the new bank", 7, cover, bitsPair{21, 0, one}, bitsPair{10, 0, top})
	send("and again, first of all for lane 3 now", 7, cover, bitsPair{3, 0, top ^ 1<<31}, bitsPair{10, 0, top})
	s.harvest()
	s.harvest() // 7 comes when the bank has been swapped twice
	send("a copy of number 7: the lane is that of the first time", 7, 0, bitsPair{10, 0, top})
	send("number 1026 takes the place of number 2", 1026, 0, bitsPair{5, 0, one})
	send("number 2, long after its answer: not added", 2, 0, much...)
	send("the largest number, for what follows", 1027, 0, much...)
	send("number 1028, refused, takes the place of number 4", 1028, cover, much...)
	send("number 4, long after its answer", 4, cover, much...)
	send("number 1028 again", 1028, 0, much...)
	send("number 2052 takes the place of a refused one", 2052, cover, bitsPair{5, 0, one})
	s.readmit(0, 22)
	send("number 2, after a new admission", 2, cover, bitsPair{5, 0, one})
	send("number 7, likewise", 7, cover, bitsPair{5, 0, one})
	s.harvest()
	s.harvest()
	return s.file
}
