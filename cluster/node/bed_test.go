// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/train"
	"github.com/libra-ina/libra/train/data"
)

func TestMain(m *testing.M) {
	// What runs in parallel waits, for timers and for others: more at once than there are processors.
	// The flag of go test, which is parsed later, comes first.
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// newCluster returns the configuration of a small synchronous cluster over UDP
// sockets, whose hosts are addresses of the loopback interface, with its hot set
// in a file. Change what the test is about and call start.
func newCluster(t *testing.T, workers int) *cluster.Config {
	t.Helper()
	dir := t.TempDir()
	net16 := rand.Uint32N(1<<15) + 1<<8 // 127.0.x.x is others'
	address := func(host int) netip.Addr {
		return netip.AddrFrom4([4]byte{127, byte(net16 >> 8), byte(net16), byte(host)})
	}
	c := &cluster.Config{
		Backend: cluster.BackendUDP,
		Job:     cluster.Job{ID: 5, HotSet: filepath.Join(dir, "hot.libra"), Sync: true},
		Switch:  cluster.Switch{Address: address(1), Control: netip.AddrPortFrom(address(1), freePort(t, address(1)))},
		Server: cluster.Server{
			Host:       cluster.Host{Address: address(2)},
			Control:    netip.AddrPortFrom(address(2), freePort(t, address(2))),
			Checkpoint: filepath.Join(dir, "weights.libra"),
		},
		Model: cluster.Model{Kind: "fm", Factors: 3, Batch: 20, Epochs: 1, Seed: 4, LearningRate: 0.05, InitialAccumulator: 1e-4, InitScale: 0.1},
		Data:  cluster.Data{Synthetic: &cluster.Synthetic{Rows: 403, Seed: 9, HotShare: 0.6, Hot: 1000}},
	}
	for i := 1; i <= workers; i++ {
		c.Workers = append(c.Workers, cluster.Worker{ID: uint16(i), Host: cluster.Host{Address: address(2 + i)}})
	}
	c.Port = freePort(t, address(1))
	c.SetDefaults()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	buildHotSet(t, c)
	return c
}

// buildHotSet writes a hot set that fits the configuration's model.
func buildHotSet(t *testing.T, c *cluster.Config) {
	t.Helper()
	buildHotSetOf(t, c, 500)
}

func buildHotSetOf(t *testing.T, c *cluster.Config, rows int) {
	t.Helper()
	model, err := Model(c.Model)
	if err != nil {
		t.Fatal(err)
	}
	src, err := OpenSource(c, data.Shard{})
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	hot, err := BuildHotSet(src, HotSetOptions{Rate: 0.5, Dim: model.Dim(), Rows: rows})
	if err != nil {
		t.Fatal(err)
	}
	if err := packer.SaveHotSet(c.Job.HotSet, hot); err != nil {
		t.Fatal(err)
	}
}

// freePort returns a TCP port that is free on an address, and is free for UDP as
// well, because nothing else uses the address.
func freePort(t *testing.T, addr netip.Addr) uint16 {
	t.Helper()
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).AddrPort().Port()
}

// testLog is a logger into the test's output, until the test ends.
func testLog(t *testing.T) *slog.Logger {
	w := &testWriter{t: t}
	t.Cleanup(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.t = nil
	})
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

type testWriter struct {
	mu sync.Mutex
	t  *testing.T
}

func (w *testWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.t != nil {
		w.t.Logf("%s", b)
	}
	return len(b), nil
}

// startSwitch runs a switch until the test ends.
func startSwitch(t *testing.T, c *cluster.Config) {
	t.Helper()
	startSwitchWith(t, c, testLog(t))
}

func startSwitchWith(t *testing.T, c *cluster.Config, log *slog.Logger) {
	t.Helper()
	t.Cleanup(runSwitch(t, c, log))
}

// runSwitch runs a switch until stop is called.
func runSwitch(t *testing.T, c *cluster.Config, log *slog.Logger) (stop func()) {
	t.Helper()
	return runSwitchOn(t, c, log, Machine{})
}

func runSwitchOn(t *testing.T, c *cluster.Config, log *slog.Logger, on Machine) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	env := Env{Config: c, Log: log.With("process", "switch"), Ready: func() { close(ready) }, Machine: on}
	go func() { ended <- RunSwitch(ctx, env) }()
	select {
	case <-ready:
	case err := <-ended:
		cancel()
		t.Fatal(err)
	}
	return sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("switch: %v", err)
		}
	})
}

// outcome is what the processes of one run returned.
type outcome struct {
	server    *ServerResult
	workers   []*WorkerResult
	serverErr error
	errs      []error // of the workers
}

// err joins the errors of all processes.
func (o outcome) err() error { return errors.Join(append(o.errs, o.serverErr)...) }

// hooks let a test take part in a run.
type hooks struct {
	// change, if set, changes the copy of the configuration that a worker reads.
	change func(id uint16, c *cluster.Config)
	// step, if set, is called after each mini-batch of a worker with functions
	// that end that worker and the server.
	step func(id uint16, p train.Progress, endWorker, endServer func())
}

// trainCluster runs a server and all workers of a cluster whose switch runs.
func trainCluster(ctx context.Context, t *testing.T, c *cluster.Config, h hooks) outcome {
	t.Helper()
	return trainWith(ctx, c, h, testLog(t))
}

func trainWith(ctx context.Context, c *cluster.Config, h hooks, log *slog.Logger) outcome {
	var group sync.WaitGroup
	out := outcome{workers: make([]*WorkerResult, len(c.Workers)), errs: make([]error, len(c.Workers))}
	serverCtx, endServer := context.WithCancel(ctx)
	defer endServer()
	group.Go(func() {
		out.server, out.serverErr = RunServer(serverCtx, Env{Config: c, Log: log.With("process", "ps")})
	})
	var workers sync.WaitGroup
	for i, w := range c.Workers {
		theirs := *c
		if h.change != nil {
			h.change(w.ID, &theirs)
		}
		ctx, end := context.WithCancel(ctx)
		defer end()
		options := WorkerOptions{ID: w.ID}
		if h.step != nil {
			options.Progress = func(p train.Progress) { h.step(w.ID, p, end, endServer) }
		}
		workers.Go(func() {
			env := Env{Config: &theirs, Log: log.With("process", fmt.Sprint("worker ", w.ID))}
			out.workers[i], out.errs[i] = RunWorker(ctx, env, options)
		})
	}
	workers.Wait()
	if h.change != nil && errors.Join(out.errs...) != nil {
		endServer() // which waits for workers that agree with it
	}
	group.Wait()
	return out
}

// mustTrain is train without errors.
func mustTrain(t *testing.T, c *cluster.Config) outcome {
	t.Helper()
	out := trainCluster(t.Context(), t, c, hooks{})
	if err := out.err(); err != nil {
		t.Fatal(err)
	}
	return out
}

// reference trains a configuration in this process.
func reference(t *testing.T, c *cluster.Config) *ps.Store {
	t.Helper()
	cfg, err := StoreConfig(c)
	if err != nil {
		t.Fatal(err)
	}
	store, err := ps.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	training, err := TrainConfig(c)
	if err != nil {
		t.Fatal(err)
	}
	hot, err := packer.LoadHotSet(c.Job.HotSet)
	if err != nil {
		t.Fatal(err)
	}
	if training.Code, err = Coding(c, hot); err != nil {
		t.Fatal(err)
	}
	var sources []data.Source
	for _, w := range c.Workers {
		src, err := OpenSource(c, c.Shard(w.ID))
		if err != nil {
			t.Fatal(err)
		}
		defer src.Close()
		sources = append(sources, src)
	}
	if _, err := train.Reference(t.Context(), store, sources, training); err != nil {
		t.Fatal(err)
	}
	return store
}

func hash(store *ps.Store) string {
	sum := store.Hash()
	return hex.EncodeToString(sum[:])
}

// eventLimit bounds the wait for an event that a test expects, on a machine that is busy with
// other programs, too.
const eventLimit = 2 * time.Minute

// soon is the context of what is to be refused: a server or a switch that is not serves, and waits
// for others.
func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), eventLimit)
	t.Cleanup(cancel)
	return ctx
}
