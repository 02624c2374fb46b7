package control

import (
	"context"
	"math"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/libra-ina/libra/aggregator"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/lut"
)

// A sender learns what its job is; a sync job admits as many senders as take
// part in its rounds, and has no harvest.
func TestSyncJob(t *testing.T) {
	l := startAggregator(t)
	s := spec()
	s.Mode, s.Arithmetic, s.Exponent, s.Workers, s.Stripes = pb.Mode_MODE_SYNC, pb.Arithmetic_ARITHMETIC_FIXED, nil, 2, 4
	epoch := l.createJob(t, s)
	joinAs := func(sender uint32) (*pb.Admission, error) {
		stream, err := l.client.Join(t.Context(), &pb.JoinRequest{Job: 5, Sender: sender, Ip: workerIP.AsSlice(), HotSet: hotSet})
		if err != nil {
			return nil, err
		}
		return stream.Recv()
	}
	for sender := range uint32(2) {
		a, err := joinAs(sender)
		if err != nil {
			t.Fatal(err)
		}
		if uint16(a.Epoch) != epoch || a.Mode != s.Mode || a.Arithmetic != s.Arithmetic || a.Exponent != aggregator.DefaultFixedExp ||
			a.Workers != 2 || a.Stripes != 4 || a.Dense {
			t.Errorf("admission %v", a)
		}
	}
	if _, err := joinAs(2); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a third of two workers got %v", err)
	}
	h := NewHarvester(l.client, 5, newSums().apply, quiet)
	if err := h.Run(t.Context()); status.Code(err) != codes.FailedPrecondition || !contains(err, "job 5", "sync") {
		t.Errorf("harvest of a sync job: %v", err)
	}
}

// All jobs together may have so many slots; removing a job returns its.
func TestSlotBudget(t *testing.T) {
	l := startWithSlots(t, 250)
	create := func(job, slots uint32) error {
		s := spec()
		s.Job, s.Slots = job, slots
		_, err := l.client.CreateJob(t.Context(), s)
		return err
	}
	stats := func() *pb.AggregatorStats {
		st, err := l.client.Stats(t.Context(), &pb.StatsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	for job := range uint32(2) {
		if err := create(job, 100); err != nil {
			t.Fatal(err)
		}
	}
	err := create(2, 51)
	if status.Code(err) != codes.ResourceExhausted || !contains(err, "51", "200", "250", "2 jobs", "switch.slots") {
		t.Errorf("over budget: %v", err)
	}
	if st := stats(); st.Slots != 250 || st.SlotsUsed != 200 || st.MemoryBytes != 200*16 || len(st.Jobs) != 2 || st.Jobs[1].Slots != 100 {
		t.Errorf("statistics %v", st)
	}
	if err := create(2, 50); err != nil {
		t.Error(err)
	}
	if _, err := l.client.RemoveJob(t.Context(), &pb.RemoveJobRequest{Job: 0}); err != nil {
		t.Fatal(err)
	}
	if st := stats(); st.SlotsUsed != 150 || st.MemoryBytes != 150*16 {
		t.Errorf("after removal: %v", st)
	}
	if err := create(0, 100); err != nil {
		t.Error(err)
	}
}

// A harvest by count comes when there are as many frames, and not before.
func TestHarvestByCount(t *testing.T) {
	l := startAggregator(t)
	s := spec()
	s.HarvestFrames = 10
	epoch := l.createJob(t, s)
	if _, err := l.join(t.Context()); err != nil {
		t.Fatal(err)
	}
	frames := make(chan uint64, 100)
	h := NewHarvester(l.client, 5, func(h *Harvest) error { frames <- h.Frames; return nil }, quiet)
	go func() { _ = h.Run(t.Context()) }()
	if err := h.Now(t.Context()); err != nil { // it runs
		t.Fatal(err)
	}
	<-frames
	for seq := uint32(1); seq <= 9; seq++ {
		l.push(t, epoch, seq, 0, 1)
	}
	time.Sleep(5 * countEvery)
	if len(frames) > 0 {
		t.Fatalf("a harvest of %d frames", <-frames)
	}
	l.push(t, epoch, 10, 0, 1)
	if n := <-frames; n != 10 {
		t.Errorf("a harvest of %d frames, want 10", n)
	}
	st, err := l.client.Stats(t.Context(), &pb.StatsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	j := st.Jobs[0]
	if j.Senders != 1 || j.Harvests != 2 || j.HarvestFrames != 10 || j.HarvestInterval.Count != 1 || j.HarvestInterval.MaxNs == 0 || j.Counters["applied"] != 10 {
		t.Errorf("statistics %v", j)
	}
}

// Sums of a lut job travel as the bits of a float32.
func TestHarvestOfLUT(t *testing.T) {
	l := startAggregator(t)
	s := spec()
	s.Arithmetic, s.Exponent = pb.Arithmetic_ARITHMETIC_LUT, nil
	epoch := l.createJob(t, s)
	if _, err := l.join(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.push(t, epoch, 1, 7, 1.5)
	l.push(t, epoch, 2, 7, 2)
	got := newSums()
	h := NewHarvester(l.client, 5, got.apply, quiet)
	go func() { _ = h.Run(t.Context()) }()
	if err := h.Now(t.Context()); err != nil {
		t.Fatal(err)
	}
	tables, err := lut.New(lut.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if want := int64(tables.Add(math.Float32bits(1.5), math.Float32bits(2))); len(got.byRank) != 1 || got.byRank[7] != want {
		t.Errorf("sums %#x, want %#x at rank 7", got.byRank, want)
	}
}

// A parameter server that does not read its harvest delays the removal of its
// own job, and nobody else.
func TestStuckServerDelaysNobody(t *testing.T) {
	l := startAggregator(t)
	s := spec()
	s.Slots = aggregator.MaxSlots
	epoch := l.createJob(t, s)
	if _, err := l.join(t.Context()); err != nil {
		t.Fatal(err)
	}
	// A server with a window that does not grow; four chunks are more than it.
	conn, err := grpc.NewClient(l.target, grpc.WithTransportCredentials(Security{}.client("")), grpc.WithInitialWindowSize(1<<16))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	l.pushAll(t, epoch, aggregator.MaxSlots)
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := pb.NewAggregatorClient(conn).Harvest(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, req := range []*pb.HarvestRequest{
		{What: &pb.HarvestRequest_Begin{Begin: &pb.HarvestBegin{Job: 5}}}, {What: &pb.HarvestRequest_Now{Now: 1}},
	} {
		if err := stream.Send(req); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := stream.Recv(); err != nil { // the first chunk
		t.Fatal(err)
	}
	impatient, done := context.WithTimeout(t.Context(), 100*time.Millisecond)
	_, err = l.client.RemoveJob(impatient, &pb.RemoveJobRequest{Job: 5})
	done()
	if status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("removal of a job that is being sent: %v", err)
	}
	other := spec()
	other.Job = 6
	l.createJob(t, other)
	cancel()
	if _, err := l.client.RemoveJob(t.Context(), &pb.RemoveJobRequest{Job: 5}); err != nil {
		t.Error(err)
	}
	l.createJob(t, s)
}
