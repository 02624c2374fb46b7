// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/libra-ina/libra/agent"
	"github.com/libra-ina/libra/agent/agentclient"
	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/ps"
)

// The count of hot frames that a host reports with a torn step includes those of ended parties that
// were still queued at its arrival: otherwise the server considers the step quiet, drops it without
// a harvest, and the gradients appear in the next step's sums.
func TestTornStepTellsAllHotFrames(t *testing.T) {
	var b *bed
	told := make(chan [2]uint32, 1)
	b = newBed(t, func(c *agent.Config) {
		c.Jobs[0].Reduce = func(ctx context.Context, _ uint64, a agent.Arrival) (agent.Sums, error) {
			var sent uint32
			if err := b.cluster.Worker(0).Do(ctx, func() { sent, _ = b.cluster.Worker(0).HotFrames() }); err != nil {
				return agent.Sums{}, err
			}
			told <- [2]uint32{a.HotSent, sent}
			if a.Refused != nil {
				return agent.Sums{}, a.Refused
			}
			return agent.Sums{}, nil
		}
	})
	goOn := b.stopServer()
	ctx := within(t)
	c := b.dial(party(1), func(h *agentproto.Hello) { h.Entries, h.BufferBytes = 64, 4<<20 })
	n := 20000
	cold, grads := make([]uint64, n), make([]float32, n*dim)
	for i := range cold {
		cold[i], grads[2*i] = uint64(1000+i), 1
	}
	for range 6 {
		if _, err := c.Push(ctx, cold, grads); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Push(ctx, []uint64{1, 2, 3}, []float32{1, 1, 1, 1, 1, 1}); err != nil {
		t.Fatal(err)
	}
	for c.Memory().SQHead.Load() != 7 && ctx.Err() == nil {
		runtime.Gosched()
	}
	_ = c.Conn().Close()
	for len(b.agent.Stats().Jobs[0].Clients) > 0 && ctx.Err() == nil {
		runtime.Gosched()
	}
	next := b.dial(party(1))
	ticket, err := next.Submit(ctx, agentproto.Entry{Op: agentproto.Reduce})
	if err != nil {
		t.Fatal(err)
	}
	for {
		s, err := next.Stats(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if s[14] == 1 {
			break
		}
	}
	select {
	case <-told:
		t.Fatal("the host meets the others while pushes of the dead are on their way")
	case <-time.After(50 * time.Millisecond):
	}
	goOn()
	if got := <-told; got[0] != got[1] {
		t.Errorf("the host reports %d hot frames at the end of the torn step, and has sent %d in it", got[0], got[1])
	}
	if got, err := next.Wait(ctx, ticket); err != nil || got.Status != agentproto.Dropped {
		t.Errorf("%+v, %v", got, err)
	}
}

// What a party submits after its REDUCE belongs to the next step: it waits even if the REDUCE's
// turn has not come. If the party ends after that, it tears that step.
func TestPushAfterAReduceThatWaits(t *testing.T) {
	var b *bed
	var mu sync.Mutex
	var rows []int // of the store at each commit
	b = newBed(t, func(c *agent.Config) {
		c.Jobs[0].Reduce = func(ctx context.Context, _ uint64, a agent.Arrival) (agent.Sums, error) {
			if a.Refused != nil {
				return agent.Sums{}, a.Refused
			}
			err := b.cluster.Do(ctx, func(s *ps.Store) { s.Commit() }) // all is cold; Cluster.Commit would flush, which a control service does not
			_ = b.cluster.Do(ctx, func(s *ps.Store) {
				whole := 0
				for _, w := range s.Rows() {
					if w[0] == -3 {
						whole++
					}
				}
				mu.Lock()
				rows = append(rows, whole)
				mu.Unlock()
			})
			return agent.Sums{}, err
		}
	})
	goOn := b.stopServer()
	ctx := within(t)
	c := b.dial(party(1), func(h *agentproto.Hello) { h.Entries, h.BufferBytes = 64, 8<<20 })
	if _, err := c.Push(ctx, []uint64{1000}, []float32{1, 1}); err != nil {
		t.Fatal(err)
	}
	reduce, err := c.Submit(ctx, agentproto.Entry{Op: agentproto.Reduce})
	if err != nil {
		t.Fatal(err)
	}
	n := 100000
	cold, grads := make([]uint64, n), make([]float32, n*dim)
	for i := range cold {
		cold[i], grads[2*i] = uint64(2000+i), 1
	}
	for range 3 {
		if _, err := c.Push(ctx, cold, grads); err != nil {
			t.Fatal(err)
		}
	}
	b.turns()
	if head := c.Memory().SQHead.Load(); head != 2 {
		t.Errorf("%d entries are read before the step has ended, want 2", head)
	}
	goOn()
	if got, err := c.Wait(ctx, reduce); err != nil || got.Status != agentproto.OK {
		t.Fatalf("%+v %v", got, err)
	}
	for c.Memory().SQHead.Load() != 5 && ctx.Err() == nil {
		runtime.Gosched()
	}
	_ = c.Conn().Close()
	b.idle(0)
	next := b.dial(party(1))
	_, _, err = next.Reduce(ctx, 1)
	mu.Lock()
	t.Logf("rows with the three later pushes of the dead after the commits of steps 0 and 1: %v of %d", rows, n)
	mu.Unlock()
	if !errors.Is(err, agentproto.Dropped) {
		t.Errorf("a step with pushes of one that is gone: %v, want DROPPED", err)
	}
}

// The memory of one user's clients, including ended ones, stays within clients x memory, whatever
// the server does.
func TestMemoryOfTheDead(t *testing.T) {
	const each, clients = 4 << 20, 2
	b := newBed(t, func(c *agent.Config) {
		c.Jobs[0].Limits.Clients, c.Jobs[0].Limits.UserClients, c.Jobs[0].Limits.Memory = clients, clients, each
	})
	goOn := b.stopServer()
	defer func() { goOn(); b.idle(0) }()
	ctx := within(t)
	refusals := 0
	for range 40 {
		c, err := agentclient.Dial(ctx, b.socket, agentproto.Hello{Job: jobName, Entries: 16, BufferBytes: 3 << 20})
		if err != nil {
			refusals++
			t.Log(err)
			continue
		}
		if _, err := c.Push(ctx, []uint64{1000}, []float32{1, 1}); err != nil {
			t.Fatal(err)
		}
		for c.Memory().SQHead.Load() != 1 && ctx.Err() == nil {
			runtime.Gosched()
		}
		_ = c.Close()
		for len(b.agent.Stats().Jobs[0].Clients) > 0 && ctx.Err() == nil {
			runtime.Gosched()
		}
	}
	if m := b.agent.Stats().Jobs[0].Memory; m > clients*each {
		t.Errorf("%d bytes are held by clients that are gone, %d allowed; %d refusals", m, clients*each, refusals)
	}
}
