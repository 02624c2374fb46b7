// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/libra-ina/libra/agent/agentclient"
	"github.com/libra-ina/libra/agent/agentproto"
)

// Two hosts take part in a job by their agents: their clients push, meet at barriers, and read the
// same weights. Interrupted agents have finished, so that the server ends normally.
func TestAgents(t *testing.T) {
	t.Parallel()
	const steps = 3
	config := handMade(t)
	dir, err := os.MkdirTemp("", "libra-agents-*") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	start := func(stdout *waitBuffer, args ...string) (*exec.Cmd, *bytes.Buffer) {
		t.Helper()
		cmd := libra(t.Context(), args...)
		stderr := new(bytes.Buffer)
		cmd.Stderr = stderr
		if stdout != nil {
			cmd.Stdout = stdout
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd, stderr
	}
	ready := func() *waitBuffer { return &waitBuffer{want: `"ready"`, found: make(chan struct{})} }
	sw, _ := start(nil, "switch", "--config", config)
	ended := &waitBuffer{want: `"result"`, found: make(chan struct{})}
	ps, psLog := start(ended, "ps", "--config", config, "--json")

	var group errgroup.Group
	var agents []*exec.Cmd
	var privileges []string
	rows, sums := make([][]float32, 2), make([][]float32, 2)
	for i, worker := range []int{1, 4} {
		socket := filepath.Join(dir, fmt.Sprint(worker))
		file := writeFile(t, "agent.yaml", fmt.Sprintf("socket: %s\njobs: [{name: rows, cluster: %s, worker: %d, users: [nobody], groups: [12345], clients: 3, memory_mib: 16, finish: true}]\n", socket, config, worker))
		stdout := ready()
		agent, log := start(stdout, "agent", "--config", file, "--json")
		agents = append(agents, agent)
		select {
		case <-stdout.found:
		case <-time.After(2 * time.Minute):
			t.Fatalf("agent %d is not ready\n%s", worker, log)
		}
		conforms(t, "libra agent", stdout.text.String())
		privileges = append(privileges, capabilities(t, agent.Process.Pid))
		group.Go(func() (err error) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			c, err := agentclient.Dial(ctx, socket, agentproto.Hello{Job: "rows", Dim: 4, Parties: 1})
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, c.Close()) }()
			told, stderr, code := inProcess(t, "stats", "--agent", socket, "--json")
			conforms(t, "libra stats", told)
			if code != 0 || !strings.Contains(told, fmt.Sprintf(`"process":%d`, os.Getpid())) {
				t.Errorf("the agent reports its clients as %s\n%s", told, stderr)
			}
			keys := []uint64{0, 1, 2, 10, 11, 10_000 + uint64(worker)}
			rows[i] = make([]float32, 4*len(keys[:5]))
			grads := make([]float32, 4*len(keys))
			for step := range uint64(steps) {
				for j := range grads {
					grads[j] = float32(worker) / float32(j+3)
				}
				if _, err := c.Push(ctx, keys, grads); err != nil {
					return err
				}
				if err := c.Barrier(ctx, step); err != nil {
					return fmt.Errorf("step %d: %w", step, err)
				}
			}
			// And a step whose sums either all get or none.
			if worker == 4 {
				grads[7] = float32(math.Inf(1))
			}
			if _, err := c.Push(ctx, keys, grads); err != nil {
				return err
			}
			var failed *agentclient.Failed
			if _, _, err := c.Reduce(ctx, steps); !errors.As(err, &failed) || failed.Status != agentproto.Dropped || failed.Key != 1 {
				return fmt.Errorf("a step with an infinity: %w", err)
			}
			for j := range grads {
				grads[j] = float32(worker) / float32(j+3)
			}
			if _, err := c.Push(ctx, keys, grads); err != nil {
				return err
			}
			all, of, err := c.Reduce(ctx, steps+1)
			if err != nil || !slices.Equal(all, []uint64{0, 1, 2, 10, 11, 10_001, 10_004}) {
				return fmt.Errorf("reduced keys %v: %w", all, err)
			}
			if want := float32(1)/3 + float32(4)/3; math.Abs(float64(of[0]-want)) > 1e-6 || of[5*4] != float32(1)/23 || of[6*4] != float32(4)/23 {
				return fmt.Errorf("sums %v", of)
			}
			sums[i] = of
			return c.Pull(ctx, keys[:5], rows[i])
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(rows[0], rows[1]) || slices.Max(rows[0]) == slices.Min(rows[0]) {
		t.Errorf("the hosts read %v and %v", rows[0], rows[1])
	}
	if !slices.Equal(sums[0], sums[1]) {
		t.Errorf("the hosts reduce to %v and %v", sums[0], sums[1])
	}
	for i, cmd := range agents {
		if err := cmd.Cancel(); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("an interrupted agent: %v\n%s", err, cmd.Stderr)
		}
		log := fmt.Sprint(cmd.Stderr)
		if kept := strings.Contains(log, "the agent keeps its capabilities"); !kept && privileges[i] != "0000000000000000" {
			t.Errorf("the agent had the capabilities %s without a word\n%s", privileges[i], log)
		}
		if !strings.Contains(log, "socket="+filepath.Join(dir, fmt.Sprint([]int{1, 4}[i]))+" ") {
			t.Errorf("the log does not name the socket\n%s", log)
		}
	}
	if err := ps.Wait(); err != nil {
		t.Errorf("libra ps: %v\n%s", err, psLog)
	}
	var server ServerLine
	if decodeLast(t, ended.text.String(), &server); server.Result == nil || server.Result.Steps != steps+1 || server.Result.HotPairs == 0 {
		t.Errorf("the server ends with %s", ended.text.String())
	}
	if left, err := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("sockets are left: %v, %v", left, err)
	}
	if err := errors.Join(sw.Cancel(), sw.Wait()); err != nil {
		t.Error(err)
	}
}

// capabilities are those that a process can acquire.
func capabilities(t *testing.T, pid int) string {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(status), "\nCapEff:\t")
	set, _, _ := strings.Cut(after, "\n")
	return set
}

// A wrong file is refused with the line and the possible values.
func TestAgentFileIsChecked(t *testing.T) {
	config := handMade(t)
	socket := "socket: " + filepath.Join(t.TempDir(), "sock") + "\n"
	for text, want := range map[string]string{
		"jobs: []":   "line 1: jobs: at least one job is required",
		"sockets: x": "line 1: sockets: no such field: socket, jobs are possible",
		"jobs: [{name: a, cluster: x, worker: many}]":                                "jobs[0].worker: \"many\" is not an integer from 0 to 65535",
		"jobs: [{name: a, cluster: x, worker: 1, users: [no-such-user]}]":            "jobs[0].users: user: unknown user no-such-user",
		"jobs: [{name: a, cluster: x, worker: 1, groups: [no-such-group]}]":          "jobs[0].groups: group: unknown group no-such-group",
		"jobs: [{cluster: x, worker: 1, memory_mib: -1}]":                            "jobs[0].memory_mib: -1 is not from 1 to 1048576: leave the field out for the default, or give another",
		"jobs: [{name: a, cluster: x, worker: 1, clients: 0}]":                       "jobs[0].clients: 0 is not from 1 to",
		"jobs: [{name: \"a\\nb\", cluster: x, worker: 1}]":                           `jobs[0].name: "a\nb" has characters that cannot be shown`,
		"jobs: [{name: a, worker: 1}]":                                               "jobs[0].cluster: the path of the job's cluster file is required",
		"jobs: [{name: a, cluster: x}]":                                              "jobs[0].worker: the number of the host's worker in the cluster file is required",
		"jobs: [{name: a, cluster: x, worker: 1}, {name: a, cluster: x, worker: 2}]": "jobs[1].cluster: x is used twice",
		socket + "jobs: [{name: a, cluster: /nowhere, worker: 1}]":                   "job a: cluster configuration: open /nowhere",
		// Before it joins a job: this job's services do not run.
		"socket: /nowhere/sock\njobs: [{name: a, cluster: " + config + ", worker: 1}]":            "socket /nowhere/sock: its directory does not exist: make it",
		socket + "jobs: [{name: a, cluster: " + config + ", worker: 3}]":                          "job a: no worker 3 in the cluster configuration",
		"jobs: [{name: a, cluster: x, worker: 1}]\n---\njobs: [{name: a, cluster: x, worker: 1}]": "an agent is described by one",
		"": "it is empty",
	} {
		_, stderr, code := inProcess(t, "agent", "--config", writeFile(t, "agent.yaml", text))
		if code != exitFailure || !strings.Contains(stderr, want) {
			t.Errorf("%s: code %d: %s, want %q", text, code, stderr, want)
		}
	}
	if _, stderr, code := inProcess(t, "agent"); code != exitUsage || !strings.Contains(stderr, "--config is required") {
		t.Errorf("code %d: %s", code, stderr)
	}
}
