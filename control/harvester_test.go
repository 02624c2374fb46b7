// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"slices"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"

	"github.com/libra-ina/libra/aggregator"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// scripted is an aggregator whose harvest stream sends given messages and records received ones.
type scripted struct {
	pb.AggregatorClient
	grpc.BidiStreamingClient[pb.HarvestRequest, pb.HarvestChunk]
	chunks []*pb.HarvestChunk
	sent   []*pb.HarvestRequest
}

func (s *scripted) Harvest(context.Context, ...grpc.CallOption) (grpc.BidiStreamingClient[pb.HarvestRequest, pb.HarvestChunk], error) {
	return s, nil
}

func (s *scripted) Recv() (*pb.HarvestChunk, error) {
	if len(s.chunks) == 0 {
		return nil, io.EOF
	}
	c := s.chunks[0]
	s.chunks = s.chunks[1:]
	return c, nil
}

func (s *scripted) Send(r *pb.HarvestRequest) error {
	s.sent = append(s.sent, r)
	return nil
}

// harvestOf runs a harvester over chunks until one fails or they end.
func harvestOf(t *testing.T, apply func(*Harvest) error, chunks ...*pb.HarvestChunk) (*scripted, error) {
	t.Helper()
	s := &scripted{chunks: chunks}
	h := NewHarvester(&Owned{ID: 7, Job: &pb.Job{Key: []byte("key")}, client: s}, apply, quiet)
	return s, h.Run(t.Context())
}

// TestHarvestOfSeveralChunks joins the chunks of each harvest, begins the next one
// empty, and acknowledges each by its number.
func TestHarvestOfSeveralChunks(t *testing.T) {
	var got []Harvest
	apply := func(h *Harvest) error {
		c := *h
		c.Ranks, c.Sums = slices.Clone(h.Ranks), slices.Clone(h.Sums)
		got = append(got, c)
		return nil
	}
	s, err := harvestOf(t, apply,
		&pb.HarvestChunk{Number: 4, First: 1, Sums: words(0b11, 10, 20)},
		&pb.HarvestChunk{Number: 4},
		&pb.HarvestChunk{Number: 4, First: 2, Sums: words(0b10, 30), Frames: 8, Pairs: 9, Last: true},
		&pb.HarvestChunk{Number: 5, Sums: words(0b10000, 40), Frames: 1, Pairs: 2, Last: true},
	)
	if !errors.Is(err, io.EOF) {
		t.Errorf("ended with %v", err)
	}
	if len(got) != 2 {
		t.Fatalf("%d harvests: %+v", len(got), got)
	}
	first, second := got[0], got[1]
	if first.Number != 4 || first.Frames != 8 || first.Pairs != 9 || first.Chunks != 3 ||
		!slices.Equal(first.Ranks, []uint32{1, 2, 3}) || !slices.Equal(first.Sums, []int64{10, 20, 30}) {
		t.Errorf("first harvest %+v", first)
	}
	if second.Number != 5 || second.Frames != 1 || second.Pairs != 2 || second.Chunks != 1 ||
		!slices.Equal(second.Ranks, []uint32{4}) || !slices.Equal(second.Sums, []int64{40}) {
		t.Errorf("second harvest %+v", second)
	}
	var done []uint64
	for _, r := range s.sent {
		if r.GetDone() != 0 {
			done = append(done, r.GetDone())
		}
	}
	begin := s.sent[0].GetBegin()
	if begin == nil || begin.Job != 7 || string(begin.Key) != "key" || begin.Last != 0 || !slices.Equal(done, []uint64{4, 5}) {
		t.Errorf("began with %v, acknowledged %d", begin, done)
	}
}

// words returns the body of a harvest message.
func words(w ...uint64) (b []byte) {
	for _, x := range w {
		b = binary.LittleEndian.AppendUint64(b, x)
	}
	return b
}

// TestBrokenHarvestIsNotApplied checks that a chunk with too few sums or with impossible slots, one
// of another version, and an apply that fails, end the harvester with the number of the harvest.
func TestBrokenHarvestIsNotApplied(t *testing.T) {
	other := &pb.HarvestChunk{Number: 6, Last: true}
	other.ProtoReflect().SetUnknown([]byte{2<<3 | 2, 1, 7}) // ranks
	for want, chunk := range map[string]*pb.HarvestChunk{
		"harvest 6: 3 sums from rank 70 on have 16 bytes": {Number: 6, First: 6, Sums: words(0b1, 10, 0b111, 10, 20), Last: true},
		"harvest 6: 1 sums from rank 0 on have 7 bytes":   {Number: 6, Sums: words(0b1, 10)[:15], Last: true},
		"harvest 6: a gap without a length at rank 128":   {Number: 6, First: 128, Sums: words(0b1, 10), Gaps: []uint32{1}, Last: true},
		"harvest 6: a sum of rank 67108928, but there are at most 67108864 slots": {Number: 6, Sums: words(0b1, 10, 0b1, 20),
			Gaps: []uint32{1, aggregator.MaxSlots / groupSlots}, Last: true},
		"harvest 6: 5 bytes are left over at rank 64": {Number: 6, Sums: append(words(0b1, 10), 1, 2, 3, 4, 5), Last: true},
		"harvest 6: a sum of rank 67108864, but there are at most 67108864 slots": {
			Number: 6, First: aggregator.MaxSlots - 2, Sums: words(0b101, 10, 20), Last: true},
		"harvest 6: a sum of rank 4294967358, but there are at most 67108864 slots": {
			Number: 6, First: math.MaxUint32, Sums: words(1<<63, 10), Last: true},
		"harvest 6: the aggregator sends sums in a format that this version of libra does not read: run the same version on all hosts": other,
	} {
		applied := 0
		s, err := harvestOf(t, func(*Harvest) error { applied++; return nil }, chunk)
		if err == nil || err.Error() != want {
			t.Errorf("error %v, want %q", err, want)
		}
		if applied != 0 || len(s.sent) != 1 {
			t.Errorf("%s: applied %d times, sent %v", want, applied, s.sent)
		}
	}
	full := errors.New("disk full")
	s, err := harvestOf(t, func(*Harvest) error { return full }, &pb.HarvestChunk{Number: 9, Last: true})
	if !errors.Is(err, full) || err.Error() != "harvest 9: disk full" || len(s.sent) != 1 {
		t.Errorf("error %v, sent %v", err, s.sent)
	}
}

// When a job is finished, all requests are answered: those that wait, and those that come later,
// though no harvest comes, and though Run ends.
func TestFinishAnswersRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHarvester(&Owned{ID: 7, Job: &pb.Job{}, client: &scripted{}}, func(*Harvest) error { return nil }, quiet)
		waits := make(chan error, 1)
		go func() { waits <- h.Now(t.Context()) }()
		synctest.Wait()
		select {
		case err := <-waits:
			t.Fatalf("without a harvest the request is answered by %v", err)
		default:
		}
		h.Finish()
		if err := <-waits; err != nil {
			t.Errorf("the request that waits: %v", err)
		}
		if err := h.Now(t.Context()); err != nil {
			t.Errorf("one after that: %v", err)
		}
		if err := h.Run(t.Context()); !errors.Is(err, io.EOF) {
			t.Errorf("Run ends with %v", err)
		}
		if err := h.Now(t.Context()); err != nil {
			t.Errorf("one after the end of Run: %v", err)
		}
	})
}
