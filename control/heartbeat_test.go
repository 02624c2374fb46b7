// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// suspendable is a data plane whose daemon can be suspended: then it does nothing and answers no
// call, while its connections stay open.
type suspendable struct {
	aggregator.Plane
	mu        sync.Mutex
	suspended chan struct{} // closed when it goes on; nil while it runs
}

func (p *suspendable) suspend() (resume func()) {
	until := make(chan struct{})
	p.mu.Lock()
	p.suspended = until
	p.mu.Unlock()
	return func() {
		p.mu.Lock()
		p.suspended = nil
		p.mu.Unlock()
		close(until)
	}
}

func (p *suspendable) JobCounters(job uint16) (aggregator.JobCounters, error) {
	p.mu.Lock()
	until := p.suspended
	p.mu.Unlock()
	if until != nil {
		<-until
	}
	return p.Plane.JobCounters(job)
}

// An owner gets ten heartbeats a second, with what its job does.
func TestHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startAggregator(t)
		job, err := CreateJob(t.Context(), l.client, spec(), 0, quiet)
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		var beats []*pb.HoldResponse
		job.Silence = time.Second
		job.Beat = func(m *pb.HoldResponse) {
			mu.Lock()
			defer mu.Unlock()
			beats = append(beats, m)
		}
		ctx, release := context.WithCancel(t.Context())
		if err := job.Hold(ctx, func(err error) { t.Errorf("lost: %v", err) }); err != nil {
			t.Fatal(err)
		}
		epoch := l.join(t)
		for i := range uint32(7) {
			l.push(t, epoch, 1+i, uint16(i), 1)
		}
		time.Sleep(10*time.Second + HeartbeatEvery/2)
		release()
		synctest.Wait()
		if len(beats) != 100 {
			t.Errorf("%d heartbeats in ten seconds", len(beats))
		}
		if last := beats[len(beats)-1]; last.Frames != 7 || last.HeartbeatMs != 100 || last.Raced+last.Throttled+last.Unsent != 0 {
			t.Errorf("the last heartbeat is %v", last)
		}
		time.Sleep(time.Minute)
		if len(beats) != 100 {
			t.Errorf("%d heartbeats come after the end", len(beats)-100)
		}
	})
}

// An aggregator whose daemon is suspended is lost after the silence, although no connection breaks,
// and again for as long as that lasts. One that goes on in time is not.
func TestSilentAggregatorIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var plane *suspendable
		l := startAggregator(t, func(c *AggregatorConfig) {
			plane = &suspendable{Plane: c.Plane}
			c.Plane = plane
		})
		job, err := CreateJob(t.Context(), l.client, spec(), 0, quiet)
		if err != nil {
			t.Fatal(err)
		}
		job.Silence = time.Second
		lost := make(chan error, 9)
		ctx, release := context.WithCancel(t.Context())
		defer release()
		if err := job.Hold(ctx, func(err error) { lost <- err }); err != nil {
			t.Fatal(err)
		}
		resume := plane.suspend()
		time.Sleep(900 * time.Millisecond)
		resume()
		time.Sleep(5 * time.Second)
		if len(lost) != 0 {
			t.Fatalf("it was silent for 0.9 s: %v", <-lost)
		}
		resume = plane.suspend()
		for range 2 {
			begun := time.Now()
			err := <-lost
			if !errors.Is(err, ErrSilent) || !contains(err, "lost job 5", "suspended", "1s") {
				t.Errorf("the reason is %v", err)
			}
			if took := time.Since(begun); took < 900*time.Millisecond || took > 1200*time.Millisecond {
				t.Errorf("it took %v", took)
			}
		}
		resume()
		time.Sleep(5 * time.Second)
		if len(lost) != 0 {
			t.Errorf("it goes on, and is lost: %v", <-lost)
		}
	})
}

// mute is an aggregator of an earlier release.
type mute struct{ pb.AggregatorServer }

func (mute) Hold(_ *pb.HoldRequest, stream grpc.ServerStreamingServer[pb.HoldResponse]) error {
	if err := stream.Send(&pb.HoldResponse{}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

// An aggregator that sends no heartbeats, and an owner that takes none, may be silent.
func TestHoldWithoutHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t, access.Security{}, func(s *grpc.Server) { pb.RegisterAggregatorServer(s, mute{}) })
		job := &Owned{ID: 5, Job: &pb.Job{LeaseMs: 5000}, Silence: time.Second,
			client: pb.NewAggregatorClient(n.dial(t, access.Security{}, "192.0.2.2"))}
		ctx, release := context.WithCancel(t.Context())
		defer release()
		if err := job.Hold(ctx, func(err error) { t.Errorf("lost: %v", err) }); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)

		l := startAggregator(t)
		other, err := CreateJob(t.Context(), l.client, spec(), 0, quiet)
		if err != nil {
			t.Fatal(err)
		}
		stream, err := l.client.Hold(ctx, &pb.HoldRequest{Job: 5, Key: other.Key})
		if err == nil {
			_, err = stream.Recv()
		}
		if err != nil {
			t.Fatal(err)
		}
		more := make(chan error, 1)
		go func() {
			_, err := stream.Recv()
			more <- err
		}()
		time.Sleep(time.Minute)
		release()
		wants(t, "the end of the stream", <-more, codes.Canceled)
	})
}
