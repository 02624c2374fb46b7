// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/internal/num/fixedpoint"
)

func contains(err error, parts ...string) bool {
	for _, p := range parts {
		if err == nil || !strings.Contains(err.Error(), p) {
			return false
		}
	}
	return true
}

// wants reports an error with another code or text.
func wants(t *testing.T, what string, err error, code codes.Code, parts ...string) {
	t.Helper()
	if status.Code(err) != code || !contains(err, parts...) {
		t.Errorf("%s: %v, want %v with %q", what, err, code, parts)
	}
}

// A sender gets its job's configuration; a sync job admits as many senders as take part in its
// rounds, all in the job's epoch, and has no harvest.
func TestSyncJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startAggregator(t)
		s := spec()
		s.Mode, s.Arithmetic, s.Exponent, s.Workers, s.Stripes = pb.Mode_MODE_SYNC, pb.Arithmetic_ARITHMETIC_FIXED, nil, 2, 4
		job := l.create(t, s)
		req := joinRequest()
		for sender := range uint32(2) {
			req.Sender = sender
			_, a, err := joinAs(t.Context(), l.client, req)
			if err != nil {
				t.Fatal(err)
			}
			if a.Epoch != job.Epoch || a.Instance != job.Instance || a.Mode != s.Mode || a.Arithmetic != s.Arithmetic || a.Exponent != aggregator.DefaultFixedExp ||
				a.Workers != 2 || a.Stripes != 4 || a.Dense {
				t.Errorf("admission %v", a)
			}
		}
		req.Sender = 2
		_, _, err := joinAs(t.Context(), l.client, req)
		wants(t, "a third of two workers", err, codes.ResourceExhausted, "job 5: sender 2: all 2 places")
		h := NewHarvester(job, newSums().apply, quiet)
		wants(t, "harvest of a sync job", h.Run(t.Context()), codes.FailedPrecondition, "job 5", "sync")
		if st := l.stats(t).Jobs[0]; st.Workers != 2 || st.Senders != 2 || st.SendersReserved != 2 || st.Mode != s.Mode || st.Arithmetic != s.Arithmetic || st.Exponent != aggregator.DefaultFixedExp {
			t.Errorf("statistics %v", st)
		}
	})
}

// An exponent of 0 is taken literally; only a missing one means the default.
func TestExponents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startAggregator(t)
		for i, c := range []struct {
			arithmetic pb.Arithmetic
			asked      *int32
			want       int32
		}{
			{pb.Arithmetic_ARITHMETIC_EXACT, nil, fixedpoint.DefaultExp}, {pb.Arithmetic_ARITHMETIC_EXACT, proto.Int32(0), 0},
			{pb.Arithmetic_ARITHMETIC_EXACT, proto.Int32(-9), -9},
			{pb.Arithmetic_ARITHMETIC_FIXED, nil, aggregator.DefaultFixedExp}, {pb.Arithmetic_ARITHMETIC_FIXED, proto.Int32(0), 0},
			{pb.Arithmetic_ARITHMETIC_LUT, nil, 0}, {pb.Arithmetic_ARITHMETIC_LUT, proto.Int32(0), 0},
		} {
			s := spec()
			s.Job, s.Arithmetic, s.Exponent = uint32(i), c.arithmetic, c.asked
			l.create(t, s)
			req := joinRequest()
			req.Job = s.Job
			_, a, err := joinAs(t.Context(), l.client, req)
			if err != nil || a.Exponent != c.want {
				t.Errorf("%v with %v: %v, %v; want %d", c.arithmetic, c.asked, a, err, c.want)
			}
		}
	})
}

// The slots and senders of all jobs together are limited; removing a job frees its share.
func TestBudgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startAggregator(t, func(c *AggregatorConfig) { c.Slots, c.Senders = 250, 100 })
		create := func(job, slots, senders uint32) (*Owned, error) {
			s := spec()
			s.Job, s.Slots, s.Senders = job, slots, senders
			o, err := l.client.CreateJob(t.Context(), s)
			if err != nil {
				return nil, err
			}
			return &Owned{ID: uint16(job), Job: o, client: l.client}, nil
		}
		first, err := create(0, 100, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := create(1, 100, 35); err != nil {
			t.Fatal(err)
		}
		_, err = create(2, 51, 0)
		wants(t, "slots over budget", err, codes.ResourceExhausted, "51 are wanted, but 200 of this aggregator's 250 are taken, by 2 jobs: remove one, or give the aggregator more", "slots of its entry")
		_, err = create(2, 50, 2)
		wants(t, "senders over budget", err, codes.ResourceExhausted, "2 are wanted, but 99 of this aggregator's 100 are reserved, by 2 jobs")
		st := l.stats(t)
		if st.Slots != 250 || st.SlotsUsed != 200 || st.MemoryBytes != 200*16 || st.Senders != 100 || st.SendersUsed != 99 {
			t.Errorf("statistics %v", st)
		}
		if len(st.Jobs) != 2 || st.Jobs[0].Job != 0 || st.Jobs[0].SendersReserved != DefaultJobSenders || st.Jobs[1].Slots != 100 || st.Jobs[1].SendersReserved != 35 {
			t.Errorf("jobs %v", st.Jobs)
		}
		if err := first.Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
		if st := l.stats(t); st.SlotsUsed != 100 || st.MemoryBytes != 100*16 || st.SendersUsed != 35 {
			t.Errorf("after removal: %v", st)
		}
		if _, err := create(2, 150, 65); err != nil { // to the brim
			t.Error(err)
		}
	})
}

// A job has as many senders as it has reserved places for.
func TestPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startAggregator(t)
		s := spec()
		s.Senders = 2
		l.create(t, s)
		streams := map[uint32]context.CancelFunc{}
		join := func(sender uint32) error {
			ctx, cancel := context.WithCancel(t.Context())
			streams[sender] = cancel
			req := joinRequest()
			req.Sender = sender
			_, _, err := joinAs(ctx, l.client, req)
			return err
		}
		for sender := range uint32(2) {
			if err := join(sender); err != nil {
				t.Fatal(err)
			}
		}
		wants(t, "a third", join(7), codes.ResourceExhausted, "job 5: sender 7: all 2 places")
		streams[0]()
		time.Sleep(DefaultGrace)
		synctest.Wait()
		if err := join(7); err != nil {
			t.Errorf("after one has left: %v", err)
		}
	})
}

// failing is a data plane that fails to add jobs or senders, or to remove jobs.
type failing struct {
	*aggregator.Model
	addJob, addSender, removeJob error
}

func (f *failing) AddJob(cfg aggregator.JobConfig) error {
	if f.addJob != nil {
		return f.addJob
	}
	return f.Model.AddJob(cfg)
}

func (f *failing) AddSender(job uint16, s aggregator.SenderConfig) error {
	if f.addSender != nil {
		return f.addSender
	}
	return f.Model.AddSender(job, s)
}

func (f *failing) RemoveJob(job uint16) error {
	if err := f.Model.RemoveJob(job); err != nil {
		return err
	}
	return f.removeJob
}

// If the data plane fails, no ID, slots or place are taken.
func TestFailuresOfThePlaneLeaveNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plane := &failing{addJob: aggregator.ErrUnsupported}
		l := startAggregator(t, func(c *AggregatorConfig) {
			plane.Model, c.Plane, c.Slots, c.Senders = c.Plane.(*aggregator.Model), plane, 100, 1
		})
		s := spec()
		s.Senders = 1
		_, err := l.client.CreateJob(t.Context(), s)
		wants(t, "a job that the plane refuses", err, codes.Unimplemented)
		plane.addJob = nil
		job := l.create(t, s)
		plane.addSender = aggregator.ErrTooManySenders
		_, _, err = joinAs(t.Context(), l.client, joinRequest())
		wants(t, "a sender that the plane refuses", err, codes.ResourceExhausted)
		plane.addSender = nil
		if n := l.stats(t).Jobs[0].Senders; n != 0 {
			t.Errorf("%d senders after a refusal", n)
		}
		l.join(t)
		plane.removeJob = aggregator.ErrBusy // to give memory back
		err = job.Remove(t.Context())
		if !contains(err, "busy") {
			t.Errorf("removal that fails: %v", err)
		}
		plane.removeJob = nil
		l.create(t, s)
	})
}

// crowded is a data plane that stays too busy to remove a job.
type crowded struct{ *aggregator.Model }

func (crowded) RemoveJob(uint16) error { return aggregator.ErrBusy }

// busy is a data plane that is too busy to remove a job, some times.
type busy struct {
	*aggregator.Model
	times atomic.Int32
}

func (b *busy) RemoveJob(id uint16) error {
	if b.times.Add(-1) >= 0 {
		return aggregator.ErrBusy
	}
	return b.Model.RemoveJob(id)
}

// A job is removed when the data plane is no longer too busy for that.
func TestRemovalWaitsForABusyPlane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plane := &busy{}
		l := startAggregator(t, func(c *AggregatorConfig) { plane.Model, c.Plane = c.Plane.(*aggregator.Model), plane })
		job := l.create(t, spec())
		plane.times.Store(2)
		if err := job.Remove(t.Context()); err != nil || plane.times.Load() != -1 {
			t.Errorf("%v after %d tries", err, 2-plane.times.Load())
		}
	})
}

// A caller that waits for a data plane too busy to remove a job, and loses the service in the
// meantime, gets the service's error: the job has ended with it, so there is nothing to retry.
func TestServiceEndsDuringARemoval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startAggregator(t, func(c *AggregatorConfig) { c.Plane = crowded{c.Plane.(*aggregator.Model)} })
		job := l.create(t, spec())
		removed := make(chan error, 1)
		go func() { removed <- job.Remove(t.Context()) }()
		time.Sleep(time.Minute)
		select {
		case err := <-removed:
			t.Fatalf("while the data plane is busy: %v", err)
		default:
		}
		l.end()
		if err := <-removed; !contains(err, "the service is stopping") {
			t.Errorf("the service has ended: %v", err)
		}
	})
}

// A parameter server that does not read its harvest delays no other, nor the removal of its own
// job.
func TestStuckServerDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startAggregator(t)
		s := spec()
		s.Slots = aggregator.PageSlots
		job := l.create(t, s)
		epoch := l.join(t)
		// A server with a window that does not grow; four chunks are larger.
		stuck := pb.NewAggregatorClient(l.dial(t, access.Security{}, "192.0.2.2", grpc.WithInitialWindowSize(1<<16)))
		l.pushAll(t, epoch, aggregator.PageSlots)
		begin := func() pb.Aggregator_HarvestClient {
			stream, err := stuck.Harvest(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, req := range []*pb.HarvestRequest{
				{What: &pb.HarvestRequest_Begin{Begin: &pb.HarvestBegin{Job: 5, Key: job.Key}}}, {What: &pb.HarvestRequest_Now{Now: 1}},
			} {
				if err := stream.Send(req); err != nil {
					t.Fatal(err)
				}
			}
			synctest.Wait() // it is stuck in sending now
			return stream
		}
		first := begin()
		second := begin() // replaces it, stuck or not
		for range 10 {
			if _, err := first.Recv(); err != nil {
				wants(t, "the first stream", err, codes.Unavailable, "newer connection")
				break
			}
		}
		other := spec()
		other.Job = 6
		l.create(t, other)
		begun := time.Now()
		if err := job.Remove(t.Context()); err != nil {
			t.Error(err)
		}
		if took := time.Since(begun); took != 0 {
			t.Errorf("the removal waited for %v", took)
		}
		for range 10 {
			if _, err := second.Recv(); err != nil {
				wants(t, "the second stream", err, codes.Aborted, "job 5 was removed")
				break
			}
		}
		l.create(t, s)
	})
}

func TestRefusedRequests(t *testing.T) {
	l := startAggregator(t)
	l.create(t, spec())
	for name, c := range map[string]struct {
		change func(*pb.JobSpec)
		want   codes.Code
	}{
		"the same again": {func(*pb.JobSpec) {}, codes.AlreadyExists},
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
		"fewer places than workers": {func(s *pb.JobSpec) {
			s.Job, s.Mode, s.Workers, s.Senders = 6, pb.Mode_MODE_SYNC, 2, 1
		}, codes.InvalidArgument},
		"too many servers": {func(s *pb.JobSpec) { s.Job, s.ServerMacs = 6, slices.Repeat([][]byte{{2, 0, 0, 0, 0, 1}}, 48) }, codes.InvalidArgument},
		"server's address": {func(s *pb.JobSpec) { s.Job, s.ServerMacs = 6, [][]byte{{2, 0, 0, 0, 0}} }, codes.InvalidArgument},
		"too many senders": {func(s *pb.JobSpec) { s.Job, s.Senders = 6, 1<<16+1 }, codes.InvalidArgument},
		"many senders":     {func(s *pb.JobSpec) { s.Job, s.Senders = 6, 1<<16 }, codes.ResourceExhausted},
		"sync by time": {func(s *pb.JobSpec) {
			s.Job, s.Mode, s.Workers, s.HarvestPeriodUs = 6, pb.Mode_MODE_SYNC, 2, 1000
		}, codes.InvalidArgument},
		"sync by count": {func(s *pb.JobSpec) {
			s.Job, s.Mode, s.Workers, s.HarvestFrames = 6, pb.Mode_MODE_SYNC, 2, 1000
		}, codes.InvalidArgument},
		"harvest frames of acked": {func(s *pb.JobSpec) {
			s.Job, s.Mode, s.Workers, s.HarvestFrames = 6, pb.Mode_MODE_ACKED, 2, 1000
		}, codes.InvalidArgument},
		"acked without workers": {func(s *pb.JobSpec) { s.Job, s.Mode = 6, pb.Mode_MODE_ACKED }, codes.InvalidArgument},
	} {
		s := spec()
		c.change(s)
		_, err := l.client.CreateJob(t.Context(), s)
		wants(t, name, err, c.want, fmt.Sprintf("job %d", s.Job))
	}
	for name, c := range map[string]struct {
		change func(*pb.JoinRequest)
		want   codes.Code
	}{
		"job":        {func(r *pb.JoinRequest) { r.Job = 77 }, codes.NotFound},
		"huge job":   {func(r *pb.JoinRequest) { r.Job = 5 + 1<<16 }, codes.NotFound},
		"sender":     {func(r *pb.JoinRequest) { r.Sender = 1 << 16 }, codes.InvalidArgument},
		"port":       {func(r *pb.JoinRequest) { r.Port = 1 << 16 }, codes.InvalidArgument},
		"ip":         {func(r *pb.JoinRequest) { r.Ip = []byte{1} }, codes.InvalidArgument},
		"mac":        {func(r *pb.JoinRequest) { r.Mac = []byte{1} }, codes.InvalidArgument},
		"hot set":    {func(r *pb.JoinRequest) { r.HotSet = []byte("another") }, codes.FailedPrecondition},
		"no hot set": {func(r *pb.JoinRequest) { r.HotSet = nil }, codes.FailedPrecondition},
		"token":      {func(r *pb.JoinRequest) { r.Token = make([]byte, 16) }, codes.PermissionDenied},
	} {
		r := joinRequest()
		r.Sender = 2
		c.change(r)
		_, _, err := joinAs(t.Context(), l.client, r)
		wants(t, "join with bad "+name, err, c.want)
		if strings.Contains(name, "hot set") {
			wants(t, name, err, c.want, "worker 2's hot set differs from job 5's:")
		}
	}
	_, err := l.client.RemoveJob(t.Context(), &pb.RemoveJobRequest{Job: 77, Key: []byte("key")})
	wants(t, "remove a job that is not there", err, codes.NotFound, "job 77")
	stream, err := l.client.Harvest(t.Context())
	if err == nil {
		err = stream.Send(&pb.HarvestRequest{What: &pb.HarvestRequest_Now{Now: 1}})
	}
	if err == nil {
		_, err = stream.Recv()
	}
	wants(t, "a harvest without a beginning", err, codes.InvalidArgument, "first message")
}
