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

func TestBarrierCommitsOnceAStepAfterAllArrived(t *testing.T) {
	const workers, steps = 4, 50
	var arrived [steps]atomic.Int32
	var commits []uint64
	b := newBarrier([]uint16{1, 2, 3, 4}, func(step uint64) error {
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
			b.finish(id)
		})
	}
	wg.Wait()
	if len(commits) != steps {
		t.Fatalf("%d commits, want %d", len(commits), steps)
	}
	<-b.idle
	if err := b.failure(); err != nil {
		t.Fatal(err)
	}
}

func TestBarrierFailsWaitersWhenAWorkerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBarrier([]uint16{1, 2, 3}, func(uint64) error { return errors.New("must not commit") })
		errs := make(chan error, 2)
		for id := uint16(1); id <= 2; id++ {
			go func() { errs <- b.wait(t.Context(), id, 0) }()
		}
		synctest.Wait() // both are waiting for worker 3
		b.leave(3)
		for range 2 {
			if err := <-errs; err == nil || !strings.Contains(err.Error(), "worker 3 left") {
				t.Errorf("waiter got %v", err)
			}
		}
		if err := b.wait(t.Context(), 1, 0); err == nil {
			t.Error("a barrier that lost a worker lets another pass")
		}
		b.finish(1)
		b.finish(2)
		<-b.idle
		if b.failure() == nil {
			t.Error("the loss is forgotten")
		}
	})
}

func TestBarrierPassesTheCommitErrorToAll(t *testing.T) {
	boom := errors.New("store is full")
	b := newBarrier([]uint16{1, 2}, func(uint64) error { return boom })
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
		b := newBarrier([]uint16{1, 2}, func(uint64) error { return nil })
		ctx, cancel := context.WithCancel(t.Context())
		waiting := make(chan error, 1)
		go func() { waiting <- b.wait(ctx, 1, 0) }()
		synctest.Wait()
		for _, c := range []struct {
			worker uint16
			step   uint64
			want   string
		}{
			{1, 0, "already waiting"},
			{2, 1, "at step 1, the job at step 0"},
			{9, 0, "not running"},
		} {
			if err := b.wait(t.Context(), c.worker, c.step); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("worker %d at step %d: %v, want %q", c.worker, c.step, err, c.want)
			}
		}
		cancel()
		if err := <-waiting; !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled waiter got %v", err)
		}
	})
}
