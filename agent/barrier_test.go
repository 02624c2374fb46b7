// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/libra-ina/libra/agent"
	"github.com/libra-ina/libra/agent/agentclient"
	"github.com/libra-ina/libra/agent/agentproto"
)

func party(n uint32) func(*agentproto.Hello) {
	return func(h *agentproto.Hello) { h.Parties = n }
}

// The host meets the other workers once per step, when all of its parties have arrived and all
// their pushes are acknowledged.
func TestBarriers(t *testing.T) {
	const parties, steps, first = 3, 5, 7
	keys, grads := batch(1, 20)
	var b *bed
	var mu sync.Mutex // the race detector does not see the order in shared memory
	var met []uint64
	b = newBed(t, func(c *agent.Config) {
		c.Jobs[0].NextStep = first
		c.Jobs[0].Barrier = func(ctx context.Context, step uint64) error {
			mu.Lock()
			defer mu.Unlock()
			met = append(met, step)
			b.expect(parties, keys, grads)
			b.check()
			return ctx.Err()
		}
	})
	b.dial() // takes no part
	var group sync.WaitGroup
	for range parties {
		c := b.dial(party(parties))
		if c.Welcome().NextStep != first {
			t.Errorf("the next step is %d", c.Welcome().NextStep)
		}
		group.Go(func() {
			for step := range uint64(steps) {
				if _, err := c.Push(within(t), keys, grads); err != nil {
					t.Error(err)
				}
				if err := c.Barrier(within(t), first+step); err != nil {
					t.Errorf("step %d: %v", first+step, err)
				}
			}
		})
	}
	group.Wait()
	mu.Lock()
	defer mu.Unlock()
	if !slices.Equal(met, []uint64{7, 8, 9, 10, 11}) {
		t.Errorf("the host met the others at steps %v", met)
	}
}

// Parties that do not match are refused; a step that is not due, and a barrier that cannot be
// complete, fail.
func TestBarriersFail(t *testing.T) {
	failures := []error{
		errors.New("the job is at another step"), fmt.Errorf("%w: the switch is stopping", agentproto.JobEnded),
	} // of step 1; the next one passes
	b := newBed(t, func(c *agent.Config) {
		c.Jobs[0].Barrier = func(_ context.Context, step uint64) (err error) {
			if step == 1 && len(failures) > 0 {
				err, failures = failures[0], failures[1:]
			}
			return err
		}
	})
	refuse := func(n uint32, why string) {
		t.Helper()
		c, err := agentclient.Dial(within(t), b.socket, agentproto.Hello{Job: jobName, Parties: n})
		if err == nil {
			_ = c.Close()
		}
		if !errors.Is(err, agentproto.Parties) || !strings.HasSuffix(err.Error(), why) {
			t.Errorf("a party of %d: %v, want one that ends with %q", n, err, why)
		}
	}
	both := []*agentclient.Client{b.dial(party(2))}
	refuse(3, "it gave 3, the other clients gave 2")
	both = append(both, b.dial(party(2)))
	refuse(2, "all 2 have joined")
	barrier := func(step uint64) (err error) {
		errs := make([]error, 2)
		var group sync.WaitGroup
		for i, c := range both {
			group.Go(func() { errs[i] = c.Barrier(within(t), step) })
		}
		group.Wait()
		if (errs[0] == nil) != (errs[1] == nil) {
			t.Errorf("step %d: the parties are told %v", step, errs)
		}
		return errs[1]
	}
	var failed *agentclient.Failed
	if err := barrier(3); !errors.As(err, &failed) || failed.Status != agentproto.BadStep || failed.Detail != 0 {
		t.Errorf("a step that is not due: %v", err)
	}
	if err := barrier(0); err != nil {
		t.Error(err)
	}
	if err := barrier(1); !errors.As(err, &failed) || failed.Status != agentproto.Refused || failed.Peer != agentproto.Server {
		t.Errorf("the server refuses: %v", err)
	}
	if err := barrier(1); !errors.As(err, &failed) || failed.Status != agentproto.JobEnded {
		t.Errorf("the host's part has ended: %v", err)
	}

	// One party waits, the other dies.
	ticket, err := both[0].Submit(within(t), agentproto.Entry{Op: agentproto.Barrier, Step: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := both[0].Flush(within(t)); err != nil { // the barrier's turn has come
		t.Fatal(err)
	}
	if err := both[1].Conn().Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := both[0].Wait(within(t), ticket); err != nil || got.Status != agentproto.PartyGone {
		t.Errorf("the party that waited: %+v, %v", got, err)
	} else if client, pid := got.Party(); client != both[1].Welcome().Client || int(pid) != os.Getpid() {
		t.Errorf("the party that left is said to be %d of process %d", client, pid)
	}
	if err := both[0].Barrier(within(t), 1); !errors.Is(err, agentproto.PartyGone) ||
		!strings.Contains(err.Error(), fmt.Sprintf("start all of them anew (it was process %d, client %d in the agent's log)", os.Getpid(), both[1].Welcome().Client)) {
		t.Errorf("the next barrier: %v", err)
	}
	refuse(2, "one of 2 has ended, 1 remain")
	if err := both[0].Conn().Close(); err != nil {
		t.Fatal(err)
	}
	b.idle(0)
	// All have ended: new ones may form.
	one := b.dial(party(1))
	if err := one.Barrier(within(t), 2); !errors.Is(err, agentproto.BadStep) {
		t.Errorf("step 1 is due still: %v", err)
	}
	if err := one.Barrier(within(t), 1); err != nil {
		t.Errorf("the new one at step 1: %v", err)
	}
}

// All parties that remain are told of the one that left first: the others left because of it.
func TestPartyThatLeftFirstIsNamed(t *testing.T) {
	b := newBed(t, func(c *agent.Config) {
		c.Jobs[0].Barrier = func(context.Context, uint64) error { return nil }
	})
	parties := []*agentclient.Client{b.dial(party(3)), b.dial(party(3)), b.dial(party(3))}
	first := parties[1].Welcome().Client
	ctx := within(t)
	for i, next := range []int{1, 0} { // the second follows the first
		must(t, parties[next].Conn().Close())
		for len(b.agent.Stats().Jobs[0].Clients) > 2-i && ctx.Err() == nil {
			runtime.Gosched()
		}
	}
	ticket, err := parties[2].Submit(ctx, agentproto.Entry{Op: agentproto.Barrier})
	must(t, err)
	got, err := parties[2].Wait(ctx, ticket)
	must(t, err)
	if client, _ := got.Party(); got.Status != agentproto.PartyGone || client != first {
		t.Errorf("the barrier ends with %v because of client %d, want client %d", got.Status, client, first)
	}
}

// The barrier of a party that has ended does not count, even if it is due later, when the party's
// earlier pushes are acknowledged.
func TestBarrierOfOneThatHasGone(t *testing.T) {
	var met atomic.Int32
	b := newBed(t, func(c *agent.Config) {
		c.Jobs[0].Barrier = func(context.Context, uint64) error { met.Add(1); return nil }
	})
	goOn := b.stopServer() // the server, which would acknowledge the push
	c := b.dial(party(1))
	keys, grads := []uint64{1000}, []float32{1, 2}
	_, err := c.Push(within(t), keys, grads)
	must(t, err)
	_, err = c.Submit(within(t), agentproto.Entry{Op: agentproto.Barrier})
	must(t, err)
	ctx := within(t)
	for c.Memory().SQHead.Load() != 2 && ctx.Err() == nil { // both are read
		runtime.Gosched()
	}
	must(t, c.Conn().Close())
	for len(b.agent.Stats().Jobs[0].Clients) > 0 && ctx.Err() == nil {
		runtime.Gosched()
	}
	goOn()
	b.idle(0)
	if n := met.Load(); n != 0 {
		t.Errorf("the host has met the others %d times for one that has gone", n)
	}
	if step := b.dial(party(1)).Welcome().NextStep; step != 0 {
		t.Errorf("step %d is due, want 0", step)
	}
	b.expect(1, keys, grads)
	b.check()
}

// When all parties die while the host meets the others, the next parties continue after that step.
func TestPartiesDieAtTheirBarrier(t *testing.T) {
	entered, open := make(chan uint64, 2), make(chan struct{})
	b := newBed(t, func(c *agent.Config) {
		c.Jobs[0].Barrier = func(_ context.Context, step uint64) error {
			entered <- step
			<-open
			return nil
		}
	})
	c := b.dial(party(1))
	if _, err := c.Submit(within(t), agentproto.Entry{Op: agentproto.Barrier}); err != nil {
		t.Fatal(err)
	}
	<-entered
	if err := c.Conn().Close(); err != nil {
		t.Fatal(err)
	}
	for ctx := within(t); len(b.agent.Stats().Jobs[0].Clients) > 0 && ctx.Err() == nil; {
		runtime.Gosched()
	}
	if next, err := agentclient.Dial(within(t), b.socket, agentproto.Hello{Job: jobName, Parties: 1}); !errors.Is(err, agentproto.Parties) ||
		!strings.HasSuffix(err.Error(), "this host still waits for the other hosts at the end of step 0") {
		t.Errorf("a party that came meanwhile: %v", err)
		if err == nil {
			_ = next.Close()
		}
	}
	close(open)
	b.idle(0)
	c = b.dial(party(1))
	if step := c.Welcome().NextStep; step != 1 {
		t.Errorf("step %d is due, want 1", step)
	}
	if err := c.Barrier(within(t), 1); err != nil {
		t.Error(err)
	}
}

// A party reaches the end of a step once: a second BARRIER or REDUCE, while the host meets the
// others, is refused, and does not count for the next step.
func TestPartyComesTwice(t *testing.T) {
	for name, op := range map[string]agentproto.Op{"barrier": agentproto.Barrier, "reduce": agentproto.Reduce} {
		t.Run(name, func(t *testing.T) {
			for _, parties := range []uint32{1, 2} {
				var mu sync.Mutex
				var met []uint64
				entered, open := make(chan struct{}), make(chan struct{})
				meet := func(step uint64) {
					mu.Lock()
					met = append(met, step)
					first := len(met) == 1
					mu.Unlock()
					if first {
						close(entered)
						<-open
					}
				}
				b := newBed(t, func(c *agent.Config) {
					c.Jobs[0].Barrier = func(_ context.Context, step uint64) error {
						meet(step)
						return nil
					}
					c.Jobs[0].Reduce = func(_ context.Context, step uint64, _ agent.Arrival) (agent.Sums, error) {
						meet(step)
						return agent.Sums{}, nil
					}
				})
				clients := make([]*agentclient.Client, parties)
				tickets := make([]uint64, parties)
				for i := range clients {
					clients[i] = b.dial(party(parties))
				}
				submit := func(step uint64) {
					t.Helper()
					for i, c := range clients {
						var err error
						if tickets[i], err = c.Submit(within(t), agentproto.Entry{Op: op, Step: step}); err != nil {
							t.Fatal(err)
						}
					}
				}
				wait := func(step uint64) {
					t.Helper()
					for i, c := range clients {
						if got, err := c.Wait(within(t), tickets[i]); err != nil || got.Status != agentproto.OK {
							t.Errorf("%d parties, step %d: %+v, %v", parties, step, got, err)
						}
					}
				}
				submit(0)
				<-entered
				again, err := clients[0].Submit(within(t), agentproto.Entry{Op: op})
				if err == nil {
					err = clients[0].Flush(within(t)) // the turn of both has come
				}
				if err != nil {
					t.Fatal(err)
				}
				close(open)
				wait(0)
				submit(1)
				wait(1)
				if got, err := clients[0].Wait(within(t), again); err != nil || got.Status != agentproto.BadStep || got.Detail != 0 {
					t.Errorf("%d parties, the second one of a step: %+v, %v", parties, got, err)
				}
				mu.Lock()
				if !slices.Equal(met, []uint64{0, 1}) {
					t.Errorf("%d parties: the host met the others at steps %v", parties, met)
				}
				mu.Unlock()
			}
		})
	}
}
