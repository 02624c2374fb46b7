// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/wire"
)

func TestRemovedJobEndsItsStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startAggregator(t)
		job, err := CreateJob(t.Context(), l.client, spec(), 0, quiet)
		if err != nil {
			t.Fatal(err)
		}
		lost := make(chan error, 1)
		if err := job.Hold(t.Context(), func(err error) { lost <- err }); err != nil {
			t.Fatal(err)
		}
		stream, _, err := joinAs(t.Context(), l.client, joinRequest())
		if err != nil {
			t.Fatal(err)
		}
		h := NewHarvester(job, newSums().apply, quiet)
		ran := make(chan error, 1)
		go func() { ran <- h.Run(t.Context()) }()
		if err := h.Now(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := job.Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, err = stream.Recv()
		wants(t, "the sender's stream", err, codes.Aborted, "job 5 was removed")
		wants(t, "the harvest", <-ran, codes.Aborted, "job 5 was removed")
		if err := <-lost; !contains(err, "lost job 5", "job 5 was removed") || errors.Is(err, ErrRemoved) {
			t.Errorf("its owner hears %v", err)
		}
		if _, err := l.model.JobCounters(5); err == nil {
			t.Error("the data plane still has the job")
		}
		l.create(t, spec()) // its slots are free again
	})
}

// If a sender's connection was broken when its job was removed, the end of its grace period does
// not end its admission to the next job of that number.
func TestRemovedJobForgetsItsSenders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startAggregator(t)
		job := l.create(t, spec())
		ctx, hangUp := context.WithCancel(t.Context())
		if _, _, err := joinAs(ctx, l.client, joinRequest()); err != nil {
			t.Fatal(err)
		}
		hangUp()
		synctest.Wait()
		if err := job.Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
		l.create(t, spec())
		epoch := l.join(t)
		time.Sleep(2 * DefaultGrace)
		l.push(t, epoch, wire.FirstSeq, 0, 1)
	})
}

// forgetful loses the answers to some removals.
type forgetful struct {
	pb.AggregatorClient
	lose int
}

func (f *forgetful) RemoveJob(ctx context.Context, req *pb.RemoveJobRequest, o ...grpc.CallOption) (*pb.RemoveJobResponse, error) {
	answer, err := f.AggregatorClient.RemoveJob(ctx, req, o...)
	if f.lose > 0 {
		f.lose--
		return nil, status.Error(codes.Unavailable, "error reading from server: EOF")
	}
	return answer, err
}

// An owner whose call to remove the job loses its answer with the connection asks again: a job that
// has ended in the meantime is not an error, and the next owner's job is not affected.
func TestRemovalIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startAggregator(t)
		for _, taken := range []bool{false, true} {
			client := &forgetful{l.client, 3}
			job, err := CreateJob(t.Context(), client, spec(), 0, quiet)
			if err != nil {
				t.Fatal(err)
			}
			ended := make(chan error)
			go func() { ended <- job.Remove(t.Context()) }()
			synctest.Wait()
			var next *Owned
			if taken {
				if next, err = CreateJob(t.Context(), l.client, spec(), 0, quiet); err != nil {
					t.Fatal(err)
				}
			}
			if err := <-ended; err != nil || client.lose != 0 {
				t.Errorf("next owner %v: the removal ends with %v, and %d answers are still to be lost", taken, err, client.lose)
			}
			if next != nil {
				if err := next.Remove(t.Context()); err != nil {
					t.Errorf("the next owner's job: %v", err)
				}
			}
		}
		// The first answer is correct: the job is not the owner's.
		job, err := CreateJob(t.Context(), l.client, spec(), 0, quiet)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []bool{true, false} {
			if err := job.Remove(t.Context()); (err == nil) != want {
				t.Errorf("removal of a job that is there %v: %v", want, err)
			}
		}
	})
}

// swapsSlowly is a data plane whose swaps take until the test ends them.
type swapsSlowly struct {
	aggregator.Plane
	begun, end chan struct{}
	removed    atomic.Bool
}

func (p *swapsSlowly) Swap(job uint16) (*aggregator.Bank, error) {
	close(p.begun)
	<-p.end
	return p.Plane.Swap(job)
}

func (p *swapsSlowly) RemoveJob(job uint16) error {
	p.removed.Store(true)
	return p.Plane.RemoveJob(job)
}

// A harvest names its job by ID, so the ID is free only when the harvest of the previous instance
// has ended: otherwise it would take the next one's sums.
func TestRemovalWaitsForTheHarvest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plane := &swapsSlowly{begun: make(chan struct{}), end: make(chan struct{})}
		l := startAggregator(t, func(c *AggregatorConfig) { plane.Plane, c.Plane = c.Plane, plane })
		job := l.create(t, spec())
		l.push(t, l.join(t), wire.FirstSeq, 3, 1)
		h := NewHarvester(job, newSums().apply, quiet)
		ran := make(chan error, 1)
		go func() { ran <- h.Run(t.Context()) }()
		go func() { _ = h.Now(t.Context()) }()
		<-plane.begun
		removed := make(chan error, 1)
		go func() { removed <- job.Remove(t.Context()) }()
		wants(t, "the harvest", <-ran, codes.Aborted, "job 5 was removed")
		synctest.Wait()
		if plane.removed.Load() {
			t.Error("the data plane removes a job while it is harvested")
		}
		_, err := l.client.CreateJob(t.Context(), spec())
		wants(t, "another of this id", err, codes.AlreadyExists, "its owner at")
		close(plane.end)
		if err := <-removed; err != nil {
			t.Error(err)
		}
		l.create(t, spec())
	})
}

// A service that stops notifies its peers, so that they do not wait for its return.
func TestStoppingServiceTellsItsPeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		model, err := aggregator.NewModel(aggregator.Config{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		l := &libras{model: model, service: NewAggregator(ctx, AggregatorConfig{Plane: model, Stripes: 1, Log: quiet})}
		t.Cleanup(l.service.Close)
		l.network = newNetwork(t, access.Security{}, func(s *grpc.Server) { pb.RegisterAggregatorServer(s, l.service) })
		l.client = pb.NewAggregatorClient(l.dial(t, access.Security{}, "192.0.2.2"))
		job := l.create(t, spec())
		hold, err := l.client.Hold(t.Context(), &pb.HoldRequest{Job: 5, Key: job.Key})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := hold.Recv(); err != nil {
			t.Fatal(err)
		}
		stream, _, err := joinAs(t.Context(), l.client, joinRequest())
		if err != nil {
			t.Fatal(err)
		}
		h, _ := harvester(t, job, newSums().apply)
		if err := h.Now(t.Context()); err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		stop()
		_, err = stream.Recv()
		wants(t, "a sender", err, codes.Aborted, "stopping")
		_, err = hold.Recv()
		wants(t, "an owner", err, codes.Aborted, "stopping")
		if err := h.Now(t.Context()); !contains(err, "stopping") {
			t.Errorf("the harvest ended with %v", err)
		}
		if time.Since(begun) != 0 {
			t.Errorf("they heard of it after %v", time.Since(begun))
		}
	})
}

// Everything that a closed service has started ends, and it starts nothing more.
func TestClosedAggregatorIsQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startAggregator(t)
		job := l.create(t, spec())
		l.join(t)
		h, _ := harvester(t, job, newSums().apply)
		if err := h.Now(t.Context()); err != nil {
			t.Fatal(err)
		}
		l.service.Close()
		if err := l.model.Close(); err != nil {
			t.Fatal(err)
		}
		wants(t, "a harvest", h.Now(t.Context()), codes.Unknown, "stopping")
		_, _, err := joinAs(t.Context(), l.client, joinRequest())
		wants(t, "a sender", err, codes.Aborted)
		stream, err := l.client.Harvest(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&pb.HarvestRequest{What: &pb.HarvestRequest_Begin{Begin: &pb.HarvestBegin{Job: 5, Key: job.Key}}}); err != nil {
			t.Fatal(err)
		}
		_, err = stream.Recv()
		wants(t, "another harvest", err, codes.Aborted, "stopping")
		time.Sleep(time.Minute) // no timer of it is left
	})
}

func TestDialSaysWhoDoesNotAnswer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().(*net.TCPAddr).AddrPort()
	l.Close()
	_, err = access.Dial(t.Context(), access.ServerOf(5), addr, access.Security{}, 200*time.Millisecond, quiet)
	if err == nil || !contains(err, "parameter server", addr.String(), "did not answer") {
		t.Errorf("got %v", err)
	}
}

// contextStream is a harvest stream of which only the context is used.
type contextStream struct {
	harvestStream
	ctx context.Context
}

func (s contextStream) Context() context.Context { return s.ctx }

// A stream that arrives at an ended job gets that reason, not that their harvests do not fit
// together.
func TestEndedJobTellsItsStreamsWhy(t *testing.T) {
	why := status.Error(codes.Aborted, "the job was removed")
	j := &job{harvesting: make(chan struct{}, 1), ended: make(chan struct{}), why: why}
	close(j.ended)
	if err := j.serveHarvest(contextStream{ctx: t.Context()}, &pb.HarvestBegin{Last: 5}); !errors.Is(err, why) {
		t.Errorf("%v, want %v", err, why)
	}
}

// A stream ends when a newer one takes its place, even if its peer ended long ago.
func TestNewerStreamEndsTheOlder(t *testing.T) {
	j := &job{}
	older := j.attachStream()
	newer := j.attachStream()
	select {
	case <-older.over:
	default:
		t.Fatal("the older stream goes on")
	}
	if !errors.Is(older.why, errReplaced) {
		t.Errorf("it ends with %v", older.why)
	}
	select {
	case <-newer.over:
		t.Error("the newer one has ended, too")
	default:
	}
}

// A closed roster admits no sender.
func TestClosedRosterAdmitsNone(t *testing.T) {
	r := &roster{
		mu: make(chanMutex, 1), members: map[uint16]*member{}, epoch: func() uint16 { return 1 },
		admit: func(*member) error { return nil }, withdraw: func(*member, ending) {}, random: access.NewRandom(nil),
	}
	r.endAdmissions(errReplaced)
	_, _, err := r.enterSender(aggregator.SenderConfig{ID: 1}, nil)
	wants(t, "an admission", err, codes.Aborted, "the job has ended: a newer connection has taken over")
}

// The owner of a job that an operator removes is told so, also if it was not connected, and if
// another job has its id by then. Others are not.
func TestRemovedByAnOperator(t *testing.T) {
	for name, connected := range map[string]bool{"connected": true, "not connected": false} {
		t.Run(name, func(t *testing.T) {
			l := startAggregator(t)
			job := l.create(t, spec())
			lost := make(chan error, 1)
			hold := func() error { return job.Hold(t.Context(), func(err error) { lost <- err }) }
			if connected {
				if err := hold(); err != nil {
					t.Fatal(err)
				}
			}
			operator := pb.NewAggregatorClient(l.dial(t, access.Security{}, "192.0.2.1")) // the switch's own host
			if _, err := operator.RemoveJob(t.Context(), &pb.RemoveJobRequest{Job: 5}); err != nil {
				t.Fatal(err)
			}
			if connected {
				if err := <-lost; !errors.Is(err, ErrRemoved) || !contains(err, "lost job 5", "job 5 was removed by an operator") {
					t.Errorf("its owner is told %v", err)
				}
			}
			other := l.create(t, spec())
			h := NewHarvester(job, newSums().apply, quiet)
			if err := job.Lost("harvest", h.Run(t.Context())); !errors.Is(err, ErrRemoved) {
				t.Errorf("when it asks later: %v", err)
			}
			if err := job.Remove(t.Context()); !errors.Is(err, ErrRemoved) || !contains(err, "job 5 was removed by an operator") {
				t.Errorf("when it removes the job itself: %v", err)
			}
			forged := &Owned{ID: 5, Job: &pb.Job{Key: make([]byte, len(job.Key))}, client: l.client}
			h = NewHarvester(forged, newSums().apply, quiet)
			if err := forged.Lost("harvest", h.Run(t.Context())); err == nil || errors.Is(err, ErrRemoved) {
				t.Errorf("another is told %v", err)
			}
			if err := other.Remove(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}
