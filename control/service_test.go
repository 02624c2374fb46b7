package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/libra-ina/libra/aggregator"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/internal/fixedpoint"
	"github.com/libra-ina/libra/wire"
)

var (
	quiet    = slog.New(slog.DiscardHandler)
	workerIP = netip.MustParseAddr("192.0.2.7")
	hotSet   = []byte("fingerprint")
)

// serve starts a gRPC server on loopback and returns a connection to it.
func serve(t *testing.T, sec Security, register func(*grpc.Server)) *grpc.ClientConn {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := NewServer(sec)
	register(s)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	conn, err := Dial(t.Context(), "aggregator", l.Addr().(*net.TCPAddr).AddrPort(), sec, 5*time.Second, quiet)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// libras is a running aggregator service over the model.
type libras struct {
	model  *aggregator.Model
	client pb.AggregatorClient
	target string // of the connection
}

func startAggregator(t *testing.T) libras { return startWithSlots(t, 0) }

func startWithSlots(t *testing.T, slots int) libras {
	t.Helper()
	model, err := aggregator.NewModel(aggregator.Config{})
	if err != nil {
		t.Fatal(err)
	}
	conn := serve(t, Security{}, func(s *grpc.Server) {
		pb.RegisterAggregatorServer(s, NewAggregator(t.Context(), AggregatorConfig{Plane: model, Stripes: 10, Dense: true, Slots: slots, Log: quiet}))
	})
	return libras{model, pb.NewAggregatorClient(conn), conn.Target()}
}

func spec() *pb.JobSpec {
	return &pb.JobSpec{
		Job: 5, Mode: pb.Mode_MODE_COMBINE, Arithmetic: pb.Arithmetic_ARITHMETIC_EXACT,
		Exponent: proto.Int32(fixedpoint.DefaultExp), Slots: 100, HotSet: hotSet,
	}
}

func (l libras) createJob(t *testing.T, spec *pb.JobSpec) uint16 {
	t.Helper()
	job, err := l.client.CreateJob(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return uint16(job.Epoch)
}

// join admits sender 1 for as long as the context lives.
func (l libras) join(ctx context.Context) (*pb.Admission, error) {
	stream, err := l.client.Join(ctx, &pb.JoinRequest{Job: 5, Sender: 1, Ip: workerIP.AsSlice(), HotSet: hotSet})
	if err != nil {
		return nil, err
	}
	return stream.Recv()
}

// push sends one pair through the data plane.
func (l libras) push(t *testing.T, epoch uint16, seq uint32, rank uint16, value float32) {
	t.Helper()
	payload, reply := make([]byte, wire.HotLen(1)), make([]byte, aggregator.MaxReplyPayload)
	wire.Header{Type: wire.TypeHot, Flags: wire.FlagDense, Job: 5, Sender: 1, Epoch: epoch, Seq: seq}.Put(payload)
	s := wire.StripeAt(payload, 0)
	s.SetMask(1)
	s.SetSlot(0, rank)
	s.SetValue(0, value)
	l.acknowledged(t, payload, reply)
}

// pushAll pushes 1 to each of the first n slots, as frames 1 and following.
func (l libras) pushAll(t *testing.T, epoch uint16, n int) {
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

func (l libras) acknowledged(t *testing.T, payload, reply []byte) {
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
	for i, rank := range h.Ranks {
		s.byRank[rank] += h.Sums[i]
	}
	return nil
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

func TestHarvestDeliversEverySumOnce(t *testing.T) {
	l := startAggregator(t)
	epoch := l.createJob(t, spec())
	if _, err := l.join(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := newSums()
	h := NewHarvester(l.client, 5, got.apply, quiet)
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- h.Run(ctx) }()

	seq, want := uint32(wire.FirstSeq), int64(0)
	for round := range 5 {
		for range 10 {
			l.push(t, epoch, seq, 3, 0.5)
			seq++
			want += units(t, 0.5)
		}
		if err := h.Now(t.Context()); err != nil {
			t.Fatal(err)
		}
		got.mu.Lock()
		if got.byRank[3] != want {
			t.Fatalf("round %d: sum %d, want %d", round, got.byRank[3], want)
		}
		got.mu.Unlock()
	}
	cancel()
	if err := <-ran; !errors.Is(err, context.Canceled) {
		t.Errorf("Run ended with %v", err)
	}
	if err := h.Now(t.Context()); err == nil {
		t.Error("Now succeeds on a harvester that has ended")
	}
}

// A harvest whose acknowledgement never came is sent again on the next stream,
// under the same number, and nothing is lost in between.
func TestUnacknowledgedHarvestIsSentAgain(t *testing.T) {
	l := startAggregator(t)
	epoch := l.createJob(t, spec())
	if _, err := l.join(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.push(t, epoch, 1, 9, 1)

	broken := newSums()
	broken.failing = errors.New("disk full")
	first := NewHarvester(l.client, 5, broken.apply, quiet)
	ran := make(chan error, 1)
	go func() { ran <- first.Run(t.Context()) }()
	if err := first.Now(t.Context()); err == nil {
		t.Fatal("a harvest that could not be applied counts as done")
	}
	if err := <-ran; !errors.Is(err, broken.failing) {
		t.Fatalf("Run ended with %v", err)
	}
	l.push(t, epoch, 2, 9, 2) // into the other bank

	got := newSums()
	second := NewHarvester(l.client, 5, got.apply, quiet)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	// The first stream holds the harvest until the service has seen it break.
	go func() {
		for {
			if err := second.Run(ctx); status.Code(err) != codes.AlreadyExists {
				return
			}
		}
	}()
	deadline := time.Now().Add(10 * time.Second)
	for {
		if err := second.Now(t.Context()); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the second server gets no harvest")
		}
	}
	if want := units(t, 3); got.byRank[9] != want {
		t.Errorf("sum %d, want %d", got.byRank[9], want)
	}
}

func TestPeriodicHarvest(t *testing.T) {
	l := startAggregator(t)
	s := spec()
	s.HarvestPeriodUs = 1000
	epoch := l.createJob(t, s)
	if _, err := l.join(t.Context()); err != nil {
		t.Fatal(err)
	}
	applied := make(chan *Harvest, 100)
	h := NewHarvester(l.client, 5, func(h *Harvest) error {
		c := *h
		applied <- &c
		return nil
	}, quiet)
	go func() { _ = h.Run(t.Context()) }()
	l.push(t, epoch, 1, 0, 1)
	for h := range applied {
		if h.Frames == 1 && h.Pairs == 1 {
			return
		}
		if h.Frames > 1 {
			t.Fatalf("harvest of %d frames", h.Frames)
		}
	}
}

func TestJoinLastsAsLongAsItsStream(t *testing.T) {
	l := startAggregator(t)
	epoch := l.createJob(t, spec())
	ctx, leave := context.WithCancel(t.Context())
	a, err := l.join(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if uint16(a.Epoch) != epoch || a.Stripes != 10 || !a.Dense || a.Window != wire.DefaultWindow {
		t.Errorf("admission %v", a)
	}
	if _, err := l.join(t.Context()); status.Code(err) != codes.AlreadyExists {
		t.Errorf("a second sender 1 got %v", err)
	}
	leave()
	deadline := time.Now().Add(10 * time.Second)
	for {
		if _, err := l.join(t.Context()); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("a sender that left cannot come back")
		}
	}
}

func TestRefusedRequests(t *testing.T) {
	l := startAggregator(t)
	l.createJob(t, spec())
	l.createJob(t, spec()) // the same again is no mistake
	for name, c := range map[string]struct {
		change func(*pb.JobSpec)
		want   codes.Code
	}{
		"other spec":     {func(s *pb.JobSpec) { s.Slots = 7 }, codes.AlreadyExists},
		"job id":         {func(s *pb.JobSpec) { s.Job = 256 }, codes.InvalidArgument},
		"huge job id":    {func(s *pb.JobSpec) { s.Job = 1 << 16 }, codes.InvalidArgument},
		"mode":           {func(s *pb.JobSpec) { s.Job, s.Mode = 6, 99 }, codes.InvalidArgument},
		"arithmetic":     {func(s *pb.JobSpec) { s.Job, s.Arithmetic = 6, 0 }, codes.InvalidArgument},
		"too many slots": {func(s *pb.JobSpec) { s.Job, s.Slots = 6, aggregator.MaxSlots+1 }, codes.ResourceExhausted},
		"no slots":       {func(s *pb.JobSpec) { s.Job, s.Slots = 6, 0 }, codes.InvalidArgument},
		"exponent":       {func(s *pb.JobSpec) { s.Job, s.Exponent = 6, proto.Int32(-1000) }, codes.InvalidArgument},
		"stripes":        {func(s *pb.JobSpec) { s.Job, s.Stripes = 6, 11 }, codes.InvalidArgument},
		"lut exponent": {func(s *pb.JobSpec) {
			s.Job, s.Arithmetic = 6, pb.Arithmetic_ARITHMETIC_LUT
		}, codes.InvalidArgument},
		"workers without rounds": {func(s *pb.JobSpec) { s.Job, s.Workers = 6, 2 }, codes.InvalidArgument},
		"sync without workers":   {func(s *pb.JobSpec) { s.Job, s.Mode = 6, pb.Mode_MODE_SYNC }, codes.InvalidArgument},
		"too many workers": {func(s *pb.JobSpec) {
			s.Job, s.Mode, s.Workers = 6, pb.Mode_MODE_SYNC, aggregator.MaxWorkers+1
		}, codes.InvalidArgument},
		"absurdly many workers": {func(s *pb.JobSpec) {
			s.Job, s.Mode, s.Workers = 6, pb.Mode_MODE_SYNC, 1<<32-1
		}, codes.InvalidArgument},
		"sync by time": {func(s *pb.JobSpec) {
			s.Job, s.Mode, s.Workers, s.HarvestPeriodUs = 6, pb.Mode_MODE_SYNC, 2, 1000
		}, codes.InvalidArgument},
		"sync by count": {func(s *pb.JobSpec) {
			s.Job, s.Mode, s.Workers, s.HarvestFrames = 6, pb.Mode_MODE_SYNC, 2, 1000
		}, codes.InvalidArgument},
	} {
		s := spec()
		c.change(s)
		_, err := l.client.CreateJob(t.Context(), s)
		if status.Code(err) != c.want || !contains(err, fmt.Sprintf("job %d", s.Job)) {
			t.Errorf("%s: %v, want code %v", name, err, c.want)
		}
	}
	for name, c := range map[string]struct {
		change func(*pb.JoinRequest)
		want   codes.Code
	}{
		"job":        {func(r *pb.JoinRequest) { r.Job = 77 }, codes.NotFound},
		"sender":     {func(r *pb.JoinRequest) { r.Sender = 1 << 16 }, codes.InvalidArgument},
		"ip":         {func(r *pb.JoinRequest) { r.Ip = []byte{1} }, codes.InvalidArgument},
		"mac":        {func(r *pb.JoinRequest) { r.Mac = []byte{1} }, codes.InvalidArgument},
		"hot set":    {func(r *pb.JoinRequest) { r.HotSet = []byte("another") }, codes.FailedPrecondition},
		"no hot set": {func(r *pb.JoinRequest) { r.HotSet = nil }, codes.FailedPrecondition},
	} {
		r := &pb.JoinRequest{Job: 5, Sender: 2, Ip: workerIP.AsSlice(), HotSet: hotSet}
		c.change(r)
		stream, err := l.client.Join(t.Context(), r)
		if err == nil {
			_, err = stream.Recv()
		}
		if status.Code(err) != c.want {
			t.Errorf("join with bad %s: %v, want code %v", name, err, c.want)
		}
	}
	if _, err := l.client.RemoveJob(t.Context(), &pb.RemoveJobRequest{Job: 77}); status.Code(err) != codes.NotFound {
		t.Errorf("remove a job that is not there: %v", err)
	}
}

func TestRemovedJobEndsItsStreams(t *testing.T) {
	l := startAggregator(t)
	l.createJob(t, spec())
	stream, err := l.client.Join(t.Context(), &pb.JoinRequest{Job: 5, Sender: 1, Ip: workerIP.AsSlice(), HotSet: hotSet})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	h := NewHarvester(l.client, 5, newSums().apply, quiet)
	ran := make(chan error, 1)
	go func() { ran <- h.Run(t.Context()) }()
	if err := h.Now(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := l.client.RemoveJob(t.Context(), &pb.RemoveJobRequest{Job: 5}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.Aborted {
		t.Errorf("the sender's stream ended with %v", err)
	}
	if err := <-ran; status.Code(err) != codes.Aborted {
		t.Errorf("the harvest ended with %v", err)
	}
	l.createJob(t, spec()) // its slots are free again
}

func TestDialSaysWhoDoesNotAnswer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().(*net.TCPAddr).AddrPort()
	l.Close()
	_, err = Dial(t.Context(), "parameter server", addr, Security{}, 200*time.Millisecond, quiet)
	if err == nil || !contains(err, "parameter server", addr.String(), "did not answer") {
		t.Errorf("got %v", err)
	}
}
