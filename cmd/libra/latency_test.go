// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/telemetry"
	"github.com/libra-ina/libra/telemetry/export"
)

// latencyCluster writes a cluster file on loopback addresses; a port of 0 leaves telemetry.port
// out.
func latencyCluster(t *testing.T, port int) (c *cluster.Config, path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "cluster.yaml")
	text := `backend: udp
job: {id: 1, hot_set: hot.libra}
switch: {address: 127.71.1.1, control: "127.71.1.1:7700"}
server: {address: 127.71.1.2, control: "127.71.1.2:7700"}
workers: [{id: 1, address: 127.71.1.3}]
model: {kind: lr}
data: {train: train.libfm}
`
	if port != 0 {
		text += fmt.Sprintf("telemetry: {port: %d}\n", port)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := cluster.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	return c, path
}

// TestLatencyRecord records a server and a worker: their frame becomes a row. A worker that does
// not answer makes the command fail, with its name.
func TestLatencyRecord(t *testing.T) {
	l, err := net.Listen("tcp", "127.71.1.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	c, path := latencyCluster(t, l.Addr().(*net.TCPAddr).Port)
	show := func(p cluster.Process, side export.Side, rec telemetry.Record) {
		r := telemetry.NewRecorder(1, nil, nil)
		r.Write(&rec)
		e := export.Start(export.Config{At: p.At, Log: slog.New(slog.DiscardHandler), Process: p.Name, Side: side, Sample: 1,
			Recorders: func() []*telemetry.Recorder { return []*telemetry.Recorder{r} }})
		t.Cleanup(e.Close)
		for { // until it listens
			if conn, err := net.Dial("tcp", p.At.String()); err == nil {
				conn.Close()
				return
			}
		}
	}
	all := c.Processes()
	show(all[1], export.ServerSide, telemetry.Record{Job: 1, Worker: 1, Number: 5, Op: telemetry.Pull, Queue: 10, Process: 20, Total: 30})
	out := filepath.Join(t.TempDir(), "rows.csv")
	args := []string{"latency", "record", "--config", path, "--duration", "1ms", "--out", out}
	if _, stderr, code := output(t, args...); code != exitFailure || !strings.Contains(stderr, "worker 1 at "+all[2].At.String()) || !strings.Contains(stderr, "telemetry.port") {
		t.Errorf("without its worker: %d, %s", code, stderr)
	}
	show(all[2], export.WorkerSide, telemetry.Record{Time: time.Second, Job: 1, Worker: 1, Number: 5, Op: telemetry.Pull, Queue: 1, Process: 2, Total: 100, Request: 8, Response: 9})
	if _, stderr, code := output(t, args...); code != 0 || !strings.Contains(stderr, "whole=1") {
		t.Errorf("%d, %s", code, stderr)
	}
	text, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(strings.NewReader(string(text))).ReadAll()
	want := strings.Split("1000000000,1,1,0,0,5,pull,8,9,100,,1,2,10,20,67,whole,receive", ",")
	if err != nil || len(rows) != 2 || !slices.Equal(rows[0], export.Columns()) || !slices.Equal(rows[1], want) {
		t.Errorf("%s, %v", text, err)
	}
	// The same as a table, as a picture and as JSON.
	plots := t.TempDir()
	stdout, stderr, code := output(t, "latency", "--config", path, "--duration", "1ms", "--out", plots)
	if code != 0 || !strings.Contains(stdout, "server process") || !strings.Contains(stdout, "67ns") {
		t.Errorf("%d, %s, %s", code, stdout, stderr)
	}
	if _, err := os.Stat(filepath.Join(plots, "latency-pull.svg")); err != nil {
		t.Error(err)
	}
	stdout, _, code = output(t, "latency", "--config", path, "--duration", "1ms", "--json")
	var shown LatencyReport
	if err := json.Unmarshal([]byte(stdout), &shown); err != nil || code != 0 || shown.Whole != 1 || len(shown.Latencies) != 6 {
		t.Errorf("%d, %v: %s", code, err, stdout)
	}
	conforms(t, "libra latency", stdout)
}

// A job in which nothing is measured is no success.
func TestLatencyOfNothing(t *testing.T) {
	_, path := latencyCluster(t, 1)
	if _, stderr, code := output(t, "latency", "--config", path, "--duration", "1ms"); code != exitFailure || !strings.Contains(stderr, "worker 1") {
		t.Errorf("%d, %s", code, stderr)
	}
}

// What is missing on the command line or in the cluster file is named.
func TestLatencyRecordNeedsProcesses(t *testing.T) {
	_, path := latencyCluster(t, 0)
	for want, args := range map[string][]string{
		"--config is required":      {},
		"--duration -1s":            {"--config", path, "--duration", "-1s"},
		"telemetry.port is not set": {"--config", path},
		"cluster configuration":     {"--config", "/nowhere/cluster.yaml"},
	} {
		if _, stderr, code := output(t, append([]string{"latency", "record"}, args...)...); code == 0 || !strings.Contains(stderr, want) {
			t.Errorf("%v: %d, %s", args, code, stderr)
		}
	}
}
