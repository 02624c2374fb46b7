// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/libra-ina/libra/agent/agentclient"
	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/local"
)

// A client whose HELLO the agent has read when it is closed gets an answer.
func TestCloseAnswersWhomItHasHeard(t *testing.T) {
	dir, err := os.MkdirTemp("", "libra-agent-*") // a short path
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	cluster, err := local.Open(t.Context(), local.Config{Dim: 2, Hot: []uint64{1}})
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	path := filepath.Join(dir, "sock")
	a, err := Listen(Config{Socket: path, Log: slog.New(slog.DiscardHandler), Jobs: []Job{{Name: "clicks", Worker: cluster.Worker(0), Dim: 2}}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	served := make(chan error, 1)
	go func() { served <- a.Serve(ctx) }()
	held, release := make(chan struct{}), make(chan struct{})
	go func() { // what welcomes clients is busy
		_ = cluster.Worker(0).Do(ctx, func() { close(held); <-release })
	}()
	<-held
	answered := make(chan error, 1)
	go func() {
		c, err := agentclient.Dial(ctx, path, agentproto.Hello{Job: "clicks"})
		if err == nil {
			err = c.Conn().Close()
		}
		answered <- err
	}()
	until := func(what string, seen func() bool) {
		for !seen() {
			if ctx.Err() != nil {
				close(release)
				t.Fatal(what)
			}
			time.Sleep(time.Millisecond)
		}
	}
	until("the client is not seen", func() bool { return a.clients.Load() == 1 })
	closed := make(chan error, 1)
	go func() { closed <- a.Close() }()
	until("the agent is not closed", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.closed
	})
	close(release)
	if err := <-answered; err != nil && !errors.Is(err, agentproto.AgentClosed) {
		t.Errorf("the client is told %v", err)
	}
	if err := errors.Join(<-closed, <-served); err != nil {
		t.Error(err)
	}
}
