// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// unheard is an aggregator whose first answers to CreateJob are lost: during is called before each
// of these.
type unheard struct {
	pb.AggregatorClient
	lost   int
	during func(created *pb.Job)
	asked  *pb.JobSpec // the newest request
}

func (u *unheard) CreateJob(ctx context.Context, spec *pb.JobSpec, opts ...grpc.CallOption) (*pb.Job, error) {
	u.asked = spec
	job, err := u.AggregatorClient.CreateJob(ctx, spec, opts...)
	if err == nil && u.lost > 0 {
		u.lost--
		u.during(job)
		return nil, status.Error(codes.Unavailable, "the connection broke")
	}
	return job, err
}

// An owner whose link goes down while it creates a job asks again, and gets the job that it has
// created: it does not wait for the end of that.
func TestJobIsCreatedByALostAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startAggregator(t)
		var created *pb.Job
		link := &unheard{AggregatorClient: l.client, lost: 2, during: func(job *pb.Job) {
			if created != nil && created.Instance != job.Instance {
				t.Errorf("its second call has created instance %d, the first %d", job.Instance, created.Instance)
			}
			created = job
		}}
		job, err := CreateJob(t.Context(), link, spec(), 0, quiet)
		if err != nil || job.Instance != created.Instance || job.Epoch != created.Epoch || !bytes.Equal(job.Key, created.Key) {
			t.Fatalf("it gets %v, %v, and not %v", job, err, created)
		}
		time.Sleep(access.Outage + DefaultLease - time.Millisecond) // from the last answer on
		if err := job.Hold(t.Context(), func(err error) { t.Errorf("lost: %v", err) }); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
	})
}

// A request of an attempt gets the job of an earlier one only while the owner has not got the
// answer, and with the same specification; all others are refused, whenever they come. No request
// creates a job for an owner that is done with it.
func TestRequestsForAJobInAnyOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startAggregator(t)
		of := func(attempt string, change ...func(*pb.JobSpec)) *pb.JobSpec {
			s := spec()
			s.Attempt = []byte(attempt)
			for _, f := range change {
				f(s)
			}
			return s
		}
		refuses := func(when string, s *pb.JobSpec, want codes.Code) {
			t.Helper()
			_, err := l.client.CreateJob(t.Context(), s)
			wants(t, when, err, want, "job 5")
		}
		link := &unheard{AggregatorClient: l.client, lost: 1}
		link.during = func(*pb.Job) {
			refuses("another owner", of("another"), codes.AlreadyExists)
			refuses("one that does not say", spec(), codes.AlreadyExists)
			refuses("another specification", of(string(link.asked.Attempt), func(s *pb.JobSpec) { s.Slots++ }), codes.AlreadyExists)
		}
		job, err := CreateJob(t.Context(), link, spec(), 0, quiet)
		if err != nil {
			t.Fatal(err)
		}
		ctx, end := context.WithCancel(t.Context())
		if err := job.Hold(ctx, func(error) {}); err != nil {
			t.Fatal(err)
		}
		refuses("late, while the owner holds it", link.asked, codes.AlreadyExists)
		end()
		synctest.Wait()
		refuses("late, while its lease runs", link.asked, codes.AlreadyExists)
		time.Sleep(DefaultLease)
		synctest.Wait()
		refuses("late, after its lease", link.asked, codes.Aborted)
		if job, err = CreateJob(t.Context(), link, spec(), 0, quiet); err != nil {
			t.Fatal(err)
		}
		if err := job.Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
		refuses("late, after its removal", link.asked, codes.Aborted)

		// One whose lease has ended before its owner has got it was nothing to anybody.
		forgotten := of("forgotten")
		first, err := l.client.CreateJob(t.Context(), forgotten)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(access.Outage + DefaultLease)
		synctest.Wait()
		second, err := l.client.CreateJob(t.Context(), forgotten)
		if err != nil || second.Instance == first.Instance {
			t.Errorf("after the lease of instance %d: %v, %v", first.Instance, second, err)
		}
	})
}

// An owner whose link goes down while the data plane creates its job waits for that.
func TestJobIsAskedForAgainWhileItIsCreated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		entered := make(chan struct{})
		plane := &slow{entered: entered, leave: make(chan struct{})}
		l := startAggregator(t, func(c *AggregatorConfig) { plane.Model, c.Plane = c.Plane.(*aggregator.Model), plane })
		link := &cut{AggregatorClient: l.client, first: entered}
		time.AfterFunc(time.Second, func() { close(plane.leave) })
		begun := time.Now()
		job, err := CreateJob(t.Context(), link, spec(), 0, quiet)
		if err != nil || time.Since(begun) < time.Second {
			t.Fatalf("%v, %v after %v", job, err, time.Since(begun))
		}
		if all := l.stats(t).Jobs; len(all) != 1 || all[0].Instance != job.Instance {
			t.Errorf("instance %d is its own, and there are %v", job.Instance, all)
		}
	})
}

// cut is an aggregator to which the connection breaks when the data plane has the first request.
type cut struct {
	pb.AggregatorClient
	first <-chan struct{} // closed when it has
}

func (c *cut) CreateJob(ctx context.Context, spec *pb.JobSpec, opts ...grpc.CallOption) (*pb.Job, error) {
	first := c.first
	if first == nil {
		return c.AggregatorClient.CreateJob(ctx, spec, opts...)
	}
	c.first = nil
	go func() { _, _ = c.AggregatorClient.CreateJob(ctx, spec, opts...) }() // its answer is lost
	<-first
	return nil, status.Error(codes.Unavailable, "the connection broke")
}
