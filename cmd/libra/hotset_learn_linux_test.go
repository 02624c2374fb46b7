// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/libra-ina/libra/agent"
	"github.com/libra-ina/libra/agent/agentclient"
	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/local"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/ps"
)

// agentAndClient returns the socket of an agent with a job of two scalars per row, and a client of
// it.
func agentAndClient(t *testing.T) (socket string, c *agentclient.Client) {
	t.Helper()
	cluster, err := local.Open(t.Context(), local.Config{Dim: 2, Hot: []uint64{1}, Optimizer: ps.Optimizer{Method: ps.SGD, LearningRate: 1}})
	if err != nil {
		t.Fatal(err)
	}
	socket = filepath.Join(t.TempDir(), "sock")
	a, err := agent.Listen(agent.Config{Socket: socket, Log: slog.New(slog.DiscardHandler), Jobs: []agent.Job{
		{Name: "clicks", Worker: cluster.Worker(0), Dim: 2, Exp: ps.DefaultExp},
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- a.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-served, a.Close(), cluster.Close()); err != nil {
			t.Error(err)
		}
	})
	if c, err = agentclient.Dial(t.Context(), socket, agentproto.Hello{Job: "clicks"}); err != nil {
		t.Fatal(err)
	}
	return socket, c
}

// TestHotsetLearn learns the hot rows of a client that pushes, a given number, or by Principle 1,
// and 'hotset show' reads them.
func TestHotsetLearn(t *testing.T) {
	t.Parallel()
	socket, c := agentAndClient(t)
	pushing, stop := context.WithCancel(t.Context())
	pushed := make(chan error, 1)
	go func() {
		for n := uint64(0); pushing.Err() == nil; n++ { // 7 and 8 in each push, others sometimes
			if _, err := c.Push(t.Context(), []uint64{7, 8, 100 + n%50}, make([]float32, 6)); err != nil {
				pushed <- err
				return
			}
			if err := c.Flush(t.Context()); err != nil {
				pushed <- err
				return
			}
		}
		pushed <- nil
	}()
	out := filepath.Join(t.TempDir(), "hot.libra")
	stdout, stderr, code := inProcess(t, "hotset", "learn", "--agent", socket, "--for", "1s", "--hot-rows", "2", "--out", out, "--json")
	var told LearnedHotSet
	if err := json.Unmarshal([]byte(stdout), &told); err != nil || code != 0 {
		t.Fatalf("code %d, %v: %s%s", code, err, stdout, stderr)
	}
	if told.Rows != 2 || told.Dimension != 2 || told.Share < 0.6 || told.Share > 0.7 || told.Job != "clicks" || told.Sampled == 0 || told.Updates != 3*told.Sampled || told.Interrupted || told.Seconds != 1 {
		t.Errorf("%+v", told)
	}
	hot, err := packer.LoadHotSet(out)
	if err != nil {
		t.Fatal(err)
	}
	if hot.Key(0) != 7 || hot.Key(1) != 8 || hot.Fingerprint().String() != told.Fingerprint {
		t.Errorf("keys %d and %d, fingerprint %v", hot.Key(0), hot.Key(1), hot.Fingerprint())
	}
	file := writeFile(t, "agent.yaml", "socket: "+socket+"\njobs: [{name: clicks, cluster: cluster.yaml, worker: 1}]\n")
	if stdout, stderr, code = inProcess(t, "hotset", "learn", "--config", file, "--job", "clicks", "--for", "1s", "--out", out); code != 0 ||
		!strings.Contains(stdout, " take 100.0 % of the updates that were counted") { // all rows: there is room
		t.Errorf("by Principle 1: code %d: %s%s", code, stdout, stderr)
	}
	// Ctrl-C keeps the learnt rows.
	ctx, interrupt := context.WithTimeout(t.Context(), time.Second)
	defer interrupt()
	var texts [2]bytes.Buffer
	root := newRoot()
	root.SetArgs([]string{"hotset", "learn", "--agent", socket, "--for", "1h", "--hot-rows", "53", "--out", out})
	root.SetOut(&texts[0])
	root.SetErr(&texts[1])
	if err := root.ExecuteContext(ctx); err != nil || !strings.HasPrefix(texts[1].String(), "interrupted after") {
		t.Errorf("interrupted: %v: %s%s", err, &texts[0], &texts[1])
	}
	learnt, err := packer.LoadHotSet(out)
	if err != nil {
		t.Fatal(err)
	}
	n := learnt.Len() // of the 52 keys
	if n < 3 || n > 52 || !strings.HasPrefix(texts[0].String(), fmt.Sprintf("%d hot rows", n)) ||
		!strings.Contains(texts[1].String(), fmt.Sprintf("only %d rows are hot, and not the 53 of --hot-rows: clients pushed no more keys: give more time by --for\n", n)) {
		t.Errorf("%d rows: %s%s", n, &texts[0], &texts[1])
	}
	stop()
	if err := <-pushed; err != nil {
		t.Fatal(err)
	}
}

// TestHotsetLearnFails checks the errors when nothing can be learnt, and that no file is left then.
func TestHotsetLearnFails(t *testing.T) {
	t.Parallel()
	socket, _ := agentAndClient(t)
	out := filepath.Join(t.TempDir(), "hot.libra")
	file := writeFile(t, "agent.yaml", "socket: "+socket+"\njobs: [{name: clicks, cluster: cluster.yaml, worker: 1}]\n")
	for _, c := range []struct {
		code int
		want string
		args []string
	}{
		{exitFailure, "no client of job clicks pushed within 10ms", []string{"--agent", socket, "--for", "10ms", "--out", out}},
		{exitFailure, "no client of job clicks pushed within 10ms", []string{"--agent", socket, "--for", "10ms", "--hot-rows", "70000", "--out", out}},
		{exitFailure, `no job of this name: see its configuration: "views"; it serves clicks`, []string{"--agent", socket, "--job", "views", "--for", "10ms", "--out", out}},
		{exitFailure, "is 'libra agent' running", []string{"--agent", socket + "x", "--out", out}},
		{exitFailure, "no client of job clicks pushed within 10ms", []string{"--config", file, "--for", "10ms", "--out", out}},
		{exitUsage, "--job views: " + file + " has no such job", []string{"--config", file, "--job", "views", "--out", out}},
		{exitUsage, "leave one of them out", []string{"--config", file, "--agent", socket, "--out", out}},
		{exitFailure, "agent configuration: open /no/such", []string{"--config", "/no/such", "--out", out}},
		{exitFailure, "jobs: at least one job is required", []string{"--config", writeFile(t, "none.yaml", "jobs: []"), "--out", out}},
		{exitUsage, "--out is required", []string{"--agent", socket}},
		{exitUsage, "--hot-rows 524289: at most 524288 rows can be learnt: ask for fewer, or find them in the training data (libra hotset build)", []string{"--hot-rows", "524289", "--out", out}},
		{exitUsage, "--for 0s", []string{"--for", "0s", "--out", out}},
		{exitFailure, "/no/such", []string{"--agent", socket, "--out", "/no/such/hot.libra"}},
	} {
		_, stderr, code := inProcess(t, append([]string{"hotset", "learn"}, c.args...)...)
		if code != c.code || !strings.Contains(stderr, c.want) {
			t.Errorf("%q: code %d: %s, want %q", c.args, code, stderr, c.want)
		}
	}
	if _, err := os.Stat(out); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file is left: %v", err)
	}
}
