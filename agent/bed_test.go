// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent_test

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/libra-ina/libra/agent"
	"github.com/libra-ina/libra/agent/agentclient"
	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/local"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/transport"
	"github.com/libra-ina/libra/wire"
)

const (
	dim     = 2
	hotRows = 50
	jobName = "clicks"
)

func TestMain(m *testing.M) {
	if run := children[os.Getenv("LIBRA_AGENT_CHILD")]; run != nil {
		os.Exit(run())
	}
	goleak.VerifyTestMain(m)
}

var sgd = ps.Optimizer{Method: ps.SGD, LearningRate: 1}

// bed is an agent with a complete job, over UDP sockets.
type bed struct {
	t       testing.TB
	cluster *local.Cluster
	agent   *agent.Agent
	socket  string
	hot     *packer.HotSet
	want    *ps.Store // the server's required state
}

// hotKeys are the keys of the hot rows, 0 to hotRows-1.
func hotKeys() (keys []uint64) {
	for key := range uint64(hotRows) {
		keys = append(keys, key)
	}
	return keys
}

// newBed opens a bed after changes to the agent's configuration.
func newBed(t testing.TB, changes ...func(*agent.Config)) *bed {
	t.Helper()
	b := &bed{t: t}
	var err error
	if b.cluster, err = local.Open(t.Context(), local.Config{Dim: dim, Hot: hotKeys(), Optimizer: sgd}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.cluster.Close() })
	if b.hot, err = packer.NewHotSet(dim, hotKeys(), nil, packer.Meta{}); err != nil {
		t.Fatal(err)
	}
	if b.want, err = ps.New(ps.Config{Dim: dim, Exp: ps.DefaultExp, Optimizer: sgd}); err != nil {
		t.Fatal(err)
	}
	cfg := agent.Config{
		Socket: filepath.Join(shortDir(t), "agent.sock"),
		Jobs:   []agent.Job{{Name: jobName, Worker: b.cluster.Worker(0), Number: 1, HotSet: b.hot, Exp: ps.DefaultExp}},
		Log:    slog.New(slog.DiscardHandler),
	}
	for _, change := range changes {
		change(&cfg)
	}
	b.socket = cfg.Socket
	b.agent = serve(t, cfg)
	return b
}

// shortDir is a directory that all users can reach, with a path short enough for a socket in it.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "libra-agent-*")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// serve runs an agent until the test ends.
func serve(t testing.TB, cfg agent.Config) *agent.Agent {
	t.Helper()
	a, err := agent.Listen(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- a.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-served, a.Close()); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(cfg.Socket); err == nil {
			t.Error("the socket is still there")
		}
	})
	return a
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func openUDP(t testing.TB) link.Link {
	t.Helper()
	l, err := link.OpenUDP(netip.MustParseAddrPort("127.0.0.1:0"))
	must(t, err)
	return l
}

// An arriveFunc answers the end of a worker's step, on the server that got it.
type arriveFunc func(s *transport.Server, end wire.StepEnd) bool

// onlyWorker is the only worker of a server that it opens. It needs a link, and its configuration
// except the server.
func onlyWorker(t testing.TB, arrive arriveFunc, cfg transport.WorkerConfig) *transport.Worker {
	t.Helper()
	toServer := openUDP(t)
	store, err := ps.New(ps.Config{Dim: dim, Exp: ps.DefaultExp, Optimizer: sgd})
	must(t, err)
	var s *transport.Server
	s, err = transport.NewServer(transport.ServerConfig{
		Link: toServer, Job: 1, Dim: dim, Handler: store,
		Arrive: func(_, _ uint16, end wire.StepEnd) bool { return arrive(s, end) },
	})
	must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	at := cfg.Link.Local()
	must(t, s.Admit(t.Context(), 1, netip.AddrPortFrom(at.IP, at.Port), 1))
	cfg.Job, cfg.Sender, cfg.Dim, cfg.Server, cfg.ServerEpoch = 1, 1, dim, toServer.Local(), 1
	w, err := transport.NewWorker(t.Context(), cfg)
	must(t, err)
	t.Cleanup(func() { _ = w.Close() })
	return w
}

// coldWorker is the only worker of a server, without a hot set.
func coldWorker(t testing.TB, arrive arriveFunc) *transport.Worker {
	t.Helper()
	return onlyWorker(t, arrive, transport.WorkerConfig{Link: openUDP(t)})
}

// within bounds calls that would otherwise hang in a test that fails.
func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// dial opens a session. The test may close it itself.
func (b *bed) dial(change ...func(*agentproto.Hello)) *agentclient.Client {
	b.t.Helper()
	hello := agentproto.Hello{Job: jobName, Entries: 16, BufferBytes: 64 << 10}
	for _, c := range change {
		c(&hello)
	}
	c, err := agentclient.Dial(within(b.t), b.socket, hello)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = c.Conn().Close() })
	return c
}

// stopServer stops the server's answers until the returned function is called.
func (b *bed) stopServer() (goOn func()) {
	b.t.Helper()
	return b.stop(func(ctx context.Context, wait func()) error { return b.cluster.Do(ctx, func(*ps.Store) { wait() }) })
}

// stopWorker does the same to the worker, whose goroutine the agent shares.
func (b *bed) stopWorker() (goOn func()) {
	b.t.Helper()
	return b.stop(b.cluster.Worker(0).Do)
}

func (b *bed) stop(do func(context.Context, func()) error) (goOn func()) {
	b.t.Helper()
	stopped, on, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		done <- do(within(b.t), func() {
			close(stopped)
			<-on
		})
	}()
	<-stopped
	return func() {
		b.t.Helper()
		close(on)
		must(b.t, <-done)
	}
}

// expect adds a push, n times, to the server's required state.
func (b *bed) expect(n int, keys []uint64, grads []float32) {
	b.t.Helper()
	for range n {
		if err := b.want.Push(keys, grads); err != nil {
			b.t.Fatal(err)
		}
	}
}

// check ends a step and compares the server's weights with the required ones, bit for bit.
func (b *bed) check() {
	b.t.Helper()
	if err := b.cluster.Commit(within(b.t)); err != nil {
		b.t.Fatal(err)
	}
	b.want.Commit()
	if err := b.cluster.Do(b.t.Context(), func(s *ps.Store) {
		if s.Len() != b.want.Len() || s.Hash() != b.want.Hash() {
			b.t.Errorf("the weights of %d rows differ from those of the same gradients in one store, which has %d", s.Len(), b.want.Len())
		}
	}); err != nil {
		b.t.Fatal(err)
	}
}

// idle waits until the agent holds no memory and has n sessions less than in total.
func (b *bed) idle(wantMemory int64) {
	b.t.Helper()
	ctx := within(b.t)
	for b.agent.Stats().Jobs[0].Memory != wantMemory {
		if ctx.Err() != nil {
			b.t.Fatalf("%d bytes of memory are held, want %d", b.agent.Stats().Jobs[0].Memory, wantMemory)
		}
		time.Sleep(time.Millisecond)
	}
}
