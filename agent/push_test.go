// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent_test

import (
	"context"
	"errors"
	"math"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"testing"

	"github.com/libra-ina/libra/agent"
	"github.com/libra-ina/libra/internal/agentclient"
	"github.com/libra-ina/libra/internal/agentproto"
)

// batch returns n keys, hot ones and cold ones, and their gradients.
func batch(seed, n int) (keys []uint64, grads []float32) {
	for i := range n {
		keys = append(keys, uint64((seed*31+i*7)%(2*hotRows)))
		for j := range dim {
			grads = append(grads, float32(seed+i+1)/float32(3*i+j+7))
		}
	}
	return keys, grads
}

// The pushes of several clients, small and large, prepared or not, make the same sums as in one store.
func TestSumsOfSeveralClients(t *testing.T) {
	const clients, pushes = 4, 60
	b := newBed(t)
	var group sync.WaitGroup
	for i := range clients {
		small, smallGrads := batch(i, 5+i)
		large, largeGrads := batch(i+10, 2000)
		b.expect(pushes, small, smallGrads)
		b.expect(pushes, small, smallGrads)
		b.expect(pushes/10, large, largeGrads)
		c := b.dial()
		group.Go(func() {
			ctx := within(t)
			handle, err := c.Prepare(ctx, small)
			for n := range pushes {
				if err == nil {
					_, err = c.Push(ctx, small, smallGrads)
				}
				if err == nil {
					_, err = c.PushPrepared(ctx, handle, len(small), smallGrads)
				}
				if err == nil && n%10 == 0 {
					_, err = c.Push(ctx, large, largeGrads)
				}
			}
			if err == nil {
				err = c.Release(ctx, handle)
			}
			if err == nil {
				err = c.Flush(ctx)
			}
			if err != nil {
				t.Errorf("client %d: %v", i, err)
			}
		})
	}
	group.Wait()
	b.check()

	keys, _ := batch(3, 100)
	got, want := make([]float32, dim*len(keys)), make([]float32, dim*len(keys))
	c := b.dial()
	if err := c.Pull(within(t), keys, got); err != nil {
		t.Fatal(err)
	}
	if err := b.cluster.Worker(0).Pull(within(t), keys, want); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, want) || slices.Max(got) == 0 && slices.Min(got) == 0 {
		t.Errorf("pulled %v, want %v", got, want)
	}
	stats, err := c.Stats(within(t))
	if err != nil || len(stats) != 16 || stats[4] != 1 || stats[5] != 100 {
		t.Errorf("statistics %v, %v", stats, err)
	}
	sent, err := b.cluster.Worker(0).Stats(within(t))
	if err != nil || sent.Hot.Sent == 0 || sent.Cold.Sent == 0 || stats[10] != sent.Hot.Sent+sent.Cold.Sent {
		t.Errorf("%d frames were sent, %d of hot and %d of cold gradients, %v", stats[10], sent.Hot.Sent, sent.Cold.Sent, err)
	}
}

// failed is the completion of an entry that is expected to fail.
func failed(t *testing.T, c *agentclient.Client, e agentproto.Entry, want agentproto.Code) agentproto.Completion {
	t.Helper()
	ticket, err := c.Submit(within(t), e)
	if err != nil {
		t.Fatal(err)
	}
	got, err := c.Wait(within(t), ticket)
	if err != nil || got.Status != want || got.Tag != e.Tag || got.Op != e.Op || got.Ticket != ticket {
		t.Errorf("entry %+v: completion %+v, %v, want status %d", e, got, err, want)
	}
	return got
}

// What a correct client may get wrong is answered, nothing of it is sent, and the session goes on.
func TestEntriesFail(t *testing.T) {
	b := newBed(t)
	c := b.dial()
	copy(c.Memory().Keys(0, 2), []uint64{3, 1000})
	values := c.Memory().Floats(16, 4)
	push := agentproto.Entry{Op: agentproto.Push, Tag: 77, Dim: dim, Values: 16, N: 2}

	copy(values, []float32{1, 2, 3, float32(math.NaN())})
	if got := failed(t, c, push, agentproto.NotFinite); got.Detail != 3 || got.Key != 1000 || !got.KeyKnown {
		t.Errorf("NaN at 3, key 1000: %+v", got)
	}
	copy(values, []float32{1, -1 << 18, 3, 4})
	if got := failed(t, c, push, agentproto.OutOfRange); got.Detail != 1 || got.Key != 3 || !got.KeyKnown {
		t.Errorf("out of range at 1, key 3: %+v", got)
	}
	copy(c.Memory().Keys(0, 2), []uint64{1000, 3}) // the range is that of cold rows too
	copy(values, []float32{1 << 18, 2, 3, 4})
	if got := failed(t, c, push, agentproto.OutOfRange); got.Detail != 0 || got.Key != 1000 || !got.KeyKnown {
		t.Errorf("out of range at 0, key 1000: %+v", got)
	}
	copy(c.Memory().Keys(0, 2), []uint64{3, 1000})
	copy(values, []float32{1, 2, 3, 4})
	other := push
	other.Dim = dim + 1
	failed(t, c, other, agentproto.Dimension)
	other = push
	other.Dim = 0
	failed(t, c, other, agentproto.Dimension)
	other = push
	other.Batch = 9
	failed(t, c, other, agentproto.NoBatch)
	other = push
	other.Op, other.Sums = agentproto.PushSums, 32
	failed(t, c, other, agentproto.BadMode)
	failed(t, c, agentproto.Entry{Op: agentproto.Release, Tag: 5, Batch: 9}, agentproto.NoBatch)
	failed(t, c, agentproto.Entry{Op: agentproto.Barrier, Tag: 6}, agentproto.NoParty)
	// The first failure since the last FLUSH, once.
	failed(t, c, agentproto.Entry{Op: agentproto.Flush, Tag: 8}, agentproto.NotFinite)
	failed(t, c, agentproto.Entry{Op: agentproto.Flush, Tag: 9}, agentproto.OK)

	handle, err := c.Prepare(within(t), []uint64{1, 2, 3})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.PushPrepared(within(t), handle, 2, []float32{1, 2, 3, 4}); err != nil {
		t.Fatal(err)
	}
	if err := c.Flush(within(t)); !errors.Is(err, agentproto.NoBatch) {
		t.Errorf("a handle with another number of keys: %v", err)
	}
	copy(c.Memory().Keys(0, 2), []uint64{3, 1000}) // Prepare and the push have used the place
	copy(values, []float32{1, 2, 3, 4})
	failed(t, c, push, agentproto.OK)
	b.expect(1, []uint64{3, 1000}, []float32{1, 2, 3, 4})
	b.check()
}

// Batches that are prepared are charged until they are released.
func TestPreparedIsCharged(t *testing.T) {
	b := newBed(t, func(c *agent.Config) { c.Jobs[0].Limits.Prepared = 512 + 3*(16+8*dim) })
	c := b.dial()
	two, err := c.Prepare(within(t), []uint64{1, 2})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Prepare(within(t), []uint64{1, 2}); !errors.Is(err, agentproto.NoMemory) {
		t.Errorf("four keys where three are granted: %v", err)
	}
	if err := c.Release(within(t), two); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Prepare(within(t), []uint64{1, 2, 3}); err != nil {
		t.Errorf("after the release: %v", err)
	}
	if _, err := c.Prepare(within(t), nil); !errors.Is(err, agentproto.NoMemory) {
		t.Errorf("a batch without keys, which the agent has to remember as well: %v", err)
	}
}

// A batch of more gradients than a push may have is refused when it is prepared.
func TestPreparedIsBounded(t *testing.T) {
	const most = math.MaxUint32 / (1 << 20)
	b := newBed(t, func(c *agent.Config) {
		c.Jobs[0].HotSet, c.Jobs[0].Dim, c.Jobs[0].Limits.Prepared = nil, 1<<20, 1<<40
	})
	c := b.dial()
	if _, err := c.Prepare(within(t), make([]uint64, most+1)); !errors.Is(err, agentproto.NoMemory) {
		t.Errorf("2^32 gradients: %v", err)
	}
	if _, err := c.Prepare(within(t), make([]uint64, most)); err != nil {
		t.Error(err)
	}
}

// What a client has prepared is forgotten when it goes.
func TestPreparedGoesWithItsClient(t *testing.T) {
	const keys = 1 << 20
	b := newBed(t, func(c *agent.Config) { c.Jobs[0].Limits.Prepared = 1 << 30 })
	c := b.dial(func(h *agentproto.Hello) { h.BufferBytes = 8 * keys })
	held := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := held()
	if _, err := c.Prepare(within(t), make([]uint64, keys)); err != nil {
		t.Fatal(err)
	}
	if with := held(); with < before+8*keys {
		t.Fatalf("%d bytes are held with %d keys, %d without", with, keys, before)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	b.idle(0)
	for ctx := within(t); held() > before+4*keys; { // goroutines end a moment later
		if ctx.Err() != nil {
			t.Fatalf("%d bytes are held when the client has gone, %d before it came", held(), before)
		}
	}
}

// The copies of what clients push are used again, but for those of large pushes, which would stay when these are over.
func TestCopiesAreUsedAgain(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // it takes what waits for its next use
	b := newBed(t)
	c := b.dial(func(h *agentproto.Hello) { h.BufferBytes = 8 << 20 })
	for n, again := range map[int]bool{20_000: true, 4<<20/(8+4*dim) + 1: false} {
		keys, grads := batch(1, n)
		grads[0] = float32(math.NaN()) // it is refused when it is copied, and nothing else allocates
		reused := 0
		for range 20 { // the detector of races throws some copies away
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			if _, err := c.Push(within(t), keys, grads); err != nil {
				t.Fatal(err)
			}
			if err := c.Flush(within(t)); !errors.Is(err, agentproto.NotFinite) {
				t.Fatal(err)
			}
			runtime.ReadMemStats(&after)
			if after.TotalAlloc-before.TotalAlloc < uint64(n*(8+4*dim)) {
				reused++
			}
		}
		if (reused > 0) != again {
			t.Errorf("of 20 pushes of %d keys %d were copied into memory of others", n, reused)
		}
	}
}

// A pull keeps the keys of its batch, also when that is released: they count for what is on its way.
func TestPreparedKeysOnTheirWayAreCharged(t *testing.T) {
	const n = 500
	open := make(chan struct{})
	b := newBed(t, func(c *agent.Config) {
		c.Jobs[0].Barrier = func(context.Context, uint64) error { <-open; return nil }
	})
	c := b.dial(party(1), func(h *agentproto.Hello) { h.BufferBytes = 3 * 4096 })
	keys, _ := batch(1, n)
	handle, err := c.Prepare(within(t), keys)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Submit(within(t), agentproto.Entry{Op: agentproto.Barrier}); err != nil {
		t.Fatal(err)
	}
	push, err := c.Submit(within(t), agentproto.Entry{Op: agentproto.Push, Dim: dim, Batch: handle, N: n})
	if err != nil {
		t.Fatal(err)
	}
	for ctx := within(t); c.Memory().AgentSleeps.Load() == 0 && ctx.Err() == nil; {
		runtime.Gosched()
	}
	if read := c.Memory().SQHead.Load(); read != 2 { // PREPARE, BARRIER
		t.Errorf("the agent has read %d entries: the push has no room", read)
	}
	close(open)
	if got, err := c.Wait(within(t), push); err != nil || got.Status != agentproto.OK {
		t.Errorf("the push: %+v, %v", got, err)
	}
}

// An entry needs more than the agent would hold of a client at a time: it waits its turn.
func TestPushesWaitForMemory(t *testing.T) {
	const pushes = 200
	b := newBed(t)
	c := b.dial(func(h *agentproto.Hello) { h.BufferBytes = 4096 })
	keys, grads := batch(1, 200)
	for range pushes {
		if _, err := c.Push(within(t), keys, grads); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Flush(within(t)); err != nil {
		t.Fatal(err)
	}
	b.expect(pushes, keys, grads)
	b.check()
}
