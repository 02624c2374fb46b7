// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/libra-ina/libra/agent/agentclient"
	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/telemetry/verdict"
)

// TestTopNamesAStoppedAgent stops what TestTopNamesAStoppedProcess has none of, one after the
// other: a host agent, the program that is its client, and a standby, for which no process waits.
func TestTopNamesAStoppedAgent(t *testing.T) {
	t.Parallel()
	b := newTopBed(t, 1)
	dir, err := os.MkdirTemp("", "libra-top-*") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	file := writeFile(t, "agent.yaml", fmt.Sprintf("socket: %s\njobs: [{name: rows, cluster: %s, worker: 2}]\n", socket, b.path))
	processes := map[string]*child{
		"switch": b.run(t, theSwitch, "switch"), "standby 0": b.run(t, firstWorker+2, "switch", "--standby", "0"),
		"server 0": b.run(t, theServer, "ps"), "worker 1": b.run(t, firstWorker, "worker", "--id", "1"),
		"worker 2": b.runWith(t, firstWorker+1, file, "agent"),
	}
	defer func() {
		for _, p := range processes {
			_ = p.Process.Kill()
			_ = p.Wait()
		}
	}()
	waitTraining(t, processes["worker 2"])
	c, err := agentclient.Dial(t.Context(), socket, agentproto.Hello{Job: "rows", Dim: 4, Parties: 1})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var program sync.WaitGroup
	defer program.Wait()
	defer cancel()
	stop := make(chan chan struct{}) // the client stops until the channel that it gets is closed
	program.Go(func() {
		defer c.Close()
		keys := []uint64{1, 2, 1 << 40}
		for step := c.Welcome().NextStep; err == nil; step++ {
			select {
			case until := <-stop:
				select {
				case <-until:
				case <-ctx.Done():
				}
			case <-time.After(time.Millisecond): // it computes
			}
			if _, err = c.Push(ctx, keys, make([]float32, 4*len(keys))); err == nil {
				err = c.Barrier(ctx, step)
			}
		}
		if ctx.Err() == nil {
			t.Error(err)
		}
	})
	steps := func(r TopLine) bool {
		return r.Verdict[0].Kind != "silent" && r.Processes[3].Rate > 0 && r.Processes[4].Rate > 0
	}
	holds := func(name, text string) func(TopLine) bool {
		return func(r TopLine) bool {
			for _, f := range r.Verdict {
				if f.Name == name && strings.Contains(f.Text, text) {
					return true
				}
			}
			return false
		}
	}
	b.await(t, "it does not see the steps", steps)

	goOn := make(chan struct{})
	stop <- goOn
	b.await(t, "the agent's client has stopped, and is not named", holds("worker 2", " slow: others have waited for it at the end of a step for "))
	close(goOn)
	b.await(t, "the client goes on, and the steps do not", steps)

	for name, text := range map[string]string{
		"worker 2":  " silent for ",
		"standby 0": "its telemetry does not answer",
	} {
		if err := processes[name].Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		r := b.await(t, name+" is stopped and not named", holds(name, text))
		if i := slices.IndexFunc(r.Verdict, func(f verdict.Finding) bool { return f.Kind == "silent" }); name == "worker 2" && i != 0 {
			t.Errorf("%s is named late: %+v", name, r.Verdict)
		}
		if err := processes[name].Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		b.await(t, name+" goes on and is still named", func(r TopLine) bool { return steps(r) && !holds(name, " silent for ")(r) })
	}
	if err := b.end(); err != nil {
		t.Errorf("after Ctrl-C: %v", err)
	}
}
