// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent_test

import (
	"errors"
	"math"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"testing"

	"github.com/libra-ina/libra/agent"
	"github.com/libra-ina/libra/agent/agentclient"
	"github.com/libra-ina/libra/agent/agentproto"
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

// The pushes of several clients, small and large, prepared or not, give the same sums as in one
// store.
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

// Mistakes of a correct client are answered, nothing of them is sent, and the session continues.
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

// Prepared batches are charged until they are released.
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
	for dim, most := range map[int]int{1 << 20: math.MaxUint32 >> 20, 65537: 65535} { // the latter has the largest number of gradients
		b := newBed(t, func(c *agent.Config) {
			c.Jobs[0].HotSet, c.Jobs[0].Dim, c.Jobs[0].Limits.Prepared = nil, dim, 1<<40
		})
		c := b.dial(func(h *agentproto.Hello) { h.BufferBytes = 1 << 20 })
		if _, err := c.Prepare(within(t), make([]uint64, most+1)); !errors.Is(err, agentproto.NoMemory) {
			t.Errorf("%d rows of %d: %v", most+1, dim, err)
		}
		if _, err := c.Prepare(within(t), make([]uint64, most)); err != nil {
			t.Errorf("%d rows of %d: %v", most, dim, err)
		}
	}
}

// Prepared batches are freed when their client ends.
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

// Copies of pushes are reused, except large ones, which would stay allocated afterwards.
func TestCopiesAreUsedAgain(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // garbage collection frees unused copies
	b := newBed(t)
	c := b.dial(func(h *agentproto.Hello) { h.BufferBytes = 8 << 20 })
	for n, again := range map[int]bool{20_000: true, 4<<20/(8+4*dim) + 1: false} {
		keys, grads := batch(1, n)
		grads[0] = float32(math.NaN()) // it is refused when it is copied, and nothing else allocates
		reused := 0
		for range 20 { // the race detector drops some copies
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

// Pending entries count with their keys and gradients, including those of a prepared batch, which a
// pull or push keeps when it is released. They may fill a client's limit to the last byte.
func TestWhatIsOnItsWayIsCharged(t *testing.T) {
	const buffer, row = 3 * 4096, 8 + 4*dim // a push counts for 4096 and for what it has
	const most = (buffer - 2*4096 - row) / row
	for name, c := range map[string]struct {
		n        int
		prepared bool
		begun    bool
	}{
		"prepared, fits": {most, true, true}, "prepared, too much": {most + 1, true, false},
		"fits": {most, false, true}, "too much": {most + 1, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			goOn := b.stopServer() // a push of a cold row stays on its way
			client := b.dial(func(h *agentproto.Hello) { h.BufferBytes = buffer })
			push, before := agentproto.Entry{Op: agentproto.Push, Dim: dim, Values: 8 * uint64(c.n), N: uint32(c.n)}, uint32(1)
			if c.prepared {
				handle, err := client.Prepare(within(t), make([]uint64, c.n))
				must(t, err)
				push.Batch, before = handle, 2
			}
			client.Memory().Keys(buffer-row, 1)[0] = 1000
			_, err := client.Submit(within(t), agentproto.Entry{Op: agentproto.Push, Dim: dim, Keys: buffer - row,
				Values: buffer - row + 8, N: 1})
			must(t, err)
			ticket, err := client.Submit(within(t), push)
			must(t, err)
			want := before
			if c.begun {
				want++
			}
			for ctx := within(t); client.Memory().SQHead.Load() < want || client.Memory().AgentSleeps.Load() == 0; runtime.Gosched() {
				if ctx.Err() != nil {
					t.Fatalf("the agent has read %d entries, want %d, and to sleep", client.Memory().SQHead.Load(), want)
				}
			}
			if read := client.Memory().SQHead.Load(); read != want {
				t.Errorf("the agent has read %d entries, want %d", read, want)
			}
			goOn()
			if got, err := client.Wait(within(t), ticket); err != nil || got.Status != agentproto.OK {
				t.Errorf("the push: %+v, %v", got, err)
			}
		})
	}
}

// An entry that needs more than the agent holds for a client at a time waits for its turn.
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

// A client may fill its ring: all entries are started and answered, round after round.
func TestRingIsFilled(t *testing.T) {
	const entries, rounds = 16, 3
	b := newBed(t)
	c := b.dial(func(h *agentproto.Hello) { h.Entries = entries })
	m := c.Memory()
	for round := range uint32(rounds) {
		goOn := b.stopWorker() // the agent, which would otherwise read them one by one
		for i := range uint32(entries) {
			(&agentproto.Entry{Op: agentproto.Flush}).Put(m.Entry(round*entries + i))
		}
		m.SQTail.Add(entries)
		goOn()
		c.Wake()
		for ctx := within(t); m.CQTail.Load() != (round+1)*entries; runtime.Gosched() {
			if err := m.Ended(); err != nil || ctx.Err() != nil {
				t.Fatalf("%d entries are answered, %v", m.CQTail.Load(), err)
			}
		}
		m.CQHead.Add(entries)
	}
}

// A prepared batch keeps its keys, whatever the client pushes after it: a pull of it reads their
// rows.
func TestPreparedKeepsItsKeys(t *testing.T) {
	const n = 20
	b, ctx := newBed(t), within(t)
	c := b.dial()
	one, other, grads := make([]uint64, n), make([]uint64, n), make([]float32, n*dim)
	for i := range n {
		one[i], other[i], grads[2*i], grads[2*i+1] = 1000+uint64(i), 2000+uint64(i), float32(i+1), 7
	}
	_, err := c.Push(ctx, one, grads)
	must(t, err)
	must(t, c.Flush(ctx))
	must(t, b.cluster.Commit(ctx))
	want, got := make([]float32, n*dim), make([]float32, n*dim)
	must(t, c.Pull(ctx, one, want))
	for range 20 {
		handle, err := c.Prepare(ctx, one)
		must(t, err)
		for range 20 {
			_, err := c.Push(ctx, other, make([]float32, n*dim))
			must(t, err)
		}
		must(t, c.Flush(ctx))
		ticket, err := c.Submit(ctx, agentproto.Entry{Op: agentproto.Pull, Dim: dim, Batch: handle, N: n})
		must(t, err)
		if done, err := c.Wait(ctx, ticket); err != nil || done.Status != agentproto.OK {
			t.Fatalf("%+v, %v", done, err)
		}
		copy(got, c.Memory().Floats(0, n*dim))
		for i := range got {
			if got[i] != want[i] {
				t.Fatalf("float %d of the batch's rows is %v, want %v", i, got[i], want[i])
			}
		}
		must(t, c.Release(ctx, handle))
	}
}

// An entry that a separate goroutine answers counts as read when its completion is written, even
// while the agent is still reading others.
func TestReadBeforeAnswered(t *testing.T) {
	const n = 20000
	b := newBed(t)
	for range 20 {
		c := b.dial(func(h *agentproto.Hello) { h.Entries, h.BufferBytes = 32, 8<<20 })
		m := c.Memory()
		for i := range uint64(n) {
			m.Keys(64, n)[i] = 1000 + i
		}
		e := agentproto.Entry{Op: agentproto.Sums, Dim: dim, Keys: 0, Values: 8, N: 1}
		e.Put(m.Entry(0))
		for i := range uint32(20) {
			e := agentproto.Entry{Op: agentproto.Push, Dim: dim, Keys: 64, Values: 64 + 8*n, N: n}
			e.Put(m.Entry(1 + i))
		}
		m.SQTail.Store(21)
		c.Wake()
		for ctx := within(t); m.CQTail.Load() == 0 && ctx.Err() == nil; {
			runtime.Gosched()
		}
		if m.SQHead.Load() == 0 {
			t.Fatal("a completion of an entry that was not read")
		}
		_ = c.Conn().Close()
	}
}
