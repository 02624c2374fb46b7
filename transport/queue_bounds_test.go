// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"testing"
	"time"
)

// queueOf queues a batch of a number of gradients with worker w, which does not run.
func queueOf(t *testing.T, w *Worker, grads int) {
	t.Helper()
	if _, err := w.PushLater(t.Context(), make([]uint64, grads/w.cfg.Dim), make([]float32, grads)); err != nil {
		t.Fatal(err)
	}
}

// TestQueueIsTakenWhenItIsLong finds the length at which the worker takes the queue: more than
// groupPairs, where a batch counts one more than its gradients.
func TestQueueIsTakenWhenItIsLong(t *testing.T) {
	w := idleWorker(t)
	queueOf(t, w, groupPairs-1)
	if w.waiting.Load() != groupPairs || w.urgent.Load() {
		t.Errorf("%d in the queue, to be taken: %v", w.waiting.Load(), w.urgent.Load())
	}
	queueOf(t, w, 0)
	if w.waiting.Load() != groupPairs+1 || !w.urgent.Load() {
		t.Errorf("%d in the queue, to be taken: %v", w.waiting.Load(), w.urgent.Load())
	}
}

// TestFullQueueIsTaken queues batches so small that their number fills the queue: a caller that
// waits for room makes the worker take it.
func TestFullQueueIsTaken(t *testing.T) {
	w := idleWorker(t)
	for range queueCap {
		queueOf(t, w, 0)
	}
	if w.urgent.Load() {
		t.Error("the queue is to be taken before it is full")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := w.PushLater(ctx, nil, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want the context's", err)
	}
	if !w.urgent.Load() {
		t.Error("a full queue is not to be taken")
	}
}

// TestQueueIsHurriedWhileItIsTaken adds to the queue while the worker takes it: the worker has to
// look at it once more, because it may have found it empty just before.
func TestQueueIsHurriedWhileItIsTaken(t *testing.T) {
	const batches = 1 << 18 // so many that the caller comes in the middle
	w, o := idleWorker(t), new(operation)
	w.arrivals = make(chan *operation, batches)
	for inTime := false; !inTime; {
		for range batches {
			w.arrivals <- o
		}
		w.waiting.Store(batches)
		w.urgent.Store(true)
		taken := make(chan bool)
		go func() { taken <- w.takeQueue() }()
		for w.waiting.Load() == batches {
			runtime.Gosched()
		}
		w.hurryQueue()
		inTime = w.waiting.Load() > 0
		if <-taken; inTime && !w.urgent.Load() {
			t.Error("the worker does not look again")
		}
		w.pushes = nil
	}
}

// TestLargestGroup fills a group to the last gradient, with the largest members.
func TestLargestGroup(t *testing.T) {
	w := idleWorker(t)
	w.cfg.Dim = 1
	for _, grads := range []int{groupMember, groupMember, groupMember, groupMember, 1, groupMember + 1} {
		queueOf(t, w, grads)
	}
	w.takeQueue()
	var sizes []int
	for len(w.pushes) > 0 {
		w.groupPushes()
		sizes = append(sizes, len(w.pushes[0].values))
		w.pushes = w.pushes[1:]
	}
	if want := []int{groupPairs, 1, groupMember + 1}; !slices.Equal(sizes, want) {
		t.Errorf("pushes of %v gradients, want %v", sizes, want)
	}
}

// TestDissolvedGroupKeepsItsPlace dissolves a group with another push after it, for which a Flush
// may wait: the members stay before that.
func TestDissolvedGroupKeepsItsPlace(t *testing.T) {
	w := idleWorker(t)
	queueOf(t, w, 1*testDim)
	queueOf(t, w, 2*testDim)
	queueOf(t, w, groupPairs+2) // by itself
	w.urgent.Store(true)
	w.takeQueue()
	want := slices.Clone(w.pushes)
	w.groupPushes()
	if g := w.pushes[0]; len(g.members) != 2 || len(w.pushes) != 2 {
		t.Fatalf("%d pushes, the first of %d members", len(w.pushes), len(g.members))
	}
	if w.dissolveGroup(w.pushes[0]); !slices.Equal(w.pushes, want) {
		t.Errorf("%d pushes are left, want the %d as they came", len(w.pushes), len(want))
	}
	for i := range want {
		if w.groupPushes(); w.pushes[0] != want[i] {
			t.Errorf("push %d is not the one that came as number %d", i, i)
		}
		w.pushes = w.pushes[1:]
	}
}
