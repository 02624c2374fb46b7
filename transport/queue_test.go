// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/wire"
)

// wantNotFinite waits for pushes, of which exactly the bad ones must fail because numbers are not
// finite.
func wantNotFinite(ctx context.Context, t *testing.T, tickets []*Ticket, bad map[int]bool) {
	t.Helper()
	for n, ticket := range tickets {
		err := ticket.Wait(ctx)
		var notFinite *packer.NotFiniteError
		if bad[n] != errors.As(err, &notFinite) || !bad[n] && err != nil {
			t.Errorf("batch %d, not finite: %v, fails with %v", n, bad[n], err)
		}
	}
}

// TestQueue lets workers queue batches of all sizes, some of them not finite, over faulty links,
// and checks the sums of the accepted ones.
func TestQueue(t *testing.T) {
	for name, f := range map[string]link.Faults{"": {}, "faults": harsh} {
		t.Run(name, func(t *testing.T) {
			ctx := deadline(t)
			o := clusterOptions{workers: 2, flow: hasty, faults: f, layout: packer.Dense}
			c := newCluster(t, memFabric(t, o), o)
			var mu sync.Mutex
			var wg sync.WaitGroup
			want := newLedger()
			for i, w := range c.workers {
				wg.Go(func() {
					rng := rand.New(rand.NewPCG(7, uint64(i)))
					var tickets []*Ticket
					bad := map[int]bool{}
					for n := range 400 {
						keys, grads := batch(rng, rng.IntN(1+rng.IntN(600)))
						if len(grads) > 0 && rng.IntN(10) == 0 {
							grads[rng.IntN(len(grads))] = float32(math.NaN())
							bad[n] = true
						} else {
							mu.Lock()
							want.addBatch(keys, grads)
							mu.Unlock()
						}
						ticket, err := w.PushLater(ctx, keys, grads)
						if err != nil {
							t.Error(err)
							return
						}
						tickets = append(tickets, ticket)
						if n >= 20 && rng.IntN(2) == 0 {
							<-tickets[n-20].Done()
						}
					}
					wantNotFinite(ctx, t, tickets, bad)
				})
			}
			wg.Wait()
			if diff := cmp.Diff(withoutZeros(want.sums), c.sums()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestQueuedBatchesShareFrames queues batches of a few rows until a caller waits.
func TestQueuedBatchesShareFrames(t *testing.T) {
	ctx := deadline(t)
	o := clusterOptions{workers: 1, layout: packer.Dense}
	w := newCluster(t, memFabric(t, o), o).workers[0]
	var tickets []*Ticket
	for i := range uint64(16) {
		ticket, err := w.PushLater(ctx, []uint64{1000 + i, 5000 + i}, make([]float32, 2*testDim))
		if err != nil {
			t.Fatal(err)
		}
		tickets = append(tickets, ticket)
	}
	time.Sleep(10 * time.Millisecond) // nothing may be sent by itself
	if s, err := w.Stats(ctx); err != nil || s.Hot.Sent+s.Cold.Sent != 0 {
		t.Errorf("%d frames were sent before a caller waited, %v", s.Hot.Sent+s.Cold.Sent, err)
	}
	for _, ticket := range tickets {
		if err := ticket.Wait(ctx); err != nil {
			t.Fatal(err)
		}
	}
	s, err := w.Stats(ctx)
	if err != nil || s.Hot.Sent != 1 || s.Cold.Sent != 1 {
		t.Errorf("%d hot and %d cold frames for 16 small batches, %v; want one of each", s.Hot.Sent, s.Cold.Sent, err)
	}
}

// TestFlushCoversTheQueue queues more than fits and never waits for a ticket.
func TestFlushCoversTheQueue(t *testing.T) {
	ctx := deadline(t)
	o := clusterOptions{workers: 1, layout: packer.Dense}
	c := newCluster(t, memFabric(t, o), o)
	w := c.workers[0]
	want := newLedger()
	rng := rand.New(rand.NewPCG(3, 3))
	for n := range 3 * queueCap {
		keys, grads := batch(rng, 1+rng.IntN(20))
		want.addBatch(keys, grads)
		if _, err := w.PushLater(ctx, keys, grads); err != nil {
			t.Fatal(err)
		}
		if n%100 == 99 {
			if err := w.Flush(ctx); err != nil {
				t.Fatal(err)
			}
			s, err := w.Stats(ctx)
			if err != nil || s.Hot.Acked != s.Hot.Sent || s.Cold.Acked != s.Cold.Sent {
				t.Fatalf("after a flush %d of %d hot and %d of %d cold frames are acknowledged, %v", s.Hot.Acked, s.Hot.Sent, s.Cold.Acked, s.Cold.Sent, err)
			}
		}
	}
	// A flush also covers the batches of a group that had to be dissolved.
	keys, grads := batch(rng, 5)
	want.addBatch(keys, grads)
	for _, g := range [][]float32{grads, {float32(math.Inf(1)), 0, 0}} {
		if _, err := w.PushLater(ctx, keys[:len(g)/testDim], g); err != nil {
			t.Fatal(err)
		}
	}
	var notFinite *packer.NotFiniteError
	if err := w.Flush(ctx); !errors.As(err, &notFinite) || notFinite.Index != 0 {
		t.Errorf("flush: %v, want the reason for which a queued batch was refused", err)
	}
	if diff := cmp.Diff(withoutZeros(want.sums), c.sums()); diff != "" {
		t.Error(diff)
	}
}

// TestQueuedBatchesOfWrongShapes queues batches with as many gradients too many as others have too
// few: each fails by itself, and no row gets a gradient of another.
func TestQueuedBatchesOfWrongShapes(t *testing.T) {
	ctx := deadline(t)
	o := clusterOptions{workers: 1, layout: packer.Dense}
	c := newCluster(t, memFabric(t, o), o)
	want := newLedger()
	var tickets []*Ticket
	for i, rows := range []int{2, 1, 2, 3} { // of gradients
		keys, grads := []uint64{1000 + uint64(2*i), 1001 + uint64(2*i)}, make([]float32, rows*testDim)
		for j := range grads {
			grads[j] = float32(1 + i)
		}
		if rows == len(keys) {
			want.addBatch(keys, grads)
		}
		ticket, err := c.workers[0].PushLater(ctx, keys, grads)
		if err != nil {
			t.Fatal(err)
		}
		tickets = append(tickets, ticket)
	}
	for i, ticket := range tickets {
		if err := ticket.Wait(ctx); errors.Is(err, packer.ErrShape) != (i%2 == 1) || i%2 == 0 && err != nil {
			t.Errorf("batch %d: %v", i, err)
		}
	}
	if diff := cmp.Diff(withoutZeros(want.sums), c.sums()); diff != "" {
		t.Error(diff)
	}
}

func TestBatchesOfARefusedFrameFailTogether(t *testing.T) {
	ctx := deadline(t)
	// A frame that was sent twice may have been applied: then its refusal does not decide that.
	o := clusterOptions{workers: 1, layout: packer.Dense, flow: retransmit.Config{InitialRTO: time.Minute, MinRTO: time.Minute, MaxRTO: time.Minute}}
	w := newCluster(t, memFabric(t, o), o).workers[0]
	var tickets []*Ticket
	for _, g := range []float32{1, 1 << 20} { // the second is out of range
		ticket, err := w.PushLater(ctx, []uint64{1003}, []float32{g, 0, 0})
		if err != nil {
			t.Fatal(err)
		}
		tickets = append(tickets, ticket)
	}
	for i, ticket := range tickets {
		err := ticket.Wait(ctx)
		var push *PushError
		var refusal wire.Refusal
		if !errors.As(err, &push) || push.Refused != 1 || push.Acked != 0 || !errors.As(err, &refusal) || refusal.Code != wire.CodeOverflow {
			t.Errorf("batch %d: %v, want the refusal of the frame", i, err)
		}
	}
}

func TestClosedWorkerFailsItsQueue(t *testing.T) {
	o := clusterOptions{workers: 1}
	for range 20 {
		w := newCluster(t, memFabric(t, o), o).workers[0]
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				for {
					ticket, err := w.PushLater(context.Background(), []uint64{1000}, make([]float32, testDim))
					if err == nil && !errors.Is(ticket.Wait(deadline(t)), net.ErrClosed) {
						continue // acknowledged
					}
					if err != nil && !errors.Is(err, net.ErrClosed) {
						t.Errorf("queue: %v, want ErrClosed", err)
					}
					if err != nil {
						return
					}
				}
			})
		}
		ticket, err := w.PushLater(t.Context(), []uint64{1001}, make([]float32, testDim))
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if err := ticket.Wait(deadline(t)); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Errorf("ticket: %v, want nil or ErrClosed", err)
		}
		wg.Wait()
	}
}

// TestLongQueueIsTaken queues more than is packed together and does not wait: the worker takes it
// nevertheless. Less may wait.
func TestLongQueueIsTaken(t *testing.T) {
	ctx := deadline(t)
	o := clusterOptions{workers: 1}
	w := newCluster(t, memFabric(t, o), o).workers[0]
	sent := func() uint64 {
		s, err := w.Stats(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return s.PairsHot
	}
	queue := func(rows int) {
		keys := make([]uint64, rows)
		for i := range keys {
			keys[i] = 1000 + uint64(i%testHot)
		}
		if _, err := w.PushLater(ctx, keys, make([]float32, rows*testDim)); err != nil {
			t.Fatal(err)
		}
	}
	queue(groupPairs / 2 / testDim)
	time.Sleep(20 * time.Millisecond)
	if n := sent(); n != 0 {
		t.Errorf("%d gradients sent of a queue that no caller waits for", n)
	}
	queue(groupPairs/2/testDim + testDim)
	for n := uint64(0); n == 0; n = sent() {
		if ctx.Err() != nil {
			t.Fatal("the queue is not taken")
		}
	}
}

// TestFullQueueEndsWithItsContext fills the queue of a worker that does not run.
func TestFullQueueEndsWithItsContext(t *testing.T) {
	w := idleWorker(t)
	for range queueCap {
		if _, err := w.PushLater(t.Context(), nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	before := w.waiting.Load()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := w.PushLater(ctx, []uint64{1}, make([]float32, testDim)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want the context's", err)
	}
	if n := w.waiting.Load(); n != before || before != queueCap {
		t.Errorf("%d gradients and batches counted in the queue, %d before; want %d", n, before, queueCap)
	}
	// A caller that waits for room fails when the worker ends.
	result := make(chan error)
	go func() {
		_, err := w.PushLater(t.Context(), []uint64{1}, make([]float32, testDim))
		result <- err
	}()
	time.Sleep(5 * time.Millisecond)
	endUnstarted(w)
	if err := <-result; !errors.Is(err, ErrClosed) {
		t.Errorf("error %v, want ErrClosed", err)
	}
	w.failQueued()
}

// endUnstarted ends the loop of a worker whose goroutine was never started.
func endUnstarted(w *Worker) {
	w.loop.Start(func() error { return ErrClosed }, func(error) {})
	<-w.Done()
}

// TestQueueAfterTheEnd adds a batch just after the worker has ended and failed its queue: only
// PushLater can settle its ticket.
func TestQueueAfterTheEnd(t *testing.T) {
	w := idleWorker(t)
	ticket, err := w.PushLater(t.Context(), []uint64{1}, make([]float32, testDim))
	if err != nil {
		t.Fatal(err)
	}
	endUnstarted(w)
	if _, err := w.PushLater(t.Context(), []uint64{1}, make([]float32, testDim)); !errors.Is(err, ErrClosed) {
		t.Errorf("error %v, want ErrClosed", err)
	}
	w.failQueued()
	if err := ticket.Wait(deadline(t)); !errors.Is(err, ErrClosed) {
		t.Errorf("ticket: %v, want ErrClosed", err)
	}
}

// TestQueueDuringTheEnd adds a batch to the queue at the moment when the worker ends: PushLater
// fails it, because nothing else reads the queue again.
func TestQueueDuringTheEnd(t *testing.T) {
	settled := 0
	for n, end := 0, time.Now().Add(eventLimit); n < 20 || settled == 0 && time.Now().Before(end); n++ {
		w := idleWorker(t)
		for range queueCap {
			if _, err := w.PushLater(t.Context(), nil, nil); err != nil {
				t.Fatal(err)
			}
		}
		tickets := make(chan *Ticket)
		go func() {
			ticket, _ := w.PushLater(context.Background(), []uint64{1}, make([]float32, testDim))
			tickets <- ticket
		}()
		time.Sleep(2 * time.Millisecond) // until it waits for room
		w.loop.Start(func() error {
			<-w.arrivals
			return ErrClosed
		}, func(error) {})
		ticket := <-tickets
		<-w.Done()
		if ticket == nil {
			continue // it saw the end first
		}
		select {
		case <-ticket.done:
			settled++
		default: // it was taken before the end
			w.failQueued()
		}
	}
	if settled == 0 {
		t.Error("no ticket was settled")
	}
}

// TestGroupsAreBounded checks how many batches share frames.
func TestGroupsAreBounded(t *testing.T) {
	w := idleWorker(t)
	const rows = groupMember / testDim
	for range 10 {
		if _, err := w.PushLater(t.Context(), make([]uint64, rows), make([]float32, rows*testDim)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.PushLater(t.Context(), make([]uint64, rows+1), make([]float32, (rows+1)*testDim)); err != nil {
		t.Fatal(err)
	}
	if !w.takeQueue() || w.waiting.Load() != 0 || w.takeQueue() {
		t.Fatal("the queue is not taken, or taken twice")
	}
	if w.hurryQueue(); w.urgent.Load() {
		t.Error("the worker hurries to an empty queue")
	}
	var sizes []int
	for len(w.pushes) > 0 {
		w.groupPushes()
		o := w.pushes[0]
		w.pushes = w.pushes[1:]
		sizes = append(sizes, max(1, len(o.members)))
		if o.members != nil && len(o.keys) != len(o.members)*rows {
			t.Errorf("%d keys of %d batches", len(o.keys), len(o.members))
		}
	}
	if want := []int{4, 4, 2, 1}; !slices.Equal(sizes, want) {
		t.Errorf("groups of %v batches, want %v", sizes, want)
	}
}

// TestQueuedTicketsAtClose has batches in every place: in frames, in the middle of
// being packed, taken from the queue, and in the queue.
func TestQueuedTicketsAtClose(t *testing.T) {
	w, _ := mute(t, retransmit.Config{Size: 4, Silence: time.Hour})
	var tickets []*Ticket
	queue := func(rows int) {
		ticket, err := w.PushLater(t.Context(), make([]uint64, rows), make([]float32, rows*testDim))
		if err != nil {
			t.Fatal(err)
		}
		tickets = append(tickets, ticket)
	}
	queue(1)
	w.hurryQueue()
	queue(10_000) // more than a window
	queue(20)
	queue(30)
	queue(2000)
	for waiting := 0; waiting < 3; {
		if err := w.Do(t.Context(), func() { waiting = len(w.pushes) }); err != nil {
			t.Fatal(err)
		}
	}
	queue(5)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for i, ticket := range tickets {
		if err := ticket.Wait(deadline(t)); !errors.Is(err, ErrClosed) {
			t.Errorf("ticket %d: %v, want ErrClosed", i, err)
		}
	}
}

// BenchmarkPushLater measures small batches from the call to the last acknowledgement, 16 of them
// at a time, with a network without cost.
func BenchmarkPushLater(b *testing.B) {
	const inFlight = 16
	for _, rows := range []int{32, 256} {
		b.Run(fmt.Sprint(rows), func(b *testing.B) {
			l := newAckLink()
			w, err := NewWorker(b.Context(), WorkerConfig{Link: l, Dim: 1, Server: wire.Endpoint{IP: l.local.IP, Port: 1}})
			if err != nil {
				b.Fatal(err)
			}
			defer w.Close()
			keys, grads := make([]uint64, rows), make([]float32, rows)
			ctx := context.Background()
			var tickets [inFlight]*Ticket
			n := 0
			b.ReportAllocs()
			for b.Loop() {
				if old := tickets[n%inFlight]; old != nil {
					if err := old.Wait(ctx); err != nil {
						b.Fatal(err)
					}
				}
				if tickets[n%inFlight], err = w.PushLater(ctx, keys, grads); err != nil {
					b.Fatal(err)
				}
				n++
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(rows), "ns/pair")
		})
	}
}
