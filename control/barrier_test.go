// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// wait is join with an empty wish.
func (b *barrier) wait(ctx context.Context, worker uint16, step uint64) error {
	_, err := b.joinRound(ctx, worker, step, wish{})
	return err
}

func TestBarrierCommitsOnceAStepAfterAllArrived(t *testing.T) {
	const workers, steps = 4, 50
	var arrived [steps]atomic.Int32
	var commits []uint64
	b := barrierOf([]uint16{1, 2, 3, 4}, 0, func(step uint64) error {
		if n := arrived[step].Load(); n != workers {
			t.Errorf("step %d committed with %d workers", step, n)
		}
		commits = append(commits, step)
		return nil
	})
	var wg sync.WaitGroup
	for id := uint16(1); id <= workers; id++ {
		wg.Go(func() {
			for step := range uint64(steps) {
				arrived[step].Add(1)
				if err := b.wait(t.Context(), id, step); err != nil {
					t.Error(err)
					return
				}
			}
			b.finishWorker(id)
		})
	}
	wg.Wait()
	if len(commits) != steps {
		t.Fatalf("%d commits, want %d", len(commits), steps)
	}
	<-b.idle
	if err := b.failureOf(); err != nil {
		t.Fatal(err)
	}
}

func TestBarrierFailsWaitersWhenAWorkerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := barrierOf([]uint16{1, 2, 3}, 0, func(uint64) error { return errors.New("must not commit") })
		errs := make(chan error, 2)
		for id := uint16(1); id <= 2; id++ {
			go func() { errs <- b.wait(t.Context(), id, 0) }()
		}
		synctest.Wait() // both are waiting for worker 3
		b.loseWorker(3, errors.New("worker 3 left"))
		for range 2 {
			if err := <-errs; err == nil || !strings.Contains(err.Error(), "worker 3 left") {
				t.Errorf("waiter got %v", err)
			}
		}
		if err := b.wait(t.Context(), 1, 0); err == nil {
			t.Error("a barrier that lost a worker lets another pass")
		}
		b.finishWorker(1)
		b.finishWorker(2)
		<-b.idle
		if b.failureOf() == nil {
			t.Error("the loss is forgotten")
		}
	})
}

func TestBarrierPassesTheCommitErrorToAll(t *testing.T) {
	boom := errors.New("store is full")
	b := barrierOf([]uint16{1, 2}, 0, func(uint64) error { return boom })
	errs := make(chan error, 2)
	for id := uint16(1); id <= 2; id++ {
		go func() { errs <- b.wait(t.Context(), id, 0) }()
	}
	for range 2 {
		if err := <-errs; !errors.Is(err, boom) {
			t.Errorf("got %v", err)
		}
	}
}

func TestBarrierRefusesWrongCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := barrierOf([]uint16{1, 2}, 7, func(uint64) error { return nil })
		for _, c := range []struct {
			worker uint16
			step   uint64
			want   string
		}{
			{1, 0, "at step 0, the job at step 7"},
			{1, 6, "at step 6, the job at step 7"}, // there was none before
			{2, 8, "at step 8, the job at step 7"},
			{9, 7, "not running"},
		} {
			if err := b.wait(t.Context(), c.worker, c.step); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("worker %d at step %d: %v, want %q", c.worker, c.step, err, c.want)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		waiting := make(chan error, 1)
		go func() { waiting <- b.wait(ctx, 1, 7) }()
		synctest.Wait()
		if err := b.wait(t.Context(), 1, 6); err == nil {
			t.Error("a worker that waits at step 7 passes step 6")
		}
		cancel()
		if err := <-waiting; !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled waiter got %v", err)
		}
	})
}

// A worker whose connection broke while it waited asks again: it has arrived once, whether the
// others arrive before or after it asks.
func TestBarrierMayBeAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		boom := errors.New("store is full")
		var commits []uint64
		b := barrierOf([]uint16{1, 2}, 3, func(step uint64) error {
			commits = append(commits, step)
			if step == 4 {
				return boom
			}
			return nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := b.wait(ctx, 1, 3); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled waiter got %v", err)
		}
		again := make(chan error, 1)
		go func() { again <- b.wait(t.Context(), 1, 3) }()
		synctest.Wait()
		if len(commits) != 0 {
			t.Fatal("a worker that asks twice counts for two")
		}
		if err := b.wait(t.Context(), 2, 3); err != nil {
			t.Error(err)
		}
		if err := <-again; err != nil {
			t.Error(err)
		}
		if err := b.wait(t.Context(), 1, 3); err != nil { // its answer was lost
			t.Error(err)
		}
		if err := b.wait(t.Context(), 1, 2); err == nil {
			t.Error("a worker passes a step that is two back")
		}
		// The result is kept, too.
		go func() { again <- b.wait(t.Context(), 1, 4) }()
		if err := b.wait(t.Context(), 2, 4); !errors.Is(err, boom) {
			t.Error(err)
		}
		if err := <-again; !errors.Is(err, boom) {
			t.Error(err)
		}
		if err := b.wait(t.Context(), 1, 4); !errors.Is(err, boom) {
			t.Errorf("asked again: %v, want the commit's error", err)
		}
		if len(commits) != 2 || commits[0] != 3 || commits[1] != 4 {
			t.Errorf("commits of steps %v, want 3 and 4", commits)
		}
	})
}

// A worker that finishes at a barrier, which it has left, does not count as arrived: the others
// still wait for each other.
func TestBarrierForgetsTheArrivalOfAFinishedWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		commits := 0
		b := barrierOf([]uint16{1, 2, 3}, 0, func(uint64) error { commits++; return nil })
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if err := b.wait(gone, 1, 0); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled waiter got %v", err)
		}
		b.finishWorker(1)
		passed := make(chan error, 2)
		go func() { passed <- b.wait(t.Context(), 2, 0) }()
		synctest.Wait()
		if commits != 0 || len(passed) != 0 {
			t.Errorf("%d commits, and %d have passed, without worker 3", commits, len(passed))
		}
		if err := b.wait(t.Context(), 3, 0); err != nil {
			t.Error(err)
		}
		if err := <-passed; err != nil || commits != 1 {
			t.Errorf("%v, %d commits", err, commits)
		}
	})
}

// The last worker for which the others wait may finish instead of arriving.
func TestBarrierGoesOnWhenAWorkerFinishes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var commits []uint64
		b := barrierOf([]uint16{1, 2, 3}, 0, func(step uint64) error { commits = append(commits, step); return nil })
		passed := make(chan error, 2)
		for id := uint16(1); id <= 2; id++ {
			go func() { passed <- b.wait(t.Context(), id, 0) }()
		}
		synctest.Wait()
		if len(passed) != 0 {
			t.Fatal("two of three pass")
		}
		b.finishWorker(3)
		for range 2 {
			if err := <-passed; err != nil {
				t.Error(err)
			}
		}
		b.finishWorker(3) // again
		b.finishWorker(1)
		synctest.Wait()
		if len(commits) != 1 {
			t.Errorf("commits of steps %v, want step 0", commits)
		}
		select {
		case <-b.idle:
			t.Error("no worker runs, it says, while worker 2 does")
		default:
		}
		if u := b.unfinishedWorkers(); len(u) != 1 || u[0] != 2 {
			t.Errorf("unfinished are %v, want worker 2", u)
		}
		b.finishWorker(2)
		<-b.idle
		if b.failureOf() != nil || len(commits) != 1 {
			t.Errorf("at the end: %v, commits %v", b.failureOf(), commits)
		}
	})
}

// A worker that finishes, or is lost, while the commit runs does not change that step: it is
// committed once.
func TestBarrierCommitsOnceThoughAWorkerEnds(t *testing.T) {
	for name, end := range map[string]func(*barrier){
		"finish": func(b *barrier) { b.finishWorker(2) },
		"leave":  func(b *barrier) { b.loseWorker(2, errors.New("worker 2 left")) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				commits, committed := 0, make(chan struct{})
				b := barrierOf([]uint16{1, 2}, 0, func(uint64) error {
					commits++
					<-committed
					return nil
				})
				answers := make(chan error, 2)
				go func() { answers <- b.wait(t.Context(), 1, 0) }()
				go func() { answers <- b.wait(t.Context(), 2, 0) }()
				synctest.Wait()
				end(b)
				synctest.Wait()
				close(committed)
				lost := name == "leave"
				for range 2 {
					if err := <-answers; (err != nil) != lost {
						t.Errorf("a waiter got %v", err)
					}
				}
				synctest.Wait()
				if commits != 1 {
					t.Errorf("%d commits of one step", commits)
				}
				if lost != (b.step == 0) {
					t.Errorf("the barrier is at step %d", b.step)
				}
			})
		})
	}
}

// A worker that is lost twice, or after it has finished, is not a second loss.
func TestBarrierKeepsTheFirstLoss(t *testing.T) {
	first := errors.New("first")
	b := barrierOf([]uint16{1, 2, 3}, 0, nil)
	b.finishWorker(1)
	b.loseWorker(1, errors.New("worker 1 had finished"))
	if b.failureOf() != nil || b.isRunning(1) || !b.isRunning(2) {
		t.Errorf("a finished worker is lost: %v", b.failureOf())
	}
	b.loseWorker(2, first)
	b.loseWorker(2, errors.New("again"))
	b.loseWorker(3, errors.New("second"))
	<-b.idle
	if !errors.Is(b.failureOf(), first) {
		t.Errorf("the loss is %v, want %v", b.failureOf(), first)
	}
}

// barrierOf returns a barrier whose commits do not need their context.
func barrierOf(workers []uint16, step uint64, commit func(step uint64) error) *barrier {
	return newBarrier(context.Background(), workers, step, func(_ context.Context, step uint64) error { return commit(step) })
}

// Frames of a generation that has ended do not count, whichever it was: their worker has to settle
// before it arrives. Those of the current one count, and those of none.
func TestBarrierKnowsEndedGenerations(t *testing.T) {
	b := barrierOf([]uint16{1, 2, 3}, 0, func(uint64) error { return nil })
	at := func(worker uint16, instance uint64) error {
		_, _, err := b.arriveWorker(worker, 0, wish{instance: instance})
		return err
	}
	b.beginGeneration(7)
	b.fenceArrivals()
	if err := at(1, 7); !errors.Is(err, ErrFenced) {
		t.Errorf("of the one that has just ended: %v", err)
	}
	b.beginGeneration(8)
	b.fenceArrivals()
	b.beginGeneration(9)
	for instance, want := range map[uint64]error{7: ErrFenced, 8: ErrFenced, 9: nil, 0: nil} {
		if err := at(1, instance); !errors.Is(err, want) {
			t.Errorf("instance %d: %v, want %v", instance, err, want)
		}
	}
}
