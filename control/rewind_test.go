// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/libra-ina/libra/control/controlpb"
)

func withRewinds(r *pb.JoinRequest) { r.KeepsLog, r.Rewinds = true, true }

// startRewinding starts a server that rewinds, and says how often it has.
func startRewinding(t *testing.T) (s *parameterServer, rewinds *int) {
	t.Helper()
	rewinds = new(int)
	s = startServer(t, keepsLog5, func(c *ParameterServerConfig) {
		c.Rewind = func(context.Context) error {
			*rewinds++
			for _, id := range []uint16{1, 2} {
				if _, ok := s.of(id); ok {
					t.Errorf("worker %d is admitted when the step is dropped", id)
				}
			}
			s.service.Rewind()
			return nil
		}
	})
	return s, rewinds
}

// hasRewound reports whether a worker joins again after an error, whose text says so once at most.
func hasRewound(err error) bool {
	err = callError("server", "call", err)
	return errors.Is(err, ErrRewound) && strings.Count(err.Error(), ErrRewound.Error()) < 2
}

// A lost worker makes all join again, and no call from before counts.
func TestRewind(t *testing.T) {
	for name, lose := range map[string]func(w *worker){
		"vanishes": func(w *worker) { w.host.Vanish(); time.Sleep(DefaultGrace) },
		"restarts": func(w *worker) { w.host.Vanish() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, rewinds := startRewinding(t)
				result := s.waits(t)
				one, two := s.worker(t, 1), s.worker(t, 2)
				for _, w := range []*worker{one, two} {
					if err := w.join(t, withRewinds); err != nil {
						t.Fatal(err)
					}
				}
				before, _ := s.of(2)
				waiting := two.arrive(t, 77)
				synctest.Wait()
				lose(one)
				synctest.Wait()
				again := s.worker(t, 1)
				if err := again.join(t, withRewinds); err != nil || again.member.Instance != 0 || again.member.Ended != 77 {
					t.Fatalf("%v, %v", again.member, err)
				}
				if err := <-waiting; !hasRewound(err) {
					t.Errorf("who waits is told %v", err)
				}
				if _, err := two.stream.Recv(); !hasRewound(err) {
					t.Errorf("the admission of another ends with %v", err)
				}
				if err := <-two.arrive(t, 0); !hasRewound(err) {
					t.Errorf("a call of an admission that has ended: %v", err)
				}
				if err := two.join(t, func(r *pb.JoinRequest) { r.Token = two.member.Token }); !hasRewound(err) {
					t.Errorf("a return with the token of before: %v", err)
				}
				if err := two.join(t, withRewinds); err != nil {
					t.Fatal(err)
				}
				if now, _ := s.of(2); now.epoch == before.epoch {
					t.Errorf("the epoch is still %d", now.epoch)
				}
				if !s.service.AllSettled() {
					t.Error("workers that have joined after the rewind have something to settle")
				}
				first, second := again.arrive(t, 0), two.arrive(t, 0)
				if err := errors.Join(<-first, <-second); err != nil || !slices.Equal(s.commits, []uint64{0}) || *rewinds != 1 {
					t.Errorf("%v, commits %v, %d rewinds", err, s.commits, *rewinds)
				}
				if err := errors.Join(again.done(t), two.done(t), again.leave(t), two.leave(t), <-result); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A job does not rewind for a worker that leaves, or while one takes part that cannot repeat a
// step.
func TestNoRewind(t *testing.T) {
	const lost = "worker 1 left before it had finished"
	vanish := func(away time.Duration) func(*testing.T, *worker) {
		return func(_ *testing.T, w *worker) { w.host.Vanish(); time.Sleep(DefaultGrace + away) }
	}
	for name, c := range map[string]struct {
		other func(*pb.JoinRequest)
		lose  func(t *testing.T, w *worker)
		want  string
	}{
		"a worker leaves":                    {withRewinds, func(t *testing.T, w *worker) { _ = w.leave(t) }, lost},
		"another one cannot repeat the step": {withKeptLog, vanish(0), lost},
		"another one does not keep a log":    {func(r *pb.JoinRequest) { r.Rewinds = true }, vanish(0), lost},
		"none is back within 30 seconds":     {withRewinds, vanish(DefaultRejoin), "and it did not join again within 30s"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, _ := startRewinding(t)
				result := s.waits(t)
				one, two := s.worker(t, 1), s.worker(t, 2)
				if err := errors.Join(one.join(t, withRewinds), two.join(t, c.other)); err != nil {
					t.Fatal(err)
				}
				c.lose(t, one)
				if err := <-result; !contains(err, c.want) {
					t.Errorf("Wait returns %v", err)
				}
				if err := s.worker(t, 1).join(t, withRewinds); err == nil {
					t.Error("who comes back is admitted")
				}
			})
		})
	}
}

// A rewind forgets who has arrived and what was torn, and refuses arrivals of admissions from
// before it, except that the end of a step whose commit has begun is the commit's.
func TestBarrierRewinds(t *testing.T) {
	began, goOn := make(chan struct{}), make(chan struct{})
	b := barrierOf([]uint16{1, 2}, 0, func(step uint64) error {
		if step == 0 {
			close(began)
			<-goOn
		}
		return nil
	})
	results := make(chan error, 2)
	join := func(worker uint16, step uint64, rewinds uint64) {
		_, err := b.joinRound(t.Context(), worker, step, wish{rewinds: rewinds})
		results <- err
	}
	go join(1, 0, 0)
	go join(2, 0, 0)
	<-began
	b.rewindArrivals()
	close(goOn)
	if err := errors.Join(<-results, <-results); err != nil {
		t.Errorf("a step that the store has: %v", err)
	}
	if _, _, err := b.arriveWorker(1, 1, wish{}); !errors.Is(err, ErrRewound) {
		t.Errorf("an arrival from before: %v", err)
	}
	if _, commit, err := b.arriveWorker(1, 1, wish{rewinds: 1}); commit || err != nil || !b.tearStep(2, 1) {
		t.Errorf("%v, %v", commit, err)
	}
	b.rewindArrivals()
	if b.isTorn() {
		t.Error("the step is torn after the rewind")
	}
	if _, commit, err := b.arriveWorker(2, 1, wish{rewinds: 2}); commit || err != nil {
		t.Errorf("the last but one of the step: %v, %v", commit, err)
	}
	if _, commit, err := b.arriveWorker(1, 1, wish{rewinds: 2}); !commit || err != nil {
		t.Errorf("the last one of the step: %v, %v", commit, err)
	}
}
