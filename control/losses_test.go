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

// In a sync job the loss of a worker, of any kind, ends the others' steps, and no other worker can
// join.
func TestLossInASyncJob(t *testing.T) {
	for name, c := range map[string]struct {
		lose func(t *testing.T, s *parameterServer, w *worker)
		want string
	}{
		"leaves":   {func(t *testing.T, _ *parameterServer, w *worker) { _ = w.leave(t) }, "worker 1 left before it had finished"},
		"vanishes": {func(_ *testing.T, _ *parameterServer, w *worker) { w.host.Vanish(); time.Sleep(DefaultGrace) }, "worker 1 left before it had finished: it was not connected for 3s"},
		"restarts": {func(t *testing.T, s *parameterServer, w *worker) {
			w.host.Vanish()
			synctest.Wait()
			wants(t, "the new self", s.worker(t, 1).join(t), codes.FailedPrecondition, "worker 1 cannot join any more", "restarted")
		}, "worker 1 left before it had finished: it was restarted"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := startServer(t, sync5)
				result := s.waits(t)
				one, two := s.joined(t)
				waiting := make(chan error, 1)
				go func() { waiting <- two.barrier(t, 0) }()
				synctest.Wait()
				c.lose(t, s, one)
				wants(t, "who waits", <-waiting, codes.FailedPrecondition, c.want)
				if _, ok := s.of(1); ok {
					t.Error("the lost worker's frames are taken")
				}
				wants(t, "another", s.worker(t, 1).join(t), codes.FailedPrecondition, c.want)
				_ = two.leave(t)
				if err := <-result; err == nil || err.Error() != c.want {
					t.Errorf("Wait returns %v, want %q", err, c.want)
				}
				synctest.Wait()
				if !slices.Equal(s.lost, []uint16{1, 2}) || len(s.commits) != 0 {
					t.Errorf("lost %v, commits %v", s.lost, s.commits)
				}
			})
		})
	}
}

// A host that takes part by an agent stays in a sync job that has lost another. It has time to
// leave, gets the reason, and the server ends.
func TestLossEndsThoseThatStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const want = "worker 1 left before it had finished"
		s := startServer(t, sync5)
		result := s.waits(t)
		one, two := s.joined(t)
		began := time.Now()
		if err := one.leave(t); err != nil {
			t.Fatal(err)
		}
		if err := <-result; err == nil || err.Error() != want {
			t.Errorf("Wait returns %v, want %q", err, want)
		}
		if took := time.Since(began); took < DefaultGrace || took > DefaultGrace+missingEvery {
			t.Errorf("Wait returns after %v", took)
		}
		_, err := two.stream.Recv()
		wants(t, "who stays", err, codes.Aborted, want)
	})
}

// A sync job whose worker is lost ends although another has not joined yet: that one could no
// longer join, so waiting for it would never end.
func TestLossInASyncJobBeforeAllHaveJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startServer(t, sync5)
		result := s.waits(t)
		one := s.worker(t, 1)
		if err := one.join(t); err != nil {
			t.Fatal(err)
		}
		one.host.Vanish()
		time.Sleep(DefaultGrace)
		synctest.Wait()
		select {
		case err := <-result:
			if want := "worker 1 left before it had finished: it was not connected for 3s"; err == nil || err.Error() != want {
				t.Errorf("Wait returns %v, want %q", err, want)
			}
		default:
			t.Error("the server still waits for worker 2, which cannot join any more")
		}
		wants(t, "the other", s.worker(t, 2).join(t), codes.FailedPrecondition, "worker 2 cannot join any more")
	})
}

// A connection in a sync job that breaks and is restored within the grace period is not a loss,
// even while its worker waits.
func TestBrokenConnectionIsNoLoss(t *testing.T) {
	for name, harm := range map[string]func(*client){"both halves": (*client).Break, "the client's half": (*client).HalfOpen} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := startServer(t, sync5)
				one, two := s.joined(t)
				epoch := one.member.Epoch
				for step := range uint64(3) {
					passed := make(chan error, 1)
					go func() {
						passed <- Repeat(t.Context(), func(context.Context) error { return one.barrier(t, step) })
					}()
					synctest.Wait()
					harm(one.host)
					time.Sleep(DefaultGrace - time.Second)
					token := one.member.Token
					if err := one.join(t, func(r *pb.JoinRequest) { r.Token = token }); err != nil {
						t.Fatal(err)
					}
					if err := two.barrier(t, step); err != nil {
						t.Error(err)
					}
					if err := <-passed; err != nil {
						t.Error(err)
					}
				}
				if one.member.Epoch != epoch || len(s.history) != 2 || len(s.commits) != 3 {
					t.Errorf("epoch %d became %d; admissions %v; commits %v", epoch, one.member.Epoch, s.history, s.commits)
				}
				if err := errors.Join(one.done(t), two.done(t), s.service.Wait(t.Context())); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// In an asynchronous job a lost worker may rejoin, with a new epoch, while it is waited for.
func TestLostWorkerJoinsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startServer(t, func(c *ParameterServerConfig) {
			c.Rejoin = 20 * time.Second
			c.FirstStep = func(sender uint16) uint64 { return 10 * uint64(sender) }
		})
		result := s.waits(t)
		one, two := s.joined(t)
		epoch := one.member.Epoch
		for round, absent := range []time.Duration{0, DefaultGrace - time.Second, DefaultGrace + 19*time.Second} {
			one.host.Vanish()
			synctest.Wait()
			time.Sleep(absent)
			one = s.worker(t, 1)
			if err := one.join(t); err != nil {
				t.Fatal(err)
			}
			if want := uint16(epoch) + uint16(round) + 2; uint16(one.member.Epoch) != want || one.member.FirstStep != 10 {
				t.Errorf("it joins anew as %v, want epoch %d", one.member, want)
			}
			if as, _ := s.of(1); uint32(as.epoch) != one.member.Epoch {
				t.Errorf("its frames are taken in epoch %d", as.epoch)
			}
		}
		time.Sleep(time.Hour) // it is not given up
		synctest.Wait()
		if !slices.Equal(s.lost, []uint16{1, 1, 1}) {
			t.Errorf("lost %v, want worker 1, thrice", s.lost)
		}
		if err := errors.Join(one.done(t), two.done(t), <-result); err != nil {
			t.Error(err)
		}
	})
}

// A worker that does not return is given up; the others finish, and then the server knows which one
// is missing.
func TestWorkerIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startServer(t)
		result := s.waits(t)
		one, two := s.joined(t)
		one.host.Vanish()
		synctest.Wait()
		time.Sleep(DefaultGrace + DefaultRejoin - time.Millisecond)
		if err := s.service.barrier.failureOf(); err != nil {
			t.Errorf("given up too early: %v", err)
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		want := "worker 1 left before it had finished: it was not connected for 3s, and it did not join again within 30s"
		if err := s.service.barrier.failureOf(); err == nil || err.Error() != want {
			t.Errorf("given up: %v, want %q", err, want)
		}
		wants(t, "too late", s.worker(t, 1).join(t), codes.FailedPrecondition, "cannot join any more", want)
		// Worker 2 may still be lost, and rejoin.
		if err := two.leave(t); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if err := two.join(t); err != nil {
			t.Fatal(err)
		}
		if len(result) != 0 {
			t.Fatal("Wait returns while worker 2 runs")
		}
		if err := two.done(t); err != nil {
			t.Error(err)
		}
		if err := <-result; err == nil || err.Error() != want {
			t.Errorf("Wait returns %v, want %q", err, want)
		}
	})
}

// A finished worker is not lost when its connection ends, and may rejoin.
func TestFinishedWorkerIsNoLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startServer(t)
		one, two := s.joined(t)
		if err := one.done(t); err != nil {
			t.Fatal(err)
		}
		one.host.Vanish()
		time.Sleep(time.Hour)
		if _, ok := s.of(1); ok || len(s.lost) != 0 {
			t.Errorf("lost %v", s.lost)
		}
		if err := s.worker(t, 1).join(t); err != nil {
			t.Error(err)
		}
		if err := errors.Join(two.done(t), s.service.Wait(t.Context())); err != nil {
			t.Error(err)
		}
	})
}
