// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/internal/num/fixedpoint"
	"github.com/libra-ina/libra/wire"
)

var (
	quiet    = slog.New(slog.DiscardHandler)
	workerIP = netip.MustParseAddr("192.0.2.7")
	hotSet   = []byte("fingerprint")
)

// libras is a running aggregator service over the model, with the connection of
// a parameter server's host.
type libras struct {
	end context.CancelFunc // ends the service
	*network
	model   *aggregator.Model
	service *Aggregator
	host    *client
	client  pb.AggregatorClient
}

func startAggregator(t *testing.T, change ...func(*AggregatorConfig)) *libras {
	t.Helper()
	model, err := aggregator.NewModel(aggregator.Config{})
	if err != nil {
		t.Fatal(err)
	}
	cfg := AggregatorConfig{Plane: model, Stripes: 10, Dense: true, Log: quiet}
	for _, f := range change {
		f(&cfg)
	}
	ctx, end := context.WithCancel(t.Context())
	l := &libras{model: model, service: NewAggregator(ctx, cfg), end: end}
	t.Cleanup(l.service.Close)
	l.network = newNetwork(t, access.Security{}, func(s *grpc.Server) { pb.RegisterAggregatorServer(s, l.service) })
	l.host = l.dial(t, access.Security{}, "192.0.2.2")
	l.client = pb.NewAggregatorClient(l.host)
	return l
}

func spec() *pb.JobSpec {
	return &pb.JobSpec{
		Job: 5, Mode: pb.Mode_MODE_COMBINE, Arithmetic: pb.Arithmetic_ARITHMETIC_EXACT,
		Exponent: proto.Int32(fixedpoint.DefaultExp), Slots: 100, HotSet: hotSet,
	}
}

// create creates a job and holds it until the test ends.
func (l *libras) create(t *testing.T, spec *pb.JobSpec) *Owned {
	t.Helper()
	job, err := CreateJob(t.Context(), l.client, spec, 0, quiet)
	if err == nil {
		err = job.Hold(t.Context(), func(error) {})
	}
	if err != nil {
		t.Fatal(err)
	}
	return job
}

func (l *libras) stats(t *testing.T) *pb.AggregatorStats {
	t.Helper()
	st, err := l.client.Stats(t.Context(), &pb.StatsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func joinRequest() *pb.JoinRequest {
	return &pb.JoinRequest{Job: 5, Sender: 1, Ip: workerIP.AsSlice(), HotSet: hotSet}
}

// joinAs joins until the context ends.
func joinAs(ctx context.Context, client pb.AggregatorClient, req *pb.JoinRequest) (grpc.ServerStreamingClient[pb.Admission], *pb.Admission, error) {
	stream, err := client.Join(ctx, req)
	if err != nil {
		return nil, nil, err
	}
	a, err := stream.Recv()
	return stream, a, err
}

// join admits sender 1 until the test ends, and returns its epoch.
func (l *libras) join(t *testing.T) (epoch uint16) {
	t.Helper()
	_, a, err := joinAs(t.Context(), l.client, joinRequest())
	if err != nil {
		t.Fatal(err)
	}
	return uint16(a.Epoch)
}

// push sends one pair of sender 1 through the data plane.
func (l *libras) push(t *testing.T, epoch uint16, seq uint32, rank uint16, value float32) {
	t.Helper()
	l.pushAs(t, 1, epoch, seq, rank, value)
}

func (l *libras) pushAs(t *testing.T, sender, epoch uint16, seq uint32, rank uint16, value float32) {
	t.Helper()
	payload, reply := make([]byte, wire.HotLen(1)), make([]byte, aggregator.MaxReplyPayload)
	wire.Header{Type: wire.TypeHot, Flags: wire.FlagDense, Job: 5, Sender: sender, Epoch: epoch, Seq: seq}.Put(payload)
	s := wire.StripeAt(payload, 0)
	s.SetMask(1)
	s.SetSlot(0, rank)
	s.SetValue(0, value)
	l.acknowledged(t, payload, reply)
}

// pushAll pushes 1 to each of the first n slots, as frames 1 and following.
func (l *libras) pushAll(t *testing.T, epoch uint16, n int) {
	t.Helper()
	payload, reply := make([]byte, wire.HotLen(1)), make([]byte, aggregator.MaxReplyPayload)
	for first := 0; first < n; first += wire.Lanes {
		wire.Header{Type: wire.TypeHot, Flags: wire.FlagDense, Job: 5, Sender: 1, Epoch: epoch, Seq: uint32(wire.FirstSeq + first/wire.Lanes)}.Put(payload)
		s := wire.StripeAt(payload, 0)
		s.Clear()
		s.SetMask(1<<min(wire.Lanes, n-first) - 1)
		for lane := range min(wire.Lanes, n-first) {
			s.SetSlot(lane, uint16(first+lane))
			s.SetValue(lane, 1)
		}
		l.acknowledged(t, payload, reply)
	}
}

func (l *libras) acknowledged(t *testing.T, payload, reply []byte) {
	t.Helper()
	_, n := l.model.ProcessPayload(netip.AddrPortFrom(workerIP, wire.DefaultPort), payload, reply)
	if h, err := wire.ParseHeader(reply[:n]); err != nil || h.Type != wire.TypeAck {
		t.Fatalf("frame got %v, %v; want an ACK", h.Type, err)
	}
}

// sums collects harvests, like a parameter server.
type sums struct {
	mu      sync.Mutex
	seen    map[uint64]bool
	byRank  map[uint32]int64
	numbers []uint64 // in the order of arrival
	frames  uint64
	pairs   uint64
	repeats int
	failing error // returned by apply while set
}

func (s *sums) apply(h *Harvest) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failing != nil {
		return s.failing
	}
	if s.seen[h.Number] {
		s.repeats++
		return nil
	}
	s.seen[h.Number] = true
	s.numbers = append(s.numbers, h.Number)
	s.frames += h.Frames
	s.pairs += h.Pairs
	for i, rank := range h.Ranks {
		s.byRank[rank] += h.Sums[i]
	}
	return nil
}

func (s *sums) rank(r uint32) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byRank[r]
}

func (s *sums) total() (sum int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range s.byRank {
		sum += v
	}
	return sum
}

// count returns the number of harvests, and of the frames in them.
func (s *sums) count() (harvests int, frames uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.numbers), s.frames
}

func newSums() *sums { return &sums{seen: map[uint64]bool{}, byRank: map[uint32]int64{}} }

func units(t *testing.T, v float32) int64 {
	t.Helper()
	n, err := fixedpoint.Format{Exp: fixedpoint.DefaultExp}.FromFloat32(v)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
