// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/libra-ina/libra/aggregator"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// sentBank returns the messages in which a bank is sent to an owner.
func sentBank(t *testing.T, bank *aggregator.Bank, owner *pb.HarvestBegin) []*pb.HarvestChunk {
	t.Helper()
	var sent sentStream
	if err := (&job{number: 1, frozen: bank}).sendHarvest(&sent, 1, owner); err != nil {
		t.Fatal(err)
	}
	for i, c := range sent.chunks {
		if n := proto.Size(c); n > 32<<10 {
			t.Errorf("message %d of %d has %d bytes", i, len(sent.chunks), n)
		}
	}
	return sent.chunks
}

// The messages are as the protocol describes them, with gaps and without.
func TestGroupsOfSums(t *testing.T) {
	slots := make([]int64, 21*groupSlots+2)
	slots[1], slots[3], slots[129], slots[len(slots)-1] = -2, 5, math.MinInt64, 7
	bank := &aggregator.Bank{Slots: slots}
	first := words(0b1010, math.MaxUint64-1, 5, 0, 0b10, 1<<63)
	for _, c := range []struct {
		owner *pb.HarvestBegin
		want  []*pb.HarvestChunk
	}{
		{&pb.HarvestBegin{}, []*pb.HarvestChunk{
			{Number: 1, Sums: first},
			{Number: 1, First: 21 * groupSlots, Sums: words(0b10, 7), Last: true, Request: 1},
		}},
		{&pb.HarvestBegin{Gaps: true}, []*pb.HarvestChunk{{
			Number: 1, Last: true, Request: 1, Gaps: []uint32{1, 1, 1, 18},
			Sums: words(0b1010, math.MaxUint64-1, 5, 0b10, 1<<63, 0b10, 7),
		}}},
	} {
		got := sentBank(t, bank, c.owner)
		if !slices.EqualFunc(got, c.want, func(a, b *pb.HarvestChunk) bool { return proto.Equal(a, b) }) {
			t.Errorf("an owner that says %v gets %v, want %v", c.owner, got, c.want)
		}
	}
	for _, gaps := range []bool{false, true} {
		empty := sentBank(t, &aggregator.Bank{Slots: make([]int64, chunkSums+1)}, &pb.HarvestBegin{Gaps: gaps})
		if len(empty) != 1 || empty[0].Sums != nil {
			t.Errorf("a bank of zeros becomes %v", empty)
		}
	}
}

// Each sum arrives once, under its rank, wherever there are zeros and blocks that no frame has
// touched; an owner that takes gaps gets no more bytes for it.
func TestSumsOfAnyBank(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, blocks := range []int{1, 2, 5, 40} { // one of so many is touched
		for _, part := range []int{1, 2, 30} { // one of so many of its slots holds a sum
			for _, n := range []int{1, 63, 64, 65, chunkSums - 1, chunkSums, chunkSums + 1, 10*chunkSums + 17} {
				t.Run(fmt.Sprint(blocks, " ", part, " ", n), func(t *testing.T) {
					bank := &aggregator.Bank{Slots: make([]int64, n), Touched: make([]uint8, (n+groupSlots-1)/groupSlots)}
					var want Harvest
					for i := range bank.Touched {
						if rng.IntN(blocks) > 0 {
							continue
						}
						bank.Touched[i] = 1
						for rank := i * groupSlots; rank < min((i+1)*groupSlots, n); rank++ {
							if rng.IntN(part) == 0 {
								bank.Slots[rank] = int64(rng.Uint64() | 1)
								want.Ranks, want.Sums = append(want.Ranks, uint32(rank)), append(want.Sums, bank.Slots[rank])
							}
						}
					}
					var sizes []int
					for _, gaps := range []bool{false, true} {
						got, size := Harvest{}, 0
						for _, c := range sentBank(t, bank, &pb.HarvestBegin{Gaps: gaps}) {
							size += proto.Size(c)
							if !gaps && c.Gaps != nil {
								t.Error("an owner that takes no gaps gets some")
							}
							if err := got.take(c); err != nil {
								t.Fatal(err)
							}
						}
						if !slices.Equal(got.Ranks, want.Ranks) || !slices.Equal(got.Sums, want.Sums) {
							t.Errorf("with gaps %v: %d sums, want %d", gaps, len(got.Sums), len(want.Sums))
						}
						sizes = append(sizes, size)
					}
					if sizes[1] > sizes[0] {
						t.Errorf("%d bytes with gaps, %d without", sizes[1], sizes[0])
					}
				})
			}
		}
	}
}

// A server without gaps, and a switch without them, work with newer ones.
func TestHarvestOfOlderPeers(t *testing.T) {
	chunk := &pb.HarvestChunk{Number: 1, First: 64, Sums: words(0, 0b1, 5), Last: true}
	text, err := proto.Marshal(&pb.HarvestChunk{Number: 1, First: 64, Sums: words(0b1, 5), Gaps: []uint32{0, 1}, Last: true})
	if err != nil {
		t.Fatal(err)
	}
	var got Harvest
	if err := got.take(chunk); err != nil || !slices.Equal(got.Ranks, []uint32{128}) {
		t.Errorf("ranks %v, %v", got.Ranks, err)
	}
	// A server of an older release sees a field that it does not know, and refuses it: without asking
	// it gets none.
	if !bytes.Contains(text, []byte{10<<3 | 2, 2, 0, 1}) {
		t.Errorf("gaps are not field 10: % x", text)
	}
}
