// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"errors"
	"math"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/packer"
)

// TestPrepared lets workers push a few prepared batches repeatedly with other gradients, some of
// them not finite, along with unprepared ones, over faulty links, and checks the sums of the
// accepted ones.
func TestPrepared(t *testing.T) {
	for _, layout := range []packer.Layout{packer.LaneAligned, packer.Dense} {
		for name, f := range map[string]link.Faults{"": {}, ", faults": harsh} {
			t.Run(layout.String()+name, func(t *testing.T) { testPrepared(t, layout, f) })
		}
	}
}

func testPrepared(t *testing.T, layout packer.Layout, f link.Faults) {
	ctx := deadline(t)
	o := clusterOptions{workers: 2, flow: hasty, faults: f, layout: layout}
	c := newCluster(t, memFabric(t, o), o)
	var mu sync.Mutex
	var wg sync.WaitGroup
	want := newLedger()
	for i, w := range c.workers {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(11, uint64(i)))
			var prepared []*Prepared
			var keysOf [][]uint64
			for range 8 {
				keys, _ := batch(rng, rng.IntN(1+rng.IntN(600)))
				p, err := w.Prepare(keys)
				if err != nil {
					t.Error(err)
					return
				}
				prepared, keysOf = append(prepared, p), append(keysOf, append([]uint64(nil), keys...))
				clear(keys) // Prepare has copied them
			}
			var tickets []*Ticket
			bad := map[int]bool{}
			for n := range 300 {
				p, keys := prepared[n%8], keysOf[n%8]
				grads := make([]float32, len(keys)*testDim)
				for i := range grads {
					grads[i] = float32(rng.NormFloat64())
				}
				if len(grads) > 0 && rng.IntN(10) == 0 {
					grads[rng.IntN(len(grads))] = float32(math.Inf(1))
					bad[n] = true
				} else {
					mu.Lock()
					want.addBatch(keys, grads)
					mu.Unlock()
				}
				var ticket *Ticket
				var err error
				switch rng.IntN(6) {
				case 0:
					ticket, err = w.PushLater(ctx, keys, grads)
				case 1:
					ticket, err = p.Push(ctx, grads)
					if ticket == nil { // refused at once
						ticket = &Ticket{done: make(chan struct{}), err: err}
						close(ticket.done)
						err = nil
					}
				default:
					ticket, err = p.PushLater(ctx, grads)
				}
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
			for n, keys := range keysOf {
				rows := make([]float32, len(keys)*testDim)
				if err := prepared[n].Pull(ctx, rows); err != nil {
					t.Error(err)
				}
				for at, v := range rows {
					if v != weight(keys[at/testDim], at%testDim) {
						t.Errorf("pull of batch %d: %g at %d", n, v, at)
						break
					}
				}
			}
		})
	}
	wg.Wait()
	if diff := cmp.Diff(withoutZeros(want.sums), c.sums()); diff != "" {
		t.Error(diff)
	}
}

// TestPreparedBatchesShareFrames queues prepared batches of a few rows: together they use the same
// frames as unprepared ones.
func TestPreparedBatchesShareFrames(t *testing.T) {
	ctx := deadline(t)
	for _, layout := range []packer.Layout{packer.LaneAligned, packer.Dense} {
		o := clusterOptions{workers: 1, layout: layout}
		w := newCluster(t, memFabric(t, o), o).workers[0]
		keys, grads := batch(rand.New(rand.NewPCG(3, 3)), 12)
		p, err := w.Prepare(keys)
		if err != nil {
			t.Fatal(err)
		}
		frames := func(push func() (*Ticket, error)) (n uint64) {
			before, err := w.Stats(ctx)
			if err != nil {
				t.Fatal(err)
			}
			var last *Ticket
			for range 20 {
				if last, err = push(); err != nil {
					t.Fatal(err)
				}
			}
			if err := last.Wait(ctx); err != nil {
				t.Fatal(err)
			}
			after, err := w.Stats(ctx)
			if err != nil {
				t.Fatal(err)
			}
			return after.Hot.Sent + after.Cold.Sent - after.Finds - (before.Hot.Sent + before.Cold.Sent - before.Finds)
		}
		want := frames(func() (*Ticket, error) { return w.PushLater(ctx, keys, grads) })
		got := frames(func() (*Ticket, error) { return p.PushLater(ctx, grads) })
		if got != want || got >= 20 {
			t.Errorf("%v: 20 prepared batches take %d frames, unprepared %d", layout, got, want)
		}
	}
}

// TestPreparedEndsWithItsWorker uses a worker's prepared batches after its end, and before that
// with gradients that do not match.
func TestPreparedEndsWithItsWorker(t *testing.T) {
	ctx := deadline(t)
	o := clusterOptions{workers: 1, layout: packer.Dense}
	w := newCluster(t, memFabric(t, o), o).workers[0]
	p, err := w.Prepare([]uint64{1000, 5})
	if err != nil {
		t.Fatal(err)
	}
	grads := make([]float32, 2*testDim)
	if _, err := p.Push(ctx, grads[1:]); !errors.Is(err, packer.ErrShape) {
		t.Errorf("one gradient is missing: %v", err)
	}
	if err := p.Pull(ctx, grads[1:]); err == nil {
		t.Error("a pull into too little memory succeeds")
	}
	if _, err := p.Push(ctx, grads); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	_, prepare := w.Prepare([]uint64{1})
	_, push := p.Push(ctx, grads)
	_, later := p.PushLater(ctx, grads)
	for what, err := range map[string]error{"Prepare": prepare, "Push": push, "PushLater": later, "Pull": p.Pull(ctx, grads)} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s after Close: %v", what, err)
		}
	}
}

// TestPreparedInSyncMode pushes hot rows, which the mode does not allow, and others.
func TestPreparedInSyncMode(t *testing.T) {
	ctx := deadline(t)
	o := synchronous(clusterOptions{workers: 1})
	w := newCluster(t, memFabric(t, o), o).workers[0]
	for want, keys := range map[error][]uint64{ErrMode: {5, 1000}, nil: {5, 6}} {
		p, err := w.Prepare(keys)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Push(ctx, make([]float32, 2*testDim)); !errors.Is(err, want) {
			t.Errorf("push of %v: %v, want %v", keys, err, want)
		}
	}
}
