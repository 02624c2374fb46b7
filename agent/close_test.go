// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/libra-ina/libra/agent"
	"github.com/libra-ina/libra/agent/agentclient"
	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/local"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/ps"
)

// A client that waits at a barrier when the agent is closed gets that reason, not that another
// client has ended.
func TestCloseAtABarrier(t *testing.T) {
	for _, waits := range []int{0, 1} {
		b := newBed(t, func(c *agent.Config) {
			c.Jobs[0].Barrier = func(ctx context.Context, _ uint64) error { return nil }
		})
		ctx := within(t)
		both := []*agentclient.Client{b.dial(party(2)), b.dial(party(2))}
		c := both[waits]
		result := make(chan error, 1)
		go func() { result <- c.Barrier(ctx, 0) }()
		for {
			s, err := both[1-waits].Stats(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if s[14] == 1 {
				break
			}
		}
		time.Sleep(100 * time.Millisecond) // it sleeps
		if err := b.agent.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-result; !errors.Is(err, agentproto.AgentClosed) {
			t.Errorf("party %d waits: %v, want %v", waits, err, agentproto.AgentClosed)
		}
	}
}

// Close returns when the interrupted meeting has ended: nothing of the job is called after it.
func TestCloseAwaitsTheMeeting(t *testing.T) {
	var over atomic.Bool
	met := make(chan struct{})
	b := newBed(t, func(c *agent.Config) {
		c.Jobs[0].Barrier = func(ctx context.Context, _ uint64) error {
			close(met)
			<-ctx.Done()
			time.Sleep(100 * time.Millisecond)
			over.Store(true)
			return ctx.Err()
		}
	})
	c := b.dial(party(1))
	_, err := c.Submit(within(t), agentproto.Entry{Op: agentproto.Barrier})
	must(t, err)
	<-met
	must(t, b.agent.Close())
	if !over.Load() {
		t.Error("the agent is closed, and its host still meets the others")
	}
}

// An agent is closed while parties take steps: all get the reason, and none passes a step that the
// host has not ended.
func TestCloseAmongSteps(t *testing.T) {
	for range 30 {
		var ended atomic.Int64
		var b *bed
		b = newBed(t, func(c *agent.Config) {
			c.Jobs[0].Reduce = func(ctx context.Context, step uint64, a agent.Arrival) (sums agent.Sums, err error) {
				select {
				case <-time.After(time.Duration(rand.IntN(200)) * time.Microsecond):
				case <-ctx.Done():
					return sums, ctx.Err()
				}
				sums.Keys, sums.Rows, err = b.cluster.Reduce(ctx)
				if err == nil {
					ended.Store(int64(step) + 1)
				}
				return sums, err
			}
		})
		var group sync.WaitGroup
		for i := range 3 {
			c := b.dial(party(3))
			group.Go(func() {
				for step := uint64(0); ; step++ {
					if _, err := c.Push(within(t), []uint64{uint64(i)}, []float32{1, 1}); err == nil {
						_, _, err = c.Reduce(within(t), step)
						if err == nil && ended.Load() < int64(step)+1 {
							t.Errorf("step %d has passed", step)
						}
						if err == nil {
							continue
						}
						if !errors.Is(err, agentproto.AgentClosed) {
							t.Errorf("party %d: %v", i, err)
						}
					}
					return
				}
			})
		}
		time.Sleep(time.Duration(rand.IntN(4000)) * time.Microsecond)
		must(t, b.agent.Close())
		group.Wait()
	}
}

// A client that connects while the agent is told to end is not left waiting for an answer.
func TestEndBesideANewClient(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 {
		cluster, err := local.Open(t.Context(), local.Config{Dim: dim, Hot: hotKeys(), Optimizer: sgd})
		must(t, err)
		hot, err := packer.NewHotSet(dim, hotKeys(), nil, packer.Meta{})
		must(t, err)
		cfg := agent.Config{Socket: filepath.Join(shortDir(t), "agent.sock"), Log: slog.New(slog.DiscardHandler),
			Jobs: []agent.Job{{Name: jobName, Worker: cluster.Worker(0), HotSet: hot, Number: 1, Exp: ps.DefaultExp}}}
		a, err := agent.Listen(cfg)
		must(t, err)
		conn, err := net.Dial("unixpacket", cfg.Socket)
		must(t, err)
		must(t, errors.Join(a.Serve(over), a.Close()))
		must(t, conn.SetReadDeadline(time.Now().Add(10*time.Second)))
		if _, err := conn.Read(make([]byte, 64)); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("the client waits")
		}
		must(t, errors.Join(conn.Close(), cluster.Close()))
	}
}

// A reader of statistics that does not read the answer delays no client when the agent ends. Where
// it does, it does so each time, and for as long as it is waited for; on a busy machine others may
// delay some.
func TestCloseBesideOneThatDoesNotRead(t *testing.T) {
	const tries = 10
	var told, end time.Duration
	for try := 0; try == 0 || told > time.Second || end > 5*time.Second; try++ {
		if try == tries {
			t.Fatalf("the client is told after %v, and the end takes %v, the last of %d times", told, end, tries)
		}
		t.Run(fmt.Sprint(try), func(t *testing.T) { told, end = closeBesideOneThatDoesNotRead(t) })
	}
}

// closeBesideOneThatDoesNotRead returns when the client was told, and when the agent had ended.
func closeBesideOneThatDoesNotRead(t *testing.T) (client, end time.Duration) {
	t.Helper()
	b := newBed(t, func(c *agent.Config) { c.Jobs[0].Limits.Clients, c.Jobs[0].Limits.UserClients = 3000, 3000 })
	ctx := within(t)
	var c *agentclient.Client
	for range 1500 {
		c = b.dial(func(h *agentproto.Hello) { h.BufferBytes, h.Client = 4096, "a-client-with-a-rather-long-name"[:31] })
	}
	conn, err := net.Dial("unixpacket", b.socket)
	must(t, err)
	defer conn.Close()
	_, err = conn.Write(agentproto.MarshalAsk())
	must(t, err)
	time.Sleep(300 * time.Millisecond) // it is answered, as far as the socket has room
	begin := time.Now()
	told := make(chan time.Duration, 1)
	go func() {
		for {
			if err := c.Flush(ctx); err != nil {
				told <- time.Since(begin)
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
	must(t, b.agent.Close())
	end = time.Since(begin)
	return <-told, end
}
