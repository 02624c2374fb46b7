// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/libra-ina/libra/aggregator"
	pb "github.com/libra-ina/libra/control/controlpb"
)

func keepsLog5(c *ParameterServerConfig) { c.Sync, c.KeepLog = true, true }

func withKeptLog(r *pb.JoinRequest) { r.KeepsLog = true }

func (w *worker) settle(t *testing.T, instance uint64, epoch uint32) (*pb.HarvestMark, error) {
	answer, err := w.Settle(t.Context(), &pb.SettleRequest{Job: 5, Sender: w.id, Token: w.member.GetToken(),
		Instance: instance, Epoch: epoch, Next: 40})
	return answer.GetMark(), err
}

// arrive arrives at the end of step 0 with frames that went to an instance.
func (w *worker) arrive(t *testing.T, instance uint64) chan error {
	result := make(chan error, 1)
	go func() {
		_, err := w.Barrier(t.Context(), &pb.BarrierRequest{Job: 5, Sender: w.id, Step: 0, Token: w.member.GetToken(),
			Instance: instance})
		result <- err
	}()
	return result
}

// joinedWithLogs returns workers 1 and 2, which have joined and keep logs.
func (s *parameterServer) joinedWithLogs(t *testing.T) (one, two *worker) {
	t.Helper()
	one, two = s.worker(t, 1), s.worker(t, 2)
	for _, w := range []*worker{one, two} {
		if err := w.join(t, withKeptLog); err != nil {
			t.Fatal(err)
		}
		if !w.member.KeepLog || w.member.Instance != 77 {
			t.Fatalf("%+v", w.member)
		}
	}
	return one, two
}

// A worker is told its marks, at most every 50 ms, and at once that its generation has ended.
func TestMarksAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startServer(t, keepsLog5)
		one, _ := s.joinedWithLogs(t)
		begun := time.Now()
		go func() {
			for i := range 200 {
				time.Sleep(time.Millisecond)
				s.service.Applied([]aggregator.Mark{{Sender: 1, Epoch: 3, Newest: uint32(i + 1)}, {Sender: 2, Epoch: 4}})
				s.service.Applied(nil) // an empty harvest
			}
			time.Sleep(5 * time.Millisecond)
			mustFence(t, s.service)
		}()
		var told []uint32
		for {
			m, err := one.stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if m.Instance == 0 {
				break
			}
			if m.Committed.Sender != 1 || m.Committed.Epoch != 3 {
				t.Errorf("worker 1 is told %+v", m.Committed)
			}
			told = append(told, m.Committed.Newest)
		}
		if len(told) < 4 || len(told) > 5 {
			t.Errorf("200 harvests in 200 ms: told %v", told)
		}
		if took := time.Since(begun); took > 206*time.Millisecond {
			t.Errorf("the end of the generation is told after %v", took)
		}
	})
}

// Settling needs the worker's own token and a generation that has ended. The mark is that of the
// worker's admission.
func TestSettleIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var taken []uint32
		s := startServer(t, keepsLog5, func(c *ParameterServerConfig) {
			c.Settled = func(_ context.Context, sender uint16, next uint32) error {
				taken = append(taken, uint32(sender), next)
				return nil
			}
		})
		one, two := s.joinedWithLogs(t)
		s.service.Applied([]aggregator.Mark{{Sender: 1, Epoch: 3, Newest: 9}})
		_, err := one.settle(t, 77, 3)
		wants(t, "before the fence", err, codes.FailedPrecondition, "has not ended")
		if !s.service.MayFence() {
			t.Error("all workers keep logs, and the job may not go on")
		}
		mustFence(t, s.service)
		mine := one.member
		one.member = two.member
		_, err = one.settle(t, 77, 3)
		wants(t, "another worker's token", err, codes.PermissionDenied)
		one.member = mine
		_, err = one.settle(t, 78, 3)
		wants(t, "another instance", err, codes.FailedPrecondition)
		_, err = one.settle(t, 0, 3)
		wants(t, "no instance", err, codes.FailedPrecondition)
		if taken != nil {
			t.Errorf("refused workers take steps: %v", taken)
		}
		if mark, err := one.settle(t, 77, 3); err != nil || mark.Newest != 9 {
			t.Errorf("mark %+v, %v", mark, err)
		}
		if mark, err := one.settle(t, 77, 4); err != nil || mark.Newest != 0 || mark.Applied[0] != 1 {
			t.Errorf("of another admission: mark %+v, %v", mark, err)
		}
		if len(taken) != 4 || taken[0] != 1 || taken[1] != 40 {
			t.Errorf("settled workers take steps: %v", taken)
		}
	})
}

// A worker whose connection breaks says again that it has settled, perhaps when a later generation
// has ended, too.
func TestSettledIsSaidAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startServer(t, keepsLog5)
		one, two := s.joinedWithLogs(t)
		mustFence(t, s.service)
		settled := func(w *worker, instance uint64) error {
			_, err := w.Settle(t.Context(), &pb.SettleRequest{Job: 5, Sender: w.id, Token: w.member.GetToken(),
				Instance: instance, Epoch: 3, Settled: true})
			return err
		}
		if err := errors.Join(settled(one, 77), settled(two, 77)); err != nil {
			t.Fatal(err)
		}
		s.service.Begin(78, 1)
		mustFence(t, s.service)
		if err := settled(one, 77); err != nil {
			t.Errorf("again: %v", err)
		}
		_, err := one.settle(t, 77, 3)
		wants(t, "marks of an earlier generation", err, codes.FailedPrecondition)
		wants(t, "an instance that was none", settled(one, 79), codes.FailedPrecondition)
	})
}

func mustFence(t *testing.T, s *ParameterServer) {
	t.Helper()
	if err := s.Fence(); err != nil {
		t.Fatal(err)
	}
}

// A worker that keeps no log could not settle: while it is there, the generation does not end,
// although it may have joined after the server asked. A fence that is refused changes nothing.
func TestWorkerWithoutLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startServer(t, keepsLog5)
		one, two := s.worker(t, 1), s.worker(t, 2)
		if err := one.join(t, withKeptLog); err != nil || !s.service.MayFence() {
			t.Error(err)
		}
		if err := two.join(t); err != nil || s.service.MayFence() {
			t.Error("the job may go on, although a worker has no log", err)
		}
		waits := one.arrive(t, 77)
		synctest.Wait()
		if err := s.service.Fence(); !errors.Is(err, ErrNoLog) {
			t.Errorf("a fence while a worker has no log: %v", err)
		}
		if err := errors.Join(<-two.arrive(t, 77), <-waits); err != nil {
			t.Errorf("the step after a refused fence: %v", err)
		}
		if err := errors.Join(two.done(t), two.leave(t)); err != nil {
			t.Error(err)
		}
		mustFence(t, s.service)
	})
}

// A fence takes back the arrivals at the end of a step: the step ends when all workers have arrived
// again, and not with a call from before.
func TestFenceWithdrawsArrivals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startServer(t, keepsLog5)
		one, two := s.joinedWithLogs(t)
		before := one.arrive(t, 77)
		synctest.Wait()
		mustFence(t, s.service)
		if err := <-before; !isFenced(err) {
			t.Errorf("who has arrived is told %v", err)
		}
		if err := <-two.arrive(t, 77); !isFenced(err) {
			t.Errorf("who arrives from before the fence is told %v", err)
		}
		again := two.arrive(t, 0)
		synctest.Wait()
		if len(s.commits) != 0 {
			t.Fatalf("commits %v, before worker 1 has arrived again", s.commits)
		}
		for _, result := range []chan error{again, one.arrive(t, 0)} {
			if err := <-result; err != nil {
				t.Error(err)
			}
		}
		if len(s.commits) != 1 {
			t.Errorf("commits %v", s.commits)
		}
	})
}

// A commit that the fence finds before the store leaves the step open; one that the store has ends
// it.
func TestFenceDuringACommit(t *testing.T) {
	for name, reached := range map[string]bool{"before the store": false, "behind it": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				commits, goOn := 0, make(chan struct{})
				s := startServer(t, keepsLog5, func(c *ParameterServerConfig) {
					c.Commit = func(ctx context.Context, _ uint64) error {
						commits++
						if commits == 1 && reached {
							<-goOn
							return nil
						}
						if commits == 1 {
							<-ctx.Done()
							return context.Cause(ctx)
						}
						return nil
					}
				})
				one, two := s.joinedWithLogs(t)
				first, second := one.arrive(t, 77), two.arrive(t, 77)
				synctest.Wait()
				mustFence(t, s.service)
				close(goOn)
				for _, result := range []chan error{first, second} {
					if err := <-result; (err == nil) != reached || !reached && !isFenced(err) {
						t.Errorf("a worker is told %v", err)
					}
				}
				for _, result := range []chan error{one.arrive(t, 0), two.arrive(t, 0)} {
					if err := <-result; err != nil {
						t.Error(err)
					}
				}
				if want := map[bool]int{true: 1, false: 2}[reached]; commits != want {
					t.Errorf("%d commits, want %d", commits, want)
				}
			})
		})
	}
}

// What was torn before a fence stays torn; also by a worker that had arrived, in a commit that the
// fence stops: it does not arrive again, and its successor knows nothing of its gradients.
func TestFenceKeepsTornSteps(t *testing.T) {
	for name, arrived := range map[string]bool{"before all have arrived": false, "during the commit": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				commits, dropped := 0, 0
				s := startServer(t, keepsLog5, func(c *ParameterServerConfig) {
					c.Commit = func(ctx context.Context, _ uint64) error {
						commits++
						if commits == 1 {
							<-ctx.Done()
							return context.Cause(ctx)
						}
						return nil
					}
					c.Reduce = func(context.Context, uint64, bool) (Sums, error) { return Sums{}, nil }
					c.Drop = func(context.Context, uint64, bool) error {
						dropped++
						return nil
					}
				})
				one, two := s.joinedWithLogs(t)
				var before []chan error
				if arrived {
					before = append(before, one.arrive(t, 77), two.arrive(t, 77))
					synctest.Wait()
				}
				if _, err := one.Tear(t.Context(), &pb.TearRequest{Job: 5, Sender: 1, Token: one.member.Token}); err != nil {
					t.Fatal(err)
				}
				mustFence(t, s.service)
				for _, result := range before {
					if err := <-result; !isFenced(err) {
						t.Errorf("who has arrived is told %v", err)
					}
				}
				for _, result := range []chan error{one.arrive(t, 0), two.arrive(t, 0)} {
					wants(t, "a torn step", <-result, codes.Aborted, "dropped")
				}
				if dropped != 1 {
					t.Errorf("dropped %d times", dropped)
				}
			})
		})
	}
}

// A worker that joins when the aggregator is lost needs none.
func TestJoinWithoutAggregator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startServer(t, func(c *ParameterServerConfig) { c.KeepLog = true })
		mustFence(t, s.service)
		w := s.worker(t, 1)
		if err := w.join(t, withKeptLog); err != nil || w.member.Instance != 0 {
			t.Errorf("%+v, %v", w.member, err)
		}
	})
}

// The log says when the gradients of a worker are lost with it and the aggregator, and only then.
func TestLossOfBothIsLogged(t *testing.T) {
	harvest := func(_ *testing.T, s *parameterServer, _ *worker) {
		s.service.Applied([]aggregator.Mark{{Sender: 1, Epoch: 3, Newest: 9}})
	}
	empty := func(_ *testing.T, s *parameterServer, _ *worker) { s.service.Applied(nil) }
	dies := func(_ *testing.T, _ *parameterServer, w *worker) {
		w.host.Vanish()
		time.Sleep(DefaultGrace + time.Second)
	}
	fence := func(t *testing.T, s *parameterServer, _ *worker) { mustFence(t, s.service) }
	settles := func(t *testing.T, _ *parameterServer, w *worker) {
		if _, err := w.settle(t, 77, 3); err != nil {
			t.Error(err)
		}
	}
	forgets := func(t *testing.T, s *parameterServer, w *worker) { // it joins again, and keeps none
		if err := errors.Join(w.suspend(t), w.join(t)); err != nil {
			t.Error(err)
		}
	}
	type event = func(*testing.T, *parameterServer, *worker)
	for name, c := range map[string]struct {
		events []event
		sync   bool
		lost   bool
	}{
		"the worker first":                {events: []event{harvest, dies, fence}, lost: true},
		"the aggregator first":            {events: []event{harvest, fence, dies}, lost: true},
		"a harvest was on its way":        {events: []event{dies, harvest, fence}, lost: true},
		"harvested":                       {events: []event{dies, harvest, empty, fence}},
		"settled":                         {events: []event{fence, settles, dies}},
		"the aggregator alone":            {events: []event{fence, settles}},
		"the worker alone":                {events: []event{dies}},
		"a worker without a log":          {events: []event{forgets, dies, fence}},
		"steps, which a restart repeats":  {events: []event{fence, dies}, sync: true},
		"both, and another harvest later": {events: []event{dies, fence, harvest, harvest}, lost: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log notes
				s := startServer(t, func(cfg *ParameterServerConfig) { cfg.KeepLog, cfg.Sync, cfg.Log = true, c.sync, log.Logger() })
				one, _ := s.joinedWithLogs(t)
				for _, happens := range c.events {
					happens(t, s, one)
				}
				const line = "the aggregator and a worker were lost together"
				if is := strings.Contains(log.String(), line) && strings.Contains(log.String(), "worker=1"); is != c.lost {
					t.Errorf("logged: %v\n%s", is, log.String())
				}
			})
		})
	}
}
