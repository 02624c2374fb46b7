// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"testing"

	"github.com/libra-ina/libra/agent"
	"github.com/libra-ina/libra/agent/agentclient"
	"github.com/libra-ina/libra/agent/agentproto"
)

// All parties get the sums of the host, whatever they pushed, even if these do not fit their
// buffers. A refused gradient drops the step for all of them, and the next one works.
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
		// A step that is not due does not clear refused gradients.
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

// At the end of each step the host reports to the others how many frames of hot gradients it has
// sent so far, and how many were answered.
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

// REDUCE may give room for sums: the agent copies there as many as fit, and nothing else.
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

// A job without sums of steps, and a client that is not a party, get an error; a server that fails
// ends no step.
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

// While the end of a step waits, STATS reports for whom: parties of this host, or other hosts.
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
