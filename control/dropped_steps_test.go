// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	pb "github.com/libra-ina/libra/control/controlpb"
)

func (w *worker) tear(t *testing.T, step uint64) error {
	_, err := w.Tear(t.Context(), &pb.TearRequest{Job: 5, Sender: w.id, Token: w.member.GetToken(), Step: step})
	return err
}

// stepsServer is a server of a sync job with sums, which records its commits and drops.
func stepsServer(t *testing.T) (s *parameterServer, dropped *[]uint64) {
	t.Helper()
	dropped = new([]uint64)
	s = startServer(t, sync5, func(c *ParameterServerConfig) {
		c.Reduce = func(context.Context, uint64, bool) (Sums, error) { return Sums{}, nil }
		c.Drop = func(_ context.Context, step uint64, _ bool) error {
			*dropped = append(*dropped, step)
			return nil
		}
	})
	return s, dropped
}

// The first reason for which a step is dropped is the one that all are told: that of a later
// worker, or none, does not replace it.
func TestFirstReasonOfADrop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := stepsServer(t)
		ended := s.waits(t)
		one, two := s.joined(t)
		first := make(chan error, 1)
		go func() {
			_, err := one.reduce(t, 0, &DroppedError{Key: 7, KeyKnown: true})
			first <- err
		}()
		synctest.Wait()
		if err := two.tear(t, 0); err != nil {
			t.Error(err)
		}
		_, err := two.reduce(t, 0, &DroppedError{Key: 9, KeyKnown: true})
		for _, err := range []error{err, <-first} {
			var why *DroppedError
			if !errors.As(err, &why) || *why != (DroppedError{Key: 7, KeyKnown: true}) {
				t.Errorf("the step ends with %v, want the refusal of key 7", err)
			}
		}
		if err := errors.Join(one.done(t), two.done(t), <-ended); err != nil {
			t.Error(err)
		}
	})
}

// A worker that cannot repeat steps, and is lost, drops the open step for all when it is back,
// wherever it was; the next step is as usual. If it does not come back, the job ends.
func TestLossDropsTheOpenStep(t *testing.T) {
	for _, arrived := range []bool{false, true} { // it has come to the end of the step
		for _, noticed := range []bool{false, true} { // that it is lost, before it is back
			synctest.Test(t, func(t *testing.T) {
				s, dropped := stepsServer(t)
				ended := s.waits(t)
				one, two := s.joined(t)
				if err := meet(t, one, two, 0); err != nil {
					t.Fatal(err)
				}
				if arrived {
					w := *two
					go func() { _, _ = w.reduce(t, 1, nil) }()
					synctest.Wait()
				}
				two.host.Vanish()
				if noticed {
					time.Sleep(DefaultGrace)
				}
				synctest.Wait()
				two = s.worker(t, 2)
				if err := two.join(t); err != nil || two.member.GetNextStep() != 1 {
					t.Fatalf("%v, next step %d", err, two.member.GetNextStep())
				}
				other := make(chan error, 1)
				go func() { _, err := one.reduce(t, 1, nil); other <- err }()
				_, err := two.reduce(t, 1, nil)
				for _, err := range []error{err, <-other} {
					if why := new(DroppedError); !errors.As(err, &why) {
						t.Errorf("arrived %v, noticed %v: the step ends with %v", arrived, noticed, err)
					}
				}
				if err := meet(t, one, two, 2); err != nil || !slices.Equal(*dropped, []uint64{1}) {
					t.Errorf("the next step: %v; dropped are %v", err, *dropped)
				}
				two.host.Vanish()
				time.Sleep(DefaultGrace + DefaultRejoin)
				if err := <-ended; !contains(err, "worker 2 left before it had finished", "did not join again within 30s") {
					t.Errorf("the job ends with %v", err)
				}
			})
		}
	}
}

// A worker of a sync job that may come back is not lost: the others wait for it. If it has left a
// step torn, all are told that the step is dropped, and the next one is as usual.
func TestReturnToASyncJob(t *testing.T) {
	for _, arrived := range []bool{false, true} { // it has come to the end of the step
		for _, torn := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				s, dropped := stepsServer(t)
				ended := s.waits(t)
				one, two := s.joined(t)
				if err := meet(t, one, two, 0); err != nil {
					t.Fatal(err)
				}
				if arrived {
					w := *two
					go func() { _, _ = w.reduce(t, 1, nil) }()
					synctest.Wait()
				}
				if torn {
					if err := two.tear(t, 1); err != nil {
						t.Fatal(err)
					}
				}
				if err := two.suspend(t); err != nil {
					t.Fatal(err)
				}
				other := make(chan error, 1)
				go func() { _, err := one.reduce(t, 1, nil); other <- err }()
				time.Sleep(10 * time.Second)
				synctest.Wait()
				if len(other)+len(ended)+len(s.lost) != 0 {
					t.Fatal("it counts as lost, or as finished")
				}
				two = s.worker(t, 2)
				if err := two.join(t); err != nil {
					t.Fatal(err)
				}
				if two.member.GetNextStep() != 1 {
					t.Errorf("it is to continue with step %d", two.member.GetNextStep())
				}
				var drop1, drop2 *DroppedError
				err := droppedIn(two.barrier(t, 1))
				if other := <-other; errors.As(err, &drop1) != torn || errors.As(other, &drop2) != torn || !torn && (err != nil || other != nil) {
					t.Errorf("torn %v: the step ends with %v and %v", torn, err, other)
				}
				if err := meet(t, one, two, 2); err != nil {
					t.Error(err)
				}
				if (len(*dropped) == 1) != torn {
					t.Errorf("torn %v: steps %v are dropped", torn, *dropped)
				}
				if err := errors.Join(one.done(t), two.done(t), <-ended); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// A step that a worker has left torn is dropped for the others if the worker has finished, and also
// if all have. Tearing a step that is over changes nothing.
func TestTornStepOfAFinishedWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, dropped := stepsServer(t)
		ended := s.waits(t)
		one, two := s.joined(t)
		if err := meet(t, one, two, 0); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(two.tear(t, 0), two.tear(t, 2), meet(t, one, two, 1)); err != nil {
			t.Fatal(err)
		}
		other := make(chan error, 1)
		go func() { _, err := one.reduce(t, 2, nil); other <- err }()
		synctest.Wait()
		if err := errors.Join(two.tear(t, 2), two.done(t)); err != nil {
			t.Fatal(err)
		}
		var drop *DroppedError
		if err := <-other; !errors.As(err, &drop) {
			t.Errorf("the step that the other has torn: %v", err)
		}
		if _, err := one.reduce(t, 3, nil); err != nil {
			t.Errorf("the next one: %v", err)
		}
		if err := two.tear(t, 4); err != nil || s.service.IsTorn() {
			t.Errorf("one that has finished tears a step: %v", err)
		}
		if err := errors.Join(one.tear(t, 4), one.done(t), <-ended); err != nil {
			t.Error(err)
		}
		if !s.service.IsTorn() || !slices.Equal(*dropped, []uint64{2}) {
			t.Errorf("torn %v, dropped %v", s.service.IsTorn(), *dropped)
		}
	})
}

// Without steps that workers take together, none can be dropped.
func TestTearNeedsSteps(t *testing.T) {
	s := startServer(t)
	one, _ := s.joined(t)
	wants(t, "tear", one.tear(t, 0), codes.FailedPrecondition, "job 5 does not take steps together")
}
