// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"

	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// zeros is a source of random numbers that are all zero.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// An instance is never 0, which means any, whatever is drawn.
func TestInstanceIsNotZero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startAggregator(t, func(c *AggregatorConfig) { c.Random = zeros{} })
		if job := l.create(t, spec()); job.Instance == 0 {
			t.Error("the instance is 0")
		}
	})
}

// An operator who names an instance does not remove its successor.
func TestOperatorRemovesTheInstanceThatIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startAggregator(t)
		job := l.create(t, spec())
		operator := pb.NewAggregatorClient(l.dial(t, access.Security{}, "192.0.2.1")) // the switch's own host
		remove := func(instance uint64) error {
			_, err := operator.RemoveJob(t.Context(), &pb.RemoveJobRequest{Job: 5, Instance: instance})
			return err
		}
		wants(t, "another instance", remove(job.Instance+2), codes.NotFound, "is now instance")
		if err := remove(job.Instance); err != nil {
			t.Error(err)
		}
	})
}

// Answers to all have the job's epoch, so a job with rounds admits its worker in that epoch, even
// if it is the only one.
func TestOneWorkerTakesRounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startAggregator(t)
		s := spec()
		s.Mode, s.Workers = pb.Mode_MODE_SYNC, 1
		job := l.create(t, s)
		if epoch := l.join(t); uint32(epoch) != job.Epoch {
			t.Errorf("admitted in epoch %d, the job's is %d", epoch, job.Epoch)
		}
	})
}

// A restarted sender takes its own place at once, even if its frames now come from another port.
func TestRestartedSenderHasAnotherPort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startAggregator(t)
		l.create(t, spec())
		host := l.dial(t, access.Security{}, workerIP.String())
		worker := pb.NewAggregatorClient(host)
		req := joinRequest()
		for _, port := range []uint32{4711, 4712} {
			req.Port = port
			_, a, err := joinAs(t.Context(), worker, req)
			if err != nil {
				t.Fatal(err)
			}
			if !l.taken(t, uint16(a.Epoch), 1, uint16(port)) {
				t.Errorf("frames from port %d are refused", port)
			}
			host.Break()
			synctest.Wait()
		}
	})
}

// A closed server accepts no calls of earlier members.
func TestClosedServerKnowsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startServer(t, sync5)
		one, _ := s.joined(t)
		s.service.Close()
		wants(t, "done", one.done(t), codes.PermissionDenied, "sender 1")
	})
}

// A worker's refused gradients drop the step, even if others arrive later without any.
func TestLaterWorkersDoNotTakeARefusalBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := barrierOf([]uint16{1, 2}, 0, func(uint64) error { return errors.New("must not commit") })
		b.reduce = func(_ uint64, r *round) error {
			if r.dropped == nil {
				t.Error("the step is applied")
			}
			return nil
		}
		refused := &DroppedError{Key: 4, KeyKnown: true}
		first := make(chan *round, 1)
		go func() {
			r, _ := b.joinRound(t.Context(), 1, 0, wish{sums: true, refused: refused})
			first <- r
		}()
		synctest.Wait()
		r, err := b.joinRound(t.Context(), 2, 0, wish{sums: true})
		if err != nil || r.dropped != refused || <-first != r {
			t.Errorf("%v, dropped for %v", err, r.dropped)
		}
	})
}

// A worker that asks again during a commit is too late to change it: all get the same answer.
func TestCommitsAreNotChangedWhileTheyRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		commit := make(chan struct{})
		b := barrierOf([]uint16{1}, 0, func(uint64) error {
			<-commit
			return nil
		})
		answers := make(chan *round, 2)
		for _, w := range []wish{{}, {sums: true, refused: &DroppedError{}}} {
			go func() {
				r, err := b.joinRound(t.Context(), 1, 0, w)
				if err != nil {
					t.Error(err)
				}
				answers <- r
			}()
			synctest.Wait()
		}
		close(commit)
		for range 2 {
			if r := <-answers; r.dropped != nil || r.reduces {
				t.Errorf("the round is dropped for %v, reduces %v", r.dropped, r.reduces)
			}
		}
	})
}

// A worker that waits at a step does not ask for the previous one.
func TestWorkerDoesNotGoBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := barrierOf([]uint16{1, 2}, 0, func(uint64) error { return nil })
		go func() { _ = b.wait(t.Context(), 2, 0) }()
		if err := b.wait(t.Context(), 1, 0); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _ = b.wait(ctx, 1, 1) }()
		synctest.Wait()
		if err := b.wait(t.Context(), 1, 0); !contains(err, "worker 1 is at step 0, the job at step 1") {
			t.Errorf("%v", err)
		}
	})
}
