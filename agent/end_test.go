// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/agent"
	"github.com/libra-ina/libra/agent/agentclient"
	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/internal/test/refuse"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/local"
	"github.com/libra-ina/libra/transport"
	"github.com/libra-ina/libra/wire"
)

// An agent that is closed notifies its clients, and their pushes are acknowledged before Close
// returns.
func TestCloseKeepsWhatWasPushed(t *testing.T) {
	const pushes = 10
	b := newBed(t)
	c := b.dial()
	keys, grads := batch(2, 300)
	for range pushes {
		if _, err := c.Push(within(t), keys, grads); err != nil {
			t.Fatal(err)
		}
	}
	for m := c.Memory(); m.SQHead.Load() != m.SQTail.Load(); { // accepted
		runtime.Gosched()
	}
	if err := b.agent.Close(); err != nil {
		t.Fatal(err)
	}
	if held := b.agent.Stats().Jobs[0].Memory; held != 0 {
		t.Errorf("%d bytes of memory are held", held)
	}
	// Completions from before the end are read, then the error is returned.
	if _, err := c.Wait(within(t), pushes+1); !errors.Is(err, agentproto.AgentClosed) {
		t.Errorf("a call ends with %v", err)
	}
	b.expect(pushes, keys, grads)
	b.check()
}

// When a job's worker ends, its clients end with it and get the reason. The other job continues.
func TestJobEnds(t *testing.T) {
	ends, err := local.Open(t.Context(), local.Config{Dim: dim, Hot: hotKeys(), Optimizer: sgd})
	if err != nil {
		t.Fatal(err)
	}
	defer ends.Close()
	socket := newBed(t, func(cfg *agent.Config) {
		cfg.Jobs[0].Name = "stays"
		cfg.Jobs = append(cfg.Jobs, agent.Job{Name: "ends", Worker: ends.Worker(0), Dim: dim, Why: func() error { return errors.New("the server has gone") }})
	}).socket
	stays, err := agentclient.Dial(within(t), socket, agentproto.Hello{Job: "stays"})
	if err != nil {
		t.Fatal(err)
	}
	defer stays.Close()
	c, err := agentclient.Dial(within(t), socket, agentproto.Hello{Job: "ends"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := ends.Worker(0).Close(); err != nil {
		t.Fatal(err)
	}
	_, err = c.Wait(within(t), 0)
	if !errors.Is(err, agentproto.JobEnded) || !strings.Contains(err.Error(), "the server has gone") {
		t.Errorf("the client is told %v", err)
	}
	for refused := false; !refused; { // the agent may not have noticed yet
		late, err := agentclient.Dial(within(t), socket, agentproto.Hello{Job: "ends"})
		if refused = err != nil; refused && !errors.Is(err, agentproto.JobEnded) {
			t.Errorf("a client that comes later is told %v", err)
		}
		if !refused {
			_ = late.Close()
		}
	}
	if err := stays.Flush(within(t)); err != nil {
		t.Errorf("the client of the other job: %v", err)
	}
}

// Clients of an ended job get that reason, also from an agent that is closed because of it.
func TestCloseAfterTheJobsEnd(t *testing.T) {
	ends, err := local.Open(t.Context(), local.Config{Dim: dim, Hot: hotKeys(), Optimizer: sgd})
	if err != nil {
		t.Fatal(err)
	}
	defer ends.Close()
	socket := filepath.Join(shortDir(t), "ends")
	a, err := agent.Listen(agent.Config{Socket: socket, Log: slog.New(slog.DiscardHandler), Jobs: []agent.Job{{Name: jobName, Worker: ends.Worker(0), Dim: dim}}})
	if err != nil {
		t.Fatal(err)
	}
	served, ctx := make(chan struct{}), within(t)
	go func() {
		defer close(served)
		_ = a.Serve(ctx) // whichever it notices first
	}()
	c, err := agentclient.Dial(within(t), socket, agentproto.Hello{Job: jobName})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := ends.Worker(0).Close(); err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	<-served
	if _, err := c.Wait(within(t), 0); !errors.Is(err, agentproto.JobEnded) {
		t.Errorf("the client is told %v", err)
	}
}

// An agent without remaining jobs returns that error.
func TestAllJobsEnd(t *testing.T) {
	b := newBed(t)
	if err := b.agent.Close(); err != nil { // it has the same worker
		t.Fatal(err)
	}
	a, err := agent.Listen(agent.Config{Socket: filepath.Join(shortDir(t), "sock"), Jobs: []agent.Job{{Name: "one", Worker: b.cluster.Worker(0), Dim: dim}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.cluster.Worker(0).Close(); err != nil {
		t.Fatal(err)
	}
	if err := a.Serve(within(t)); err == nil || !strings.Contains(err.Error(), "all jobs have ended") || !strings.Contains(err.Error(), "job one: transport: endpoint is closed") {
		t.Errorf("Serve returns %v", err)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}

// A job whose worker has ended before the agent starts refuses clients, with the reason, and does
// not learn.
func TestWorkerHasEndedBefore(t *testing.T) {
	ended := coldWorker(t, nil)
	must(t, ended.Close())
	b := newBed(t, func(cfg *agent.Config) {
		cfg.Jobs = append(cfg.Jobs, agent.Job{Name: "ended", Worker: ended, Dim: dim})
	})
	_, err := agentclient.Dial(within(t), b.socket, agentproto.Hello{Job: "ended"})
	if !errors.Is(err, agentproto.JobEnded) || !strings.Contains(err.Error(), "endpoint is closed") {
		t.Errorf("a client is told %v", err)
	}
	if _, err := b.learn("ended", 10).end(); !errors.Is(err, agentproto.JobEnded) || !strings.Contains(err.Error(), "endpoint is closed") {
		t.Errorf("one that learns is told %v", err)
	}
	if n := b.agent.Stats().Refused[agent.Code(agentproto.JobEnded)]; n != 2 {
		t.Errorf("%d are counted as refused because the job has ended, want 2", n)
	}
	if err := b.dial().Flush(within(t)); err != nil {
		t.Errorf("the client of the other job: %v", err)
	}
}

// An agent whose socket fails ends, with the path and the system's error.
func TestSocketFails(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("refusing system calls needs root")
	}
	socket := filepath.Join(shortDir(t), "sock")
	a, err := agent.Listen(agent.Config{Socket: socket, Log: slog.New(slog.DiscardHandler), Jobs: []agent.Job{{Name: jobName, Worker: coldWorker(t, nil), Dim: dim}}})
	must(t, err)
	err = refuse.Run(func() error { return a.Serve(within(t)) }, refuse.Call{Number: unix.SYS_ACCEPT4, Err: unix.EPERM})
	if !errors.Is(err, unix.EPERM) || !strings.HasPrefix(err.Error(), "agent: socket "+socket+": ") {
		t.Errorf("Serve returns %v", err)
	}
	must(t, a.Close())
}

// stuckHandler accepts a record and does not return. It counts its records.
type stuckHandler struct {
	slog.Handler
	open    chan struct{}
	records *atomic.Int32
}

func (h stuckHandler) Enabled(context.Context, slog.Level) bool { return true }

func (h stuckHandler) Handle(context.Context, slog.Record) error {
	h.records.Add(1)
	<-h.open
	return nil
}

func (h stuckHandler) WithAttrs([]slog.Attr) slog.Handler { return h }

// slowHandler takes a while for its first record.
type slowHandler struct {
	slog.Handler
	records *atomic.Int32
}

func (h slowHandler) Enabled(context.Context, slog.Level) bool { return true }

func (h slowHandler) Handle(context.Context, slog.Record) error {
	if h.records.Load() == 0 {
		time.Sleep(50 * time.Millisecond)
	}
	h.records.Add(1)
	return nil
}

func (h slowHandler) WithAttrs([]slog.Attr) slog.Handler { return h }

// Close returns when all events are in the log.
func TestCloseAwaitsTheLog(t *testing.T) {
	slow := slowHandler{slog.DiscardHandler, new(atomic.Int32)}
	b := newBed(t, func(c *agent.Config) { c.Log = slog.New(slow) })
	if err := errors.Join(b.dial().Flush(within(t)), b.agent.Close()); err != nil {
		t.Fatal(err)
	}
	if n := slow.records.Load(); n != 2 {
		t.Errorf("%d records are there, want that a client came, and that it went", n)
	}
}

// An agent without free descriptors tries again after a while, repeatedly.
func TestPausesWithoutDescriptors(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("refusing system calls needs root")
	}
	const pause = 10 * time.Millisecond
	log := slowHandler{slog.DiscardHandler, new(atomic.Int32)}
	a, err := agent.Listen(agent.Config{
		Socket: filepath.Join(shortDir(t), "sock"), Log: slog.New(log), Jobs: []agent.Job{{Name: "other", Worker: coldWorker(t, nil), Dim: dim}},
	})
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	err = refuse.Run(func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 10*pause)
		defer cancel()
		return a.Serve(ctx)
	}, refuse.Call{Number: unix.SYS_ACCEPT4, Err: unix.EMFILE})
	most := int32(time.Since(begun)/pause) + 2
	if err := errors.Join(err, a.Close()); err != nil {
		t.Fatal(err)
	}
	if n := log.records.Load(); n < 2 || n > most {
		t.Errorf("%d tries, want 2 to %d", n, most)
	}
}

// A host checks the socket that its agent will have before it joins its jobs.
func TestTrySocketHasTheDefault(t *testing.T) {
	if err := agent.TrySocket(""); err != nil && !strings.Contains(err.Error(), "socket /run/libra/agent.sock: ") {
		t.Error(err)
	}
}

// A log handler that never returns delays neither clients that connect, end or are refused, nor
// those that push. It gets only a limited number of the records in the meantime.
func TestLogHandlerIsStuck(t *testing.T) {
	const clients = 300 // more than wait for the handler
	stuck := stuckHandler{slog.DiscardHandler, make(chan struct{}), new(atomic.Int32)}
	b := newBed(t, func(c *agent.Config) { c.Log = slog.New(stuck) })
	open := sync.OnceFunc(func() { close(stuck.open) })
	defer open() // before the agent is closed, which waits for the log
	keys, grads := ownBatch(0)
	for range clients {
		if c, err := agentclient.Dial(within(t), b.socket, agentproto.Hello{Job: "absent"}); !errors.Is(err, agentproto.NoJob) {
			t.Fatalf("client %+v, %v", c, err)
		}
		c := b.dial()
		if _, err := c.Push(within(t), keys, grads); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(c.Flush(within(t)), c.Close()); err != nil {
			t.Fatal(err)
		}
	}
	b.idle(0)
	b.expect(clients, keys, grads)
	b.check()
	open()
	if err := b.agent.Close(); err != nil {
		t.Error(err)
	}
	if n := stuck.records.Load(); n == 0 || n > 2*200 {
		t.Errorf("the handler gets %d records of %d that came while it took the first", n, 3*clients)
	}
}

// A party that waits at a barrier when the job ends never gets the result that it has passed:
// neither as the session's end nor in the completion of its entry, which it may read instead.
func TestJobEndsAtABarrier(t *testing.T) {
	for name, submit := range map[string]agentproto.Op{"barrier": agentproto.Barrier, "reduce": agentproto.Reduce} {
		t.Run(name, func(t *testing.T) {
			ends, err := local.Open(t.Context(), local.Config{Dim: dim, Hot: hotKeys(), Optimizer: sgd})
			if err != nil {
				t.Fatal(err)
			}
			defer ends.Close()
			meeting := make(chan struct{})
			meet := func(ctx context.Context) error {
				close(meeting)
				<-ctx.Done()
				return ctx.Err()
			}
			socket := newBed(t, func(cfg *agent.Config) {
				cfg.Jobs = append(cfg.Jobs, agent.Job{
					Name: "ends", Worker: ends.Worker(0), Dim: dim,
					Barrier: func(ctx context.Context, _ uint64) error { return meet(ctx) },
					Reduce: func(ctx context.Context, _ uint64, _ agent.Arrival) (agent.Sums, error) {
						return agent.Sums{}, meet(ctx)
					},
				})
			}).socket
			c, err := agentclient.Dial(within(t), socket, agentproto.Hello{Job: "ends", Parties: 1})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			ticket, err := c.Submit(within(t), agentproto.Entry{Op: submit})
			if err != nil {
				t.Fatal(err)
			}
			<-meeting
			if err := ends.Worker(0).Close(); err != nil {
				t.Fatal(err)
			}
			for bound := within(t); c.Memory().CQTail.Load() == 0; { // the completion comes after the session's end
				if bound.Err() != nil {
					t.Fatal("the entry has no completion")
				}
				runtime.Gosched()
			}
			if got, err := c.Wait(within(t), ticket); err != nil || got.Status != agentproto.JobEnded {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
}

// flooded is a link that always has a frame without content, so that its worker never sleeps.
type flooded struct {
	link.Link
	turns *atomic.Int64
}

func (l flooded) Receive(packets []link.Packet) (int, error) {
	n, err := l.Link.Receive(packets)
	if n == 0 && err == nil {
		packets[0] = link.Packet{Packet: wire.Packet{Src: l.Local(), Payload: make([]byte, wire.HeaderLen)}}
		n = 1
	}
	l.turns.Add(1)
	return n, err
}

// A worker that never sleeps also notices that a client has ended.
func TestClientGoesFromABusyWorker(t *testing.T) {
	var turns atomic.Int64
	w := onlyWorker(t, nil, transport.WorkerConfig{Link: flooded{openUDP(t), &turns}})
	socket := filepath.Join(shortDir(t), "agent.sock")
	a := serve(t, agent.Config{Socket: socket, Log: slog.New(slog.DiscardHandler), Jobs: []agent.Job{{Name: jobName, Worker: w, Dim: dim}}})
	c, err := agentclient.Dial(within(t), socket, agentproto.Hello{Job: jobName})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(c.Flush(within(t)), c.Conn().Close()); err != nil {
		t.Fatal(err)
	}
	const enough = 10_000 // sockets are checked every few hundred turns
	for gone := turns.Load(); ; {
		now := turns.Load()
		if len(a.Stats().Jobs[0].Clients) == 0 {
			return
		}
		if now > gone+enough {
			t.Fatalf("the client is there still after %d turns", now-gone)
		}
	}
}

// A worker that never sleeps checks the sockets only sometimes: a system call in each turn would
// slow it down. It receives each wake-up of a client.
func TestBusyWorkerLooksNowAndThen(t *testing.T) {
	const wakes, atLeast = 200, 200 // turns between two looks
	var turns atomic.Int64
	w := onlyWorker(t, nil, transport.WorkerConfig{Link: flooded{openUDP(t), &turns}})
	socket := filepath.Join(shortDir(t), "agent.sock")
	serve(t, agent.Config{Socket: socket, Log: slog.New(slog.DiscardHandler), Jobs: []agent.Job{{Name: jobName, Worker: w, Dim: dim}}})
	ctx := within(t)
	c, err := agentclient.Dial(ctx, socket, agentproto.Hello{Job: jobName})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	before := turns.Load()
	for range wakes {
		if _, err := c.Conn().Write([]byte{1}); err != nil {
			t.Fatal(err)
		}
	}
	for {
		page, err := c.Stats(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if page[8] == wakes {
			break
		}
	}
	if n := turns.Load() - before; n < (wakes-1)*atLeast {
		t.Errorf("%d wake-ups are received in %d turns", wakes, n)
	}
}
