// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/libra-ina/libra/cluster"
)

// freePort returns an unused port of a loopback address.
func freePort(t *testing.T, addr string) int {
	t.Helper()
	l, err := net.Listen("tcp", addr+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// networks counts the calls of loopback.
var networks atomic.Uint32

// loopback returns a network of the loopback interface, without its last byte, that no other test
// of this program and hardly another program uses: tests that run in parallel find no port of
// another's free, or in use.
func loopback() string {
	return fmt.Sprintf("127.%d.%d.", 80+networks.Add(1)%100, os.Getpid()%250+1)
}

// handMade writes a configuration like a user's, for two workers over UDP, with a hot set that the
// command line built.
func handMade(t *testing.T) (config string) {
	t.Helper()
	dir := t.TempDir()
	var rows strings.Builder
	for i := range 400 {
		fmt.Fprintf(&rows, "%d %d:1 %d:0.5\n", i%2, i%7, 10+i%50)
	}
	data := writeFile(t, "rows.libfm", rows.String())
	hot := filepath.Join(dir, "hot.libra")
	if _, stderr, code := output(t, "hotset", "build", "--data", data, "--out", hot, "--hot-rows", "20", "--factors", "3", "--rate", "0.5"); code != 0 {
		t.Fatal(stderr)
	}
	network := loopback()
	return writeFile(t, "cluster.yaml", fmt.Sprintf(`
backend: udp
port: %d
silence: 5s
job: {id: 9, hot_set: %s, sync: true}
switch: {address: %s1, control: %[3]s1:%[4]d}
server: {address: %[3]s2, control: %[3]s2:%[5]d, checkpoint: %[6]s}
workers:
  - {id: 1, address: %[3]s3}
  - {id: 4, address: %[3]s4}
model: {kind: fm, factors: 3, batch: 16, epochs: 2}
data: {train: %[7]s}
`, freePort(t, network+"1"), hot, network, freePort(t, network+"1"), freePort(t, network+"2"), filepath.Join(dir, "weights.libra"), data))
}

// The processes of a cluster can be started by hand, in any order; each prints what it waits for.
func TestClusterByHand(t *testing.T) {
	t.Parallel()
	config := handMade(t)
	sw := libra(t.Context(), "switch", "--config", config)
	var swLog bytes.Buffer
	sw.Stderr = &swLog
	var group errgroup.Group
	printed := make([]bytes.Buffer, 3)
	for i, args := range [][]string{
		{"worker", "--config", config, "--id", "4", "--json"}, // no service answers yet
		{"worker", "--config", config, "--id", "1", "--json"},
		{"ps", "--config", config, "--json"},
	} {
		cmd := libra(t.Context(), args...)
		stderr := &waitBuffer{want: "waiting for the ", found: make(chan struct{})}
		cmd.Stdout, cmd.Stderr = &printed[i], stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		group.Go(func() error {
			if err := cmd.Wait(); err != nil {
				return fmt.Errorf("libra %v: %w\n%s", args, err, stderr.text.String())
			}
			return nil
		})
		select {
		case <-stderr.found: // the switch is missing in both cases
		case <-time.After(20 * time.Second):
			t.Errorf("libra %v does not say that it waits", args)
		}
	}
	if err := sw.Start(); err != nil {
		t.Fatal(err)
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	if err := sw.Cancel(); err != nil {
		t.Error(err)
	}
	if err := sw.Wait(); err != nil {
		t.Errorf("an interrupted switch: %v\n%s", err, swLog.String())
	}
	if t.Failed() {
		return
	}
	conforms(t, "libra worker", printed[0].String()+printed[1].String())
	conforms(t, "libra ps", printed[2].String())
	var worker struct {
		Result struct {
			Samples  int
			HotPairs int `json:"hot_pairs"`
		}
	}
	decodeLast(t, printed[0].String(), &worker)
	if worker.Result.Samples != 400 || worker.Result.HotPairs == 0 {
		t.Errorf("worker: %+v", worker)
	}
	var server struct {
		Result struct {
			Weights string `json:"weights_sha256"`
			Rows    int
		}
	}
	decodeLast(t, printed[2].String(), &server)
	if len(server.Result.Weights) != 64 || server.Result.Rows == 0 {
		t.Errorf("server: %+v", server)
	}
}

func decodeLast(t *testing.T, text string, into any) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), into); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
}

// switchControl returns the control address of the switch in a configuration.
func switchControl(t *testing.T, config string) string {
	t.Helper()
	c, err := cluster.Read(config)
	if err != nil {
		t.Fatal(err)
	}
	return c.Switch.Control.String()
}

// A process whose peer does not start names the peer, and a port in use is named with its address.
func TestClusterFailures(t *testing.T) {
	t.Parallel()
	config := handMade(t)
	if _, stderr, code := output(t, "worker", "--config", config, "--id", "2"); code != exitFailure || !strings.Contains(stderr, "no worker 2") {
		t.Errorf("code %d: %s", code, stderr)
	}
	sw := libra(t.Context(), "switch", "--config", config, "--json")
	ready := &waitBuffer{want: `"ready"`, found: make(chan struct{})}
	sw.Stdout = ready
	if err := sw.Start(); err != nil {
		t.Fatal(err)
	}
	<-ready.found
	address := switchControl(t, config)
	stdout, stderr, code := output(t, "stats", address)
	if code != 0 || !strings.Contains(stdout, "of 1,048,576") {
		t.Errorf("stats: code %d: %s%s", code, stdout, stderr)
	}
	// The configuration names both processes, but the server does not run.
	var stats Statistics
	stdout, stderr, code = output(t, "stats", "--json", "--config", config)
	conforms(t, "libra stats", stdout)
	conforms(t, "libra switch", ready.text.String())
	if decodeLast(t, stdout, &stats); code != exitFailure || len(stats.Processes) != 2 || stats.Processes[0].Switch == nil ||
		stats.Processes[0].Switch.Slots != 1<<20 || !strings.Contains(stderr, stats.Processes[1].Error) || stats.Processes[1].Error == "" {
		t.Errorf("stats: code %d: %s%s", code, stdout, stderr)
	}
	// An address means that process alone, with the configuration's certificates.
	var one Statistics
	stdout, stderr, code = output(t, "stats", address, "--json", "--config", config)
	if decodeLast(t, stdout, &one); code != 0 || len(one.Processes) != 1 || one.Processes[0].Switch == nil || one.Processes[0].Address != address {
		t.Errorf("stats of %s: code %d: %s%s", address, code, stdout, stderr)
	}
	_, stderr, code = output(t, "switch", "--config", config)
	if code != exitFailure || !strings.Contains(stderr, "address already in use") || !strings.Contains(stderr, "switch.control") {
		t.Errorf("code %d: %s", code, stderr)
	}
	if err := sw.Cancel(); err != nil {
		t.Error(err)
	}
	if err := sw.Wait(); err != nil {
		t.Error(err)
	}
}
