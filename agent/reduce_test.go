// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent_test

import (
	"context"
	"errors"
	"math"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/libra-ina/libra/agent"
	"github.com/libra-ina/libra/internal/agentclient"
	"github.com/libra-ina/libra/internal/agentproto"
)

// A step in which parties have pushed that are gone is dropped when the next ones reduce: rows of the dead would be in its
// sums. Parties that have pushed nothing since the end of a step leave none.
func TestTornStep(t *testing.T) {
	var mu sync.Mutex
	var calls []bool // whether the step was to be dropped
	b := newBed(t, func(c *agent.Config) {
		c.Jobs[0].Reduce = func(_ context.Context, _ uint64, a agent.Arrival) (agent.Sums, error) {
			mu.Lock()
			defer mu.Unlock()
			calls = append(calls, a.Refused != nil)
			if a.Refused != nil {
				return agent.Sums{}, a.Refused
			}
			return agent.Sums{}, nil
		}
	})
	ctx, due := within(t), uint64(0)
	// life opens the sessions of two parties, which reduce some steps, push what they are told to, and go; the first may wait in a
	// REDUCE until the second has gone. It returns what the first one's steps gave.
	life := func(steps int, push [2]bool, waits bool) (failures []error) {
		var parties [2]*agentclient.Client
		for i := range parties {
			parties[i] = b.dial(party(2))
		}
		for range steps {
			var group sync.WaitGroup
			for i, c := range parties {
				group.Go(func() {
					if _, err := c.Push(ctx, []uint64{1}, []float32{1, 2}); err != nil {
						t.Error(err)
					}
					if _, _, err := c.Reduce(ctx, due); i == 0 {
						failures = append(failures, err)
					}
				})
			}
			group.Wait()
			due++
		}
		for i, c := range parties {
			if push[i] {
				if _, err := c.Push(ctx, []uint64{1}, []float32{1, 2}); err != nil {
					t.Error(err)
				}
				if err := c.Flush(ctx); err != nil {
					t.Error(err)
				}
			}
		}
		gone := make(chan error, 1)
		if waits {
			go func() {
				_, _, err := parties[0].Reduce(ctx, due)
				gone <- err
			}()
			for s, err := parties[1].Stats(ctx); err == nil && s[14] == 0; s, err = parties[1].Stats(ctx) { // one has arrived
				runtime.Gosched()
			}
		}
		_ = parties[1].Close()
		if waits {
			if err := <-gone; !errors.Is(err, agentproto.PartyGone) {
				t.Errorf("beside a party that is gone: %v", err)
			}
		}
		_ = parties[0].Close()
		b.idle(0)
		return failures
	}
	for i, l := range []struct {
		push  [2]bool // before they go
		waits bool
		torn  bool
	}{
		{push: [2]bool{true, true}, waits: true, torn: true},
		{push: [2]bool{true, false}, torn: true},
		{push: [2]bool{false, true}, torn: true},
		{},
		{push: [2]bool{true, false}, waits: true, torn: true},
	} {
		life(2, l.push, l.waits)
		failures := life(2, [2]bool{}, false)
		if dropped := errors.Is(failures[0], agentproto.Dropped); dropped != l.torn || failures[1] != nil {
			t.Errorf("life %d: the next one had %v", i, failures)
		}
	}
	if want := []bool{false, false, true, false, false, false, true, false, false, false, true, false, false, false, false, false, false, false, true, false}; !slices.Equal(calls, want) {
		t.Errorf("the host met the others %v, want %v", calls, want)
	}
}

// A refused push stays with its party over a BARRIER, and the REDUCE after it is dropped with its key; so it is if the step is torn
// besides. A torn step stays torn if the host cannot meet the others.
func TestRefusedAndTorn(t *testing.T) {
	fails := false
	b := newBed(t, func(c *agent.Config) {
		c.Jobs[0].Reduce = func(_ context.Context, _ uint64, a agent.Arrival) (agent.Sums, error) {
			switch {
			case fails:
				fails = false
				return agent.Sums{}, errors.New("no server")
			case a.Refused != nil:
				return agent.Sums{}, a.Refused
			}
			return agent.Sums{}, nil
		}
	})
	ctx := within(t)
	push := func(c *agentclient.Client, grad float32) {
		t.Helper()
		if _, err := c.Push(ctx, []uint64{90}, []float32{1, grad}); err != nil {
			t.Fatal(err)
		}
	}
	reduce := func(c *agentclient.Client, step uint64, status agentproto.Code, key uint64) {
		t.Helper()
		var failed *agentclient.Failed
		if _, _, err := c.Reduce(ctx, step); !errors.As(err, &failed) || failed.Status != status || failed.KeyKnown != (key != 0) || failed.Key != key {
			t.Errorf("step %d: %v, want %v of key %d", step, err, status, key)
		}
	}
	tear := func(c *agentclient.Client) {
		push(c, 2)
		_ = c.Flush(ctx) // of what is refused, too
		_ = c.Close()
		b.idle(0)
	}

	c := b.dial(party(1))
	push(c, float32(math.NaN()))
	if err := c.Barrier(ctx, 0); err != nil {
		t.Error(err)
	}
	reduce(c, 1, agentproto.Dropped, 90)
	tear(c)

	c = b.dial(party(1))
	push(c, float32(math.NaN()))
	reduce(c, 2, agentproto.Dropped, 90)
	tear(c)

	c = b.dial(party(1))
	fails = true
	reduce(c, 3, agentproto.Refused, 0)
	reduce(c, 3, agentproto.Dropped, 0)
	if _, _, err := c.Reduce(ctx, 4); err != nil {
		t.Error(err)
	}
}

// What a party has pushed that goes while its host meets the others is of the step that ends, if that ends well; what it pushed
// after its REDUCE tears the next one. A step that has failed is still due, and torn once a party that pushed in it has gone.
func TestTornWhileTheHostMeetsTheOthers(t *testing.T) {
	fails := errors.New("no server")
	for name, l := range map[string]struct {
		outcome error // of the meeting
		more    bool  // a push follows the REDUCE
		stays   bool  // until the meeting is over
		retries bool  // and reduces again
		torn    bool
	}{
		"it ends":                      {},
		"it ends after one more push":  {more: true, torn: true},
		"it fails":                     {outcome: fails, torn: true},
		"it fails before the party":    {outcome: fails, stays: true, torn: true},
		"it fails, and then succeeds":  {outcome: fails, stays: true, retries: true},
		"it succeeds before the party": {stays: true},
	} {
		t.Run(name, func(t *testing.T) {
			entered, outcome := make(chan struct{}), make(chan error)
			first := true
			b := newBed(t, func(c *agent.Config) {
				c.Jobs[0].Reduce = func(_ context.Context, _ uint64, a agent.Arrival) (agent.Sums, error) {
					if first {
						first = false
						close(entered)
						return agent.Sums{}, <-outcome
					}
					if a.Refused != nil {
						return agent.Sums{}, a.Refused
					}
					return agent.Sums{}, nil
				}
			})
			ctx := within(t)
			push := func(c *agentclient.Client) {
				t.Helper()
				if _, err := c.Push(ctx, []uint64{1}, []float32{1, 2}); err != nil {
					t.Fatal(err)
				}
			}
			c := b.dial(party(1))
			push(c)
			ticket, err := c.Submit(ctx, agentproto.Entry{Op: agentproto.Reduce})
			if err != nil {
				t.Fatal(err)
			}
			<-entered
			if l.more {
				push(c)
				if err := c.Flush(ctx); err != nil {
					t.Fatal(err)
				}
			}
			if l.stays {
				outcome <- l.outcome
				if got, err := c.Wait(ctx, ticket); err != nil || (got.Status == agentproto.OK) != (l.outcome == nil) {
					t.Fatalf("the meeting gave %+v, %v", got, err)
				}
			}
			if l.retries {
				if _, _, err := c.Reduce(ctx, 0); err != nil {
					t.Fatal(err)
				}
			}
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
			if !l.stays {
				for len(b.agent.Stats().Jobs[0].Clients) > 0 && ctx.Err() == nil {
					runtime.Gosched()
				}
				outcome <- l.outcome
			}
			b.idle(0)
			for again := range 2 {
				c = b.dial(party(1))
				push(c)
				_, _, err := c.Reduce(ctx, c.Welcome().NextStep)
				if torn := l.torn && again == 0; err != nil != torn || torn && !errors.Is(err, agentproto.Dropped) {
					t.Errorf("successor %d had %v", again, err)
				}
				if err := c.Close(); err != nil {
					t.Fatal(err)
				}
				b.idle(0)
			}
		})
	}
}

// All parties get the sums that the host has got, whatever they pushed, also if these do not fit their buffers. A
// refused gradient drops the step for all of them, and the next one goes on.
func TestReduce(t *testing.T) {
	const parties, rows = 3, 10_000 // 160 kB, in buffers of 64 KiB
	want := agent.Sums{}
	for i := range rows {
		want.Keys = append(want.Keys, uint64(3*i))
		want.Rows = append(want.Rows, float32(i)/3, -float32(i))
	}
	type call struct {
		step    uint64
		refused *agent.DroppedError
	}
	var mu sync.Mutex
	var calls []call
	b := newBed(t, func(c *agent.Config) {
		c.Jobs[0].Reduce = func(_ context.Context, step uint64, a agent.Arrival) (agent.Sums, error) {
			refused := a.Refused
			mu.Lock()
			defer mu.Unlock()
			calls = append(calls, call{step, refused})
			if refused != nil {
				return agent.Sums{}, refused
			}
			return want, nil
		}
	})
	clients := make([]*agentclient.Client, parties)
	for i := range clients {
		clients[i] = b.dial(party(parties))
	}
	all := func(do func(i int, c *agentclient.Client)) {
		var group sync.WaitGroup
		for i, c := range clients {
			group.Go(func() { do(i, c) })
		}
		group.Wait()
	}
	ctx := within(t)
	if err := clients[0].Sums(ctx, 0, make([]uint64, 1), make([]float32, dim)); !errors.Is(err, agentproto.NoSums) {
		t.Errorf("sums before the first reduce: %v", err)
	}
	reduce := func(step uint64) {
		all(func(i int, c *agentclient.Client) {
			if i == 1 && step == 0 { // it only takes part
				if err := c.Barrier(ctx, step); err != nil {
					t.Error(err)
				}
				return
			}
			keys, sums, err := c.Reduce(ctx, step)
			if err != nil || !slices.Equal(keys, want.Keys) || !slices.Equal(sums, want.Rows) {
				t.Errorf("party %d, step %d: %d rows, %v", i, step, len(keys), err)
			}
		})
	}
	reduce(0)
	all(func(i int, c *agentclient.Client) {
		grads := []float32{1, 2, 3, 4}
		if i == 2 {
			grads[3] = float32(math.NaN())
		}
		if _, err := c.Push(ctx, []uint64{5, 90}, grads); err != nil {
			t.Error(err)
		}
		var failed *agentclient.Failed
		// A step that is not due takes no notice of what was refused.
		if _, _, err := c.Reduce(ctx, 7); !errors.As(err, &failed) || failed.Status != agentproto.BadStep {
			t.Errorf("party %d, a step that is not due: %v", i, err)
		}
		if _, _, err := c.Reduce(ctx, 1); !errors.As(err, &failed) || failed.Status != agentproto.Dropped || !failed.KeyKnown || failed.Key != 90 {
			t.Errorf("party %d: %v", i, err)
		}
		if err := c.Flush(ctx); err != nil {
			t.Errorf("party %d is told again: %v", i, err)
		}
	})
	reduce(2)
	if err := clients[0].Sums(ctx, rows-1, make([]uint64, 2), make([]float32, 2*dim)); !errors.Is(err, agentproto.NoSums) {
		t.Errorf("a row too many: %v", err)
	}
	if err := clients[0].Sums(ctx, rows, nil, nil); err != nil {
		t.Errorf("none, behind the last one: %v", err)
	}
	if err := clients[0].Sums(ctx, rows+1, nil, nil); !errors.Is(err, agentproto.NoSums) {
		t.Errorf("none, behind that: %v", err)
	}
	if err := clients[0].Sums(ctx, math.MaxUint64, make([]uint64, 1), make([]float32, dim)); !errors.Is(err, agentproto.NoSums) {
		t.Errorf("a row beyond all: %v", err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(calls) != 3 || calls[0] != (call{0, nil}) || calls[1].step != 1 || *calls[1].refused != (agent.DroppedError{Key: 90, KeyKnown: true}) || calls[2] != (call{2, nil}) {
		t.Errorf("the host reduced %+v", calls)
	}
}

// The host tells the others at the end of each step how many frames of hot gradients it has sent so far, and how many were answered.
func TestArrivalTellsOfHotFrames(t *testing.T) {
	var arrivals []agent.Arrival
	b := newBed(t, func(c *agent.Config) {
		c.Jobs[0].Reduce = func(_ context.Context, _ uint64, a agent.Arrival) (agent.Sums, error) {
			arrivals = append(arrivals, a)
			return agent.Sums{}, nil
		}
	})
	c := b.dial(party(1))
	for step, keys := range [][]uint64{nil, {1000}, {0}, {1001}} { // the third is hot
		_, err := c.Push(within(t), keys, make([]float32, dim*len(keys)))
		must(t, err)
		_, _, err = c.Reduce(within(t), uint64(step))
		must(t, err)
	}
	must(t, b.agent.Close())
	first := arrivals[0]
	more := agent.Arrival{HotSent: first.HotSent + 1, HotAnswered: first.HotAnswered + 1}
	if want := []agent.Arrival{first, first, more, more}; !slices.Equal(arrivals, want) {
		t.Errorf("%+v, want %+v", arrivals, want)
	}
}

// REDUCE may name room for sums: the agent copies there what fits, and nothing else.
func TestReduceWithRoom(t *testing.T) {
	b := newBed(t, func(c *agent.Config) {
		c.Jobs[0].Reduce = func(context.Context, uint64, agent.Arrival) (agent.Sums, error) {
			return agent.Sums{Keys: []uint64{4, 7, 9}, Rows: []float32{1, 2, 3, 4, 5, 6}}, nil
		}
	})
	c := b.dial(party(1))
	const room = 4
	for step, n := range []uint32{2, room} {
		keys, rows := c.Memory().Keys(0, room), c.Memory().Floats(64, room*dim)
		for i := range keys {
			keys[i], rows[2*i], rows[2*i+1] = 99, -1, -1
		}
		ticket, err := c.Submit(within(t), agentproto.Entry{Op: agentproto.Reduce, Step: uint64(step), Dim: dim, Keys: 0, Values: 64, N: n})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := c.Wait(within(t), ticket); err != nil || got.Status != agentproto.OK || got.Detail != 3 {
			t.Fatalf("%+v, %v", got, err)
		}
		wantKeys, wantRows := []uint64{4, 7, 99, 99}, []float32{1, 2, 3, 4, -1, -1, -1, -1}
		if n > 2 {
			wantKeys[2], wantRows[4], wantRows[5] = 9, 5, 6
		}
		if !slices.Equal(keys, wantKeys) || !slices.Equal(rows, wantRows) {
			t.Errorf("room for %d: keys %v, rows %v", n, keys, rows)
		}
	}
}

// A job without sums of steps, and a client that is no party, are told so; a server that fails ends no step.
func TestReduceFails(t *testing.T) {
	b := newBed(t)
	if _, _, err := b.dial(party(1)).Reduce(within(t), 0); !errors.Is(err, agentproto.BadMode) {
		t.Errorf("a job without steps: %v", err)
	}
	broken := true
	b = newBed(t, func(c *agent.Config) {
		c.Jobs[0].Reduce = func(context.Context, uint64, agent.Arrival) (agent.Sums, error) {
			if broken {
				broken = false
				return agent.Sums{}, errors.New("a worker is lost")
			}
			return agent.Sums{}, nil
		}
	})
	if _, _, err := b.dial().Reduce(within(t), 0); !errors.Is(err, agentproto.NoParty) {
		t.Errorf("no party: %v", err)
	}
	c := b.dial(party(1))
	if _, _, err := c.Reduce(within(t), 0); !errors.Is(err, agentproto.Refused) {
		t.Errorf("the server fails: %v", err)
	}
	if keys, _, err := c.Reduce(within(t), 0); err != nil || len(keys) != 0 {
		t.Errorf("an empty step: %v, %v", keys, err)
	}
}

// While the end of a step waits, STATS tells for whom: parties of this host, or other hosts.
func TestStatisticsTellWhoIsMissing(t *testing.T) {
	const parties = 2
	others := make(chan struct{})
	b := newBed(t, func(c *agent.Config) {
		c.Jobs[0].Reduce = func(ctx context.Context, _ uint64, _ agent.Arrival) (agent.Sums, error) {
			select {
			case <-others:
			case <-ctx.Done():
			}
			return agent.Sums{}, ctx.Err()
		}
	})
	ctx := within(t)
	one, two := b.dial(party(parties)), b.dial(party(parties))
	wait := func(arrived uint64) {
		t.Helper()
		for {
			page, err := one.Stats(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if page[14] == arrived && page[15] == parties {
				return
			}
		}
	}
	wait(0)
	for i, c := range []*agentclient.Client{one, two} {
		ticket, err := c.Submit(ctx, agentproto.Entry{Op: agentproto.Reduce})
		if err != nil {
			t.Fatal(err)
		}
		wait(uint64(i) + 1)
		if i == 1 {
			close(others)
			if got, err := c.Wait(ctx, ticket); err != nil || got.Status != agentproto.OK {
				t.Fatal(got, err)
			}
		}
	}
	wait(0)
}
