// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/internal/test/grpctest"
)

// A killed server loses its job when the lease ends; restarted, it gets a new instance without
// anything of the former one.
func TestKilledServerGetsANewInstance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startAggregator(t)
		first, err := CreateJob(t.Context(), l.client, spec(), 0, quiet)
		if err != nil {
			t.Fatal(err)
		}
		lost := make(chan error, 1)
		if err := first.Hold(t.Context(), func(err error) { lost <- err }); err != nil {
			t.Fatal(err)
		}
		stream, admitted, err := joinAs(t.Context(), pb.NewAggregatorClient(l.dial(t, access.Security{}, "192.0.2.3")), joinRequest())
		if err != nil {
			t.Fatal(err)
		}
		l.push(t, uint16(admitted.Epoch), 1, 9, 1) // is never harvested
		time.Sleep(time.Minute)                    // a held job stays

		restarted := pb.NewAggregatorClient(l.dial(t, access.Security{}, "192.0.2.2"))
		_, err = restarted.CreateJob(t.Context(), spec())
		wants(t, "the same job once more", err, codes.AlreadyExists, "job 5 exists", "192.0.2.2:40000 is connected", "libra job remove 5")
		l.host.Vanish() // kill -9
		synctest.Wait()
		time.Sleep(time.Second)
		_, err = restarted.CreateJob(t.Context(), spec())
		wants(t, "within the lease", err, codes.AlreadyExists, "not connected", "lease ends in 4s")

		var log strings.Builder
		begun := time.Now()
		second, err := CreateJob(t.Context(), restarted, spec(), 30*time.Second, slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(begun); waited < 4*time.Second || waited > 5*time.Second+longestDelay {
			t.Errorf("it waited for %v, the lease ended after 4s", waited)
		}
		if n := strings.Count(log.String(), "job 5 exists"); n != 1 {
			t.Errorf("it says %d times why it waits:\n%s", n, log.String())
		}
		if second.Instance == first.Instance || second.Instance == 0 || string(second.Key) == string(first.Key) || second.Epoch == first.Epoch {
			t.Errorf("the second job is %v, the first was %v", second.Job, first.Job)
		}
		_, err = stream.Recv()
		wants(t, "a worker of the first instance", err, codes.Aborted, "job 5 was removed")
		if err := second.Hold(t.Context(), func(error) {}); err != nil {
			t.Fatal(err)
		}
		got := newSums()
		h, stop := harvester(t, second, got.apply)
		if err := h.Now(t.Context()); err != nil {
			t.Fatal(err)
		}
		_ = stop()
		if got.frames != 0 || got.total() != 0 || got.numbers[0] != 1 {
			t.Errorf("the new instance is given %d frames of the old one, as harvest %d", got.frames, got.numbers[0])
		}
		// The first process, if it was only suspended, has no control any more.
		l.host.ComeBack()
		if err := <-lost; !contains(err, "lost job 5") {
			t.Errorf("the first self hears %v", err)
		}
		wants(t, "its harvest", NewHarvester(first, got.apply, quiet).Run(t.Context()), codes.PermissionDenied, "job 5 belongs to another server: wrong job key")
		_, err = l.client.RemoveJob(t.Context(), &pb.RemoveJobRequest{Job: 5, Key: first.Key})
		wants(t, "its removal", err, codes.PermissionDenied, "job 5 belongs to another server: wrong job key")
	})
}

// A job whose creator never holds it, or whose holder has ended, ends with its lease: neither
// earlier nor later.
func TestLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startAggregator(t, func(c *AggregatorConfig) { c.Lease = 7 * time.Second })
		watcher := pb.NewAggregatorClient(l.dial(t, access.Security{}, "192.0.2.9"))
		jobs := func() []*pb.JobStats {
			st, err := watcher.Stats(t.Context(), &pb.StatsRequest{})
			if err != nil {
				t.Fatal(err)
			}
			return st.Jobs
		}
		job, err := CreateJob(t.Context(), l.client, spec(), 0, quiet)
		if err != nil {
			t.Fatal(err)
		}
		if job.LeaseMs != 7000 {
			t.Errorf("the lease is %d ms", job.LeaseMs)
		}
		time.Sleep(5 * time.Second)
		if j := jobs()[0]; j.Held || j.LeaseMs != 12000 || j.Owner != "192.0.2.2:40000" || j.Instance != job.Instance || j.Epoch != job.Epoch {
			t.Errorf("before it is held: %v", j)
		}
		ctx, release := context.WithCancel(t.Context())
		if err := job.Hold(ctx, func(err error) { t.Errorf("lost: %v", err) }); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if j := jobs()[0]; !j.Held || j.LeaseMs != 7000 {
			t.Errorf("while it is held: %v", j)
		}
		for range 5 { // broken connections are reopened in time
			l.host.Break()
			time.Sleep(10 * time.Second)
			l.host.HalfOpen()
			time.Sleep(20 * time.Second)
		}
		release()
		synctest.Wait()
		time.Sleep(6999 * time.Millisecond)
		if len(jobs()) != 1 {
			t.Fatal("the job ended before its lease")
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if len(jobs()) != 0 {
			t.Error("the job outlives its lease")
		}
	})
}

// The owner of a job learns in time that the aggregator cannot be reached.
func TestOwnerLosesTheSwitch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startAggregator(t)
		job, err := CreateJob(t.Context(), l.client, spec(), 0, quiet)
		if err != nil {
			t.Fatal(err)
		}
		lost := make(chan error, 2)
		if err := job.Hold(t.Context(), func(err error) { lost <- err }); err != nil {
			t.Fatal(err)
		}
		l.host.Vanish()
		begun := time.Now()
		err = <-lost
		if took := time.Since(begun); took < DefaultLease || took > DefaultLease+longestDelay {
			t.Errorf("it took %v to give up, the lease is %v", took, DefaultLease)
		}
		if !contains(err, "lost job 5", "switch daemon", "hold", grpctest.ErrCut.Error()) {
			t.Errorf("the reason is %v", err)
		}
		time.Sleep(time.Minute)
		if len(lost) != 0 {
			t.Error("it is told twice")
		}
		if err := job.Hold(t.Context(), nil); !contains(err, "switch daemon: hold") {
			t.Errorf("holding a job that is gone: %v", err)
		}
	})
}

// A second stream that holds the job replaces the first, which is half open.
func TestHoldIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startAggregator(t)
		job, err := CreateJob(t.Context(), l.client, spec(), 0, quiet)
		if err != nil {
			t.Fatal(err)
		}
		hold := func(ctx context.Context) pb.Aggregator_HoldClient {
			stream, err := l.client.Hold(ctx, &pb.HoldRequest{Job: 5, Key: job.Key})
			if err == nil {
				_, err = stream.Recv()
			}
			if err != nil {
				t.Fatal(err)
			}
			return stream
		}
		first := hold(t.Context())
		ctx, release := context.WithCancel(t.Context())
		hold(ctx)
		_, err = first.Recv()
		wants(t, "the first stream", err, codes.Unavailable, "newer connection")
		time.Sleep(time.Minute)
		if j := l.stats(t).Jobs; len(j) != 1 || !j[0].Held {
			t.Fatalf("the end of the first stream ends the job: %v", j)
		}
		release()
		synctest.Wait()
		if l.stats(t).Jobs[0].Held {
			t.Error("nothing holds the job, it says")
		}
		time.Sleep(DefaultLease)
		synctest.Wait()
		if len(l.stats(t).Jobs) != 0 {
			t.Error("the job outlives its lease")
		}
	})
}

// Only its owner can harvest, hold or remove a job.
func TestJobsHaveOwners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startAggregator(t)
		job := l.create(t, spec())
		other := spec()
		other.Job = 6
		theirs := l.create(t, other)
		l.push(t, l.join(t), 1, 3, 0.5)
		stranger := pb.NewAggregatorClient(l.dial(t, access.Security{}, "192.0.2.66"))
		short := job.Key[:15]
		flipped := append([]byte{job.Key[0] ^ 1}, job.Key[1:]...)
		for _, key := range [][]byte{nil, short, flipped, theirs.Key} {
			guess := &Owned{ID: 5, Job: &pb.Job{Key: key}, client: stranger}
			wants(t, "a stranger's harvest", NewHarvester(guess, newSums().apply, quiet).Run(t.Context()), codes.PermissionDenied, "job 5")
			hold, err := stranger.Hold(t.Context(), &pb.HoldRequest{Job: 5, Key: key})
			if err == nil {
				_, err = hold.Recv()
			}
			wants(t, "a stranger's hold", err, codes.PermissionDenied, "job 5")
			_, err = stranger.RemoveJob(t.Context(), &pb.RemoveJobRequest{Job: 5, Key: key})
			wants(t, "a stranger's removal", err, codes.PermissionDenied)
		}
		_, err := l.client.RemoveJob(t.Context(), &pb.RemoveJobRequest{Job: 5, Key: job.Key, Instance: job.Instance + 2})
		wants(t, "removal of another instance", err, codes.NotFound, fmt.Sprintf("job 5 is now instance %d, not %d", job.Instance, job.Instance+2))
		got := newSums()
		h, stop := harvester(t, job, got.apply)
		if err := h.Now(t.Context()); err != nil || got.rank(3) != units(t, 0.5) {
			t.Errorf("the owner harvests %d, %v", got.rank(3), err)
		}
		_ = stop()
		if err := job.Remove(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// slow is a data plane that takes long to add and remove jobs.
type slow struct {
	*aggregator.Model
	entered, leave chan struct{}
}

func (s *slow) AddJob(cfg aggregator.JobConfig) error {
	s.wait()
	return s.Model.AddJob(cfg)
}

func (s *slow) RemoveJob(job uint16) error {
	s.wait()
	return s.Model.RemoveJob(job)
}

func (s *slow) AddSender(job uint16, c aggregator.SenderConfig) error {
	s.wait()
	return s.Model.AddSender(job, c)
}

func (s *slow) wait() {
	if s.entered != nil {
		entered := s.entered
		s.entered = nil
		close(entered)
		<-s.leave
	}
}

// While the data plane works for one job, others are served; the job does not exist yet, or any
// more, and its ID is taken.
func TestJobsDoNotWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plane := &slow{}
		l := startAggregator(t, func(c *AggregatorConfig) { plane.Model, c.Plane = c.Plane.(*aggregator.Model), plane })
		var first *Owned
		steps := []struct {
			name  string
			call  func() error
			there bool // the job accepts calls in the meantime
		}{
			{"create", func() (err error) {
				first, err = CreateJob(t.Context(), l.client, spec(), 0, quiet)
				return err
			}, false},
			{"join", func() error { _, _, err := joinAs(t.Context(), l.client, joinRequest()); return err }, true},
			{"remove", func() error { return first.Remove(t.Context()) }, false},
		}
		for i, step := range steps {
			entered := make(chan struct{})
			plane.entered, plane.leave = entered, make(chan struct{})
			result := make(chan error, 1)
			go func() { result <- step.call() }()
			<-entered
			_, err := l.client.CreateJob(t.Context(), spec())
			wants(t, step.name+": the id", err, codes.AlreadyExists, "job 5")
			req := joinRequest()
			req.Sender, req.HotSet = 9, nil
			_, _, err = joinAs(t.Context(), l.client, req)
			wants(t, step.name+": a call", err, map[bool]codes.Code{true: codes.FailedPrecondition, false: codes.NotFound}[step.there])
			other := spec()
			other.Job = uint32(10 + i)
			owned := l.create(t, other)
			h, stop := harvester(t, owned, newSums().apply)
			if err := h.Now(t.Context()); err != nil {
				t.Error(err)
			}
			_ = stop()
			close(plane.leave)
			if err := <-result; err != nil {
				t.Errorf("%s: %v", step.name, err)
			}
		}
		_, err := l.client.RemoveJob(t.Context(), &pb.RemoveJobRequest{Job: 5, Key: first.Key})
		wants(t, "removed twice", err, codes.NotFound)
	})
}

// Epochs follow each other from a random one, for each ID separately.
func TestEpochs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		starts := map[uint32]bool{}
		for range 4 {
			l := startAggregator(t)
			job := l.create(t, spec())
			starts[job.Epoch] = true
			other := spec()
			other.Job = 6
			l.create(t, other)
			for i := range uint32(3) {
				req := joinRequest()
				req.Sender = i
				_, a, err := joinAs(t.Context(), l.client, req)
				if err != nil || uint16(a.Epoch) != uint16(job.Epoch+1+i) {
					t.Errorf("admission %d: %v, %v; want epoch %d", i, a, err, uint16(job.Epoch+1+i))
				}
			}
			if err := job.Remove(t.Context()); err != nil {
				t.Fatal(err)
			}
			if again := l.create(t, spec()); uint16(again.Epoch) != uint16(job.Epoch+4) {
				t.Errorf("the next job has epoch %d, want %d", again.Epoch, uint16(job.Epoch+4))
			}
		}
		if len(starts) == 1 {
			t.Error("four daemons begin with the same epoch")
		}
	})
}
