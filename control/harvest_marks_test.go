// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/libra-ina/libra/aggregator"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// A harvest brings the marks of its bank; one without frames leaves those of the harvest before.
func TestHarvestHasMarks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startAggregator(t)
		job := l.create(t, spec())
		epoch := l.join(t)
		var got []Harvest
		h, stop := harvester(t, job, func(h *Harvest) error { got = append(got, *h); return nil })
		mark := aggregator.Mark{Sender: 1, Epoch: epoch}
		for i, seqs := range [][]uint32{{1, 3}, {2, 600}, nil, {602}} {
			for _, seq := range seqs {
				l.push(t, epoch, seq, 3, 0.5)
			}
			if err := h.Now(t.Context()); err != nil {
				t.Fatal(err)
			}
			want := []aggregator.Mark{mark}
			want[0].Newest, want[0].Applied[0] = []uint32{3, 600, 0, 602}[i], []uint64{0b1101, 0b1, 0, 0b101}[i]
			if seqs == nil {
				want = nil
			}
			if !slices.Equal(got[i].Marks, want) {
				t.Errorf("harvest %d has the marks %v, want %v", i, got[i].Marks, want)
			}
		}
		if err := stop(); err == nil {
			t.Error("the harvester has ended")
		}

		// An owner of an earlier release does not take them.
		l.push(t, epoch, 603, 3, 0.5)
		stream, err := l.client.Harvest(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, req := range []*pb.HarvestRequest{
			{What: &pb.HarvestRequest_Begin{Begin: &pb.HarvestBegin{Job: 5, Key: job.Key, Last: 4}}},
			{What: &pb.HarvestRequest_Now{Now: 1}},
		} {
			if err := stream.Send(req); err != nil {
				t.Fatal(err)
			}
		}
		if chunk, err := stream.Recv(); err != nil || chunk.Frames != 1 || chunk.Marks != nil {
			t.Errorf("an owner that takes no marks got %v, %v", chunk, err)
		}
	})
}

// The mark of a sender that is withdrawn comes with its last frames, and stays, until another
// admission has its number.
func TestMarksOfWithdrawnSendersStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startAggregator(t)
		var got Harvest
		h, _ := harvester(t, l.create(t, spec()), func(h *Harvest) error { got = *h; return nil })
		join := func(sender uint32) (uint16, func()) {
			t.Helper()
			ctx, vanish := context.WithCancel(t.Context())
			req := joinRequest()
			req.Sender = sender
			_, a, err := joinAs(ctx, l.client, req)
			if err != nil {
				t.Fatal(err)
			}
			return uint16(a.Epoch), vanish
		}
		mark := func(sender, epoch uint16, newest uint32) aggregator.Mark {
			m := aggregator.Mark{Sender: sender, Epoch: epoch, Newest: newest}
			m.Applied[0] = 1<<(newest+1) - 1
			return m
		}
		harvest := func(what string, want ...aggregator.Mark) {
			t.Helper()
			if err := h.Now(t.Context()); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got.Marks, want) {
				t.Errorf("%s: the marks are\n%v, want\n%v", what, got.Marks, want)
			}
		}
		one, vanish := join(1)
		three, _ := join(3)
		l.pushAs(t, 1, one, 1, 3, 0.5)
		harvest("both are there", mark(1, one, 1), mark(3, three, 0))
		l.pushAs(t, 1, one, 2, 3, 0.5)
		vanish()
		time.Sleep(DefaultGrace + time.Second)
		harvest("one is withdrawn", mark(1, one, 2), mark(3, three, 0))
		harvest("an empty harvest")
		two, _ := join(2)
		for seq := range uint32(2) {
			l.pushAs(t, 3, three, seq+1, 3, 0.5)
			harvest("it stays away", mark(1, one, 2), mark(2, two, 0), mark(3, three, seq+1))
		}
		one, _ = join(1)
		l.pushAs(t, 3, three, 3, 3, 0.5)
		harvest("its number is admitted again", mark(1, one, 0), mark(2, two, 0), mark(3, three, 3))
	})
}

// sentStream is a harvest stream that keeps what is sent.
type sentStream struct {
	harvestStream
	chunks []*pb.HarvestChunk
}

func (s *sentStream) Send(c *pb.HarvestChunk) error {
	s.chunks = append(s.chunks, proto.CloneOf(c))
	return nil
}

// No message gets larger by marks than one of sums, and all arrive.
func TestMarksOfManySenders(t *testing.T) {
	for _, senders := range []int{0, 1, 4, 5, chunkMarks, chunkMarks + 1, 3*chunkMarks + 1} {
		for _, slots := range []int{1, chunkSums, chunkSums + 1} {
			bank := &aggregator.Bank{Slots: make([]int64, slots), Frames: uint64(senders) * 512}
			for i := range bank.Slots {
				bank.Slots[i] = -1
			}
			for i := range senders {
				m := aggregator.Mark{Sender: uint16(i), Epoch: 65535, Newest: 1<<32 - 1}
				for k := range m.Applied {
					m.Applied[k] = 1<<64 - 1 - uint64(i)
				}
				bank.Marks = append(bank.Marks, m)
			}
			var sent sentStream
			if err := (&job{number: 1, frozen: bank}).sendHarvest(&sent, 1, &pb.HarvestBegin{Marks: true, Gaps: true}); err != nil {
				t.Fatal(err)
			}
			var got Harvest
			for i, c := range sent.chunks {
				if n := proto.Size(c); n > 32<<10 {
					t.Errorf("%d senders, %d slots: message %d has %d bytes", senders, slots, i, n)
				}
				if err := got.take(c); err != nil {
					t.Fatal(err)
				}
				if c.Last != (i == len(sent.chunks)-1) {
					t.Errorf("%d senders, %d slots: message %d of %d is the last: %v", senders, slots, i,
						len(sent.chunks), c.Last)
				}
			}
			if !slices.Equal(got.Marks, bank.Marks) || !slices.Equal(got.Sums, bank.Slots) {
				t.Errorf("%d senders, %d slots: %d marks and %d sums have arrived", senders, slots, len(got.Marks),
					len(got.Sums))
			}
		}
	}
}

// TestImpossibleMarksAreRefused checks that a harvest is not applied if its marks cannot be those
// of its bank.
func TestImpossibleMarksAreRefused(t *testing.T) {
	mark := func(sender, epoch, newest uint32, words ...uint64) *pb.HarvestMark {
		m := aggregator.Mark{}
		copy(m.Applied[:], words)
		out := marksMessage([]aggregator.Mark{m})[0]
		out.Sender, out.Epoch, out.Newest = sender, epoch, newest
		return out
	}
	short := mark(3, 7, 1)
	short.Applied = short.Applied[1:]
	for want, marks := range map[string][]*pb.HarvestMark{
		"": {mark(3, 7, 12, 0b1100_1111_0101)},
		"harvest 2: a mark of sender 65536 in epoch 7: both end at 65535": {mark(65536, 7, 10, 1)},
		"harvest 2: a mark of sender 3 in epoch 65536: both end at 65535": {mark(3, 65536, 10, 1)},
		"harvest 2: the mark of sender 3 has 63 bytes, want 64":           {short},
		"harvest 2: a mark of sender 2 after that of sender 3":            {mark(3, 7, 10, 0b11_0011_1100), mark(2, 7, 1)},
		"harvest 2: a mark of sender 3 after that of sender 3": {
			mark(3, 7, 10, 0b11_0011_1100), mark(3, 7, 10, 0b11_0011_1100)},
		"harvest 2: the mark of sender 3 goes back from frame 10 to frame 9": {mark(3, 7, 9, 0b1_1001_1110)},
		"harvest 2: the mark of sender 3 has lost frame 8, which an earlier harvest has": {
			mark(3, 7, 12, 0b1100_1110_0101)},
		"harvest 2: the marks have 4 frames that no earlier harvest has, but it has 3": {
			mark(3, 7, 12, 0b1100_1111_0111), mark(4, 0, 1, 0b11)},
		"harvest 2: the marks have 5 frames that no earlier harvest has, but it has 3": {
			mark(3, 8, 12, 0b1111_1000_0000)},
	} {
		applied := 0
		_, err := harvestOf(t, func(*Harvest) error { applied++; return nil },
			&pb.HarvestChunk{Number: 1, Frames: 6, Last: true, Marks: []*pb.HarvestMark{mark(3, 7, 10, 0b11_0011_1100)}},
			&pb.HarvestChunk{Number: 2, Frames: 3, Last: true, Marks: marks},
		)
		switch {
		case want == "":
			if !errors.Is(err, io.EOF) || applied != 2 {
				t.Errorf("a possible mark: applied %d times, %v", applied, err)
			}
		case err == nil || err.Error() != want || applied != 1:
			t.Errorf("applied %d times, error %v, want %q", applied, err, want)
		}
	}
}
