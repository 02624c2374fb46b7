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
	"sync/atomic"
	"testing"

	"github.com/libra-ina/libra/agent"
	"github.com/libra-ina/libra/agent/agentclient"
	"github.com/libra-ina/libra/agent/agentproto"
)

// A step with pushes of ended parties is dropped when the next ones reduce: otherwise its sums
// would have rows of the ended ones. Parties that have pushed nothing since the end of a step leave
// none.
func TestTornStep(t *testing.T) {
	var mu sync.Mutex
	var calls []bool // whether the step had to be dropped
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
	// life opens the sessions of two parties, which reduce some steps, push as they are told, and
	// end; the first may wait in a REDUCE until the second has ended. It returns the results of the
	// first one's steps.
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
		push  [2]bool // before they end
		waits bool
		torn  bool
	}{
		{push: [2]bool{true, true}, waits: true, torn: true},
		{push: [2]bool{true, false}, torn: true},
		{push: [2]bool{false, true}, torn: true},
		{},
		{push: [2]bool{true, false}, waits: true, torn: true},
		{waits: true},
	} {
		life(2, l.push, l.waits)
		failures := life(2, [2]bool{}, false)
		if dropped := errors.Is(failures[0], agentproto.Dropped); dropped != l.torn || failures[1] != nil {
			t.Errorf("life %d: the next one had %v", i, failures)
		}
	}
	if want := []bool{false, false, true, false, false, false, true, false, false, false, true, false, false, false, false, false, false, false, true, false, false, false, false, false}; !slices.Equal(calls, want) {
		t.Errorf("the host met the others %v, want %v", calls, want)
	}
}

// A refused push stays with its party over a BARRIER, and the REDUCE after it is dropped with its
// key, even if the step is also torn. A torn step stays torn if the host cannot meet the others.
func TestRefusedAndTorn(t *testing.T) {
	var fails atomic.Bool
	b := newBed(t, func(c *agent.Config) {
		c.Jobs[0].Reduce = func(_ context.Context, _ uint64, a agent.Arrival) (agent.Sums, error) {
			switch {
			case fails.Swap(false):
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
		_ = c.Flush(ctx) // also of refused pushes
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
	fails.Store(true)
	reduce(c, 3, agentproto.Refused, 0)
	reduce(c, 3, agentproto.Dropped, 0)
	if _, _, err := c.Reduce(ctx, 4); err != nil {
		t.Error(err)
	}
}

// If parties end while the host meets the others without success, one that has pushed is enough to
// tear the step.
func TestTornByOneOfTwo(t *testing.T) {
	for _, pushed := range [][2]bool{{}, {true, false}, {false, true}} {
		entered, end := make(chan struct{}), make(chan struct{})
		first := true
		b := newBed(t, func(c *agent.Config) {
			c.Jobs[0].Reduce = func(_ context.Context, _ uint64, a agent.Arrival) (agent.Sums, error) {
				switch {
				case first:
					first = false
					close(entered)
					<-end
					return agent.Sums{}, errors.New("no server")
				case a.Refused != nil:
					return agent.Sums{}, a.Refused
				}
				return agent.Sums{}, nil
			}
		})
		ctx := within(t)
		parties := [2]*agentclient.Client{b.dial(party(2)), b.dial(party(2))}
		for i, c := range parties {
			if pushed[i] {
				if _, err := c.Push(ctx, []uint64{1}, []float32{1, 2}); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := c.Submit(ctx, agentproto.Entry{Op: agentproto.Reduce}); err != nil {
				t.Fatal(err)
			}
			for s, err := c.Stats(ctx); i == 0 && err == nil && s[14] == 0; s, err = c.Stats(ctx) { // it is the first to arrive
				runtime.Gosched()
			}
		}
		<-entered
		for _, c := range parties {
			_ = c.Close()
		}
		for len(b.agent.Stats().Jobs[0].Clients) > 0 && ctx.Err() == nil {
			runtime.Gosched()
		}
		close(end)
		b.idle(0)
		_, _, err := b.dial(party(1)).Reduce(ctx, 0)
		if torn := pushed[0] || pushed[1]; errors.Is(err, agentproto.Dropped) != torn || !torn && err != nil {
			t.Errorf("pushed %v: %v", pushed, err)
		}
	}
}

// The pushes of a party that ends while its host meets the others belong to the step that ends, if
// that succeeds. A push after its REDUCE waits: it is nothing if the party ends, and tears the next
// step if it was begun before that. A failed step is still due, and torn once a party that pushed
// in it has ended.
func TestTornWhileTheHostMeetsTheOthers(t *testing.T) {
	fails := errors.New("no server")
	for name, l := range map[string]struct {
		outcome error // of the meeting
		more    bool  // a push follows the REDUCE
		stays   bool  // until the meeting is over
		retries bool  // and reduces again
		torn    bool
	}{
		"it ends":                                           {},
		"it ends after one more push":                       {more: true},
		"it fails":                                          {outcome: fails, torn: true},
		"it fails before the party":                         {outcome: fails, stays: true, torn: true},
		"it fails after one more push":                      {outcome: fails, more: true, torn: true},
		"it fails, and then succeeds":                       {outcome: fails, stays: true, retries: true},
		"it succeeds before the party":                      {stays: true},
		"it succeeds after one more push, before the party": {more: true, stays: true, torn: true},
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
				b.turns()
			}
			if l.stays {
				outcome <- l.outcome
				if got, err := c.Wait(ctx, ticket); err != nil || (got.Status == agentproto.OK) != (l.outcome == nil) {
					t.Fatalf("the meeting gave %+v, %v", got, err)
				}
				must(t, c.Flush(ctx))
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

// A refused push whose step could not be ended (the meeting failed, the step is still due) must
// drop that step when it is reduced again.
func TestRefusalOutlastsAFailedMeeting(t *testing.T) {
	for _, survives := range []bool{true, false} {
		fails := true
		b := newBed(t, func(c *agent.Config) {
			c.Jobs[0].Reduce = func(_ context.Context, _ uint64, a agent.Arrival) (agent.Sums, error) {
				if fails {
					fails = false
					return agent.Sums{}, errors.New("no server")
				}
				if a.Refused != nil {
					return agent.Sums{}, a.Refused
				}
				return agent.Sums{}, nil
			}
		})
		ctx := within(t)
		c := b.dial(party(1))
		if _, err := c.Push(ctx, []uint64{90}, []float32{1, float32(math.NaN())}); err != nil {
			t.Fatal(err)
		}
		if _, _, err := c.Reduce(ctx, 0); !errors.Is(err, agentproto.Refused) {
			t.Errorf("the meeting fails: %v", err)
		}
		if !survives {
			_ = c.Close()
			b.idle(0)
			c = b.dial(party(1))
		}
		if _, _, err := c.Reduce(ctx, 0); !errors.Is(err, agentproto.Dropped) {
			t.Errorf("party survives %v: the same step again, without the refused gradient: %v, want DROPPED", survives, err)
		}
	}
}
