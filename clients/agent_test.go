// SPDX-License-Identifier: Apache-2.0

//go:build linux

package clients_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/libra-ina/libra/agent"
	"github.com/libra-ina/libra/local"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/ps"
)

const (
	dim     = 2
	hotRows = 50
	jobName = "clicks"
)

// bed is an agent with a complete job, over UDP sockets of this process. A barrier ends a step.
type bed struct {
	cluster *local.Cluster
	agent   *agent.Agent
	socket  string
	served  chan error
	cancel  context.CancelFunc
}

// config returns the configuration of a bed's job: its first hotRows rows are hot. Initial weights
// are negligible compared with a gradient of 1.
func config(dim int, rate float32) local.Config {
	cfg := local.Config{Dim: dim, Optimizer: ps.Optimizer{Method: ps.SGD, LearningRate: rate}, Init: ps.Init{Scale: 1e-30}}
	for key := range uint64(hotRows) {
		cfg.Hot = append(cfg.Hot, key)
	}
	return cfg
}

// start runs an agent for a job. All users may use it.
func start(socket, name string, cfg local.Config) (b *bed, err error) {
	b = &bed{socket: socket, served: make(chan error, 1)}
	if b.cluster, err = local.Open(context.Background(), cfg); err != nil {
		return nil, err
	}
	hot, err := packer.NewHotSet(cfg.Dim, cfg.Hot, nil, packer.Meta{})
	if err == nil {
		b.agent, err = agent.Listen(agent.Config{Socket: socket, Log: slog.New(slog.DiscardHandler), Jobs: []agent.Job{{
			Name: name, Worker: b.cluster.Worker(0), Number: 1, HotSet: hot, Exp: ps.DefaultExp, Users: []uint32{nobody},
			Barrier: func(ctx context.Context, _ uint64) error { return b.cluster.Commit(ctx) },
			Reduce: func(ctx context.Context, _ uint64, a agent.Arrival) (sums agent.Sums, err error) {
				if a.Refused != nil {
					return sums, errors.Join(b.cluster.Drop(ctx), a.Refused)
				}
				sums.Keys, sums.Rows, err = b.cluster.Reduce(ctx)
				return sums, err
			},
		}}})
	}
	if err != nil {
		return nil, errors.Join(err, b.cluster.Close())
	}
	ctx, cancel := context.WithCancel(context.Background())
	b.cancel = cancel
	go func() { b.served <- b.agent.Serve(ctx) }()
	return b, nil
}

func (b *bed) stop() error {
	b.cancel()
	return errors.Join(<-b.served, b.agent.Close(), b.cluster.Close())
}

// newBed starts a bed that ends with the test.
func newBed(t testing.TB, name string, cfg local.Config) *bed {
	t.Helper()
	b, err := start(filepath.Join(openDir(t), "agent.sock"), name, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.stop(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// idle waits until the agent has no more memory of clients.
func (b *bed) idle(t testing.TB) {
	t.Helper()
	for end := time.Now().Add(limit); b.agent.Stats().Jobs[0].Memory != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the agent still has %d bytes of clients that have ended", b.agent.Stats().Jobs[0].Memory)
		}
	}
}

// openDir returns a folder that all users can read, with a path short enough for sockets.
func openDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "libra-clients-*")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// agentSocket makes this executable run an agent at that socket, until its standard input ends.
const agentSocket = "LIBRA_CLIENTS_AGENT"

func agentMain(path string) {
	b, err := start(path, jobName, config(dim, 1))
	if err == nil {
		fmt.Println("ready")
		_, _ = io.Copy(io.Discard, os.Stdin)
		err = b.stop()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}
