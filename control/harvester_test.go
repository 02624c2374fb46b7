package control

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"

	"google.golang.org/grpc"

	pb "github.com/libra-ina/libra/control/controlpb"
)

// scripted is an aggregator whose harvest stream sends what it is told to and
// keeps what it is sent.
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
		&pb.HarvestChunk{Number: 4, Ranks: []uint32{1, 2}, Sums: []int64{10, 20}},
		&pb.HarvestChunk{Number: 4},
		&pb.HarvestChunk{Number: 4, Ranks: []uint32{3}, Sums: []int64{30}, Frames: 8, Pairs: 9, Last: true},
		&pb.HarvestChunk{Number: 5, Ranks: []uint32{4}, Sums: []int64{40}, Frames: 1, Pairs: 2, Last: true},
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

// TestBrokenHarvestIsNotApplied: a chunk whose ranks and sums do not pair, and an
// apply that fails, end the harvester with the number of the harvest.
func TestBrokenHarvestIsNotApplied(t *testing.T) {
	applied := 0
	count := func(*Harvest) error { applied++; return nil }
	s, err := harvestOf(t, count, &pb.HarvestChunk{Number: 6, Ranks: []uint32{1, 2, 3}, Sums: []int64{10}, Last: true})
	if want := "harvest 6: 3 ranks with 1 sums"; err == nil || err.Error() != want {
		t.Errorf("error %v, want %q", err, want)
	}
	if applied != 0 || len(s.sent) != 1 {
		t.Errorf("applied %d times, sent %v", applied, s.sent)
	}
	full := errors.New("disk full")
	s, err = harvestOf(t, func(*Harvest) error { return full }, &pb.HarvestChunk{Number: 9, Last: true})
	if !errors.Is(err, full) || err.Error() != "harvest 9: disk full" || len(s.sent) != 1 {
		t.Errorf("error %v, sent %v", err, s.sent)
	}
}
