// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/control/access"
	"github.com/libra-ina/libra/internal/test/testlog"
	"github.com/libra-ina/libra/telemetry/export"
	"github.com/libra-ina/libra/telemetry/verdict"
)

// topBed is a cluster that trains until the test ends, and what top says of it.
type topBed struct {
	*killBed
	reports chan TopLine
	end     func() error // by Ctrl-C
}

func newTopBed(t *testing.T, standbys int) *topBed {
	t.Helper()
	b := &topBed{killBed: newStandbyBed(t, cluster.BackendUDP, standbys), reports: make(chan TopLine)}
	c := b.config
	c.Telemetry.Port = uint16(freePort(t, c.Switch.Address.String()))
	c.Silence, c.Model.Epochs, c.Server.Checkpoint, c.Server.CheckpointEvery, c.Server.CheckpointSteps = 10*time.Minute, 1_000_000, "", nil, 0
	if err := c.Write(b.path); err != nil {
		t.Fatal(err)
	}
	cmd := libra(t.Context(), "top", "--config", b.path, "--json")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr testlog.Log
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			var r TopLine
			if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
				t.Errorf("%s: %v", lines.Bytes(), err)
			}
			select {
			case b.reports <- r:
			case <-t.Context().Done():
			}
		}
		close(b.reports)
		ended <- cmd.Wait()
	}()
	b.end = func() error {
		err := cmd.Process.Signal(os.Interrupt)
		go func() {
			for range b.reports { // so that it can print
			}
		}()
		if err = errors.Join(err, <-ended); err != nil {
			t.Log(stderr.String())
			return err
		}
		return nil
	}
	return b
}

// await reads reports until one has a verdict as wanted.
func (b *topBed) await(t *testing.T, what string, wanted func(TopLine) bool) TopLine {
	t.Helper()
	deadline := time.After(time.Minute)
	var last TopLine
	for n := 0; ; n++ {
		select {
		case last = <-b.reports:
			if wanted(last) {
				return last
			}
		case <-deadline:
			t.Fatalf("%s; after %d reports, the last one is %+v", what, n, last)
		}
	}
}

// silentFirst reports whether a process is named first, as silent.
func silentFirst(name string) func(TopLine) bool {
	return func(r TopLine) bool {
		return r.Verdict[0].Kind == "silent" && strings.HasPrefix(r.Verdict[0].Text, name+" silent for ")
	}
}

// TestTopNamesAStoppedProcess stops each kind of process of a cluster that trains, and continues
// it: it is named meanwhile, and the training goes on. When the cluster has ended, that is said.
func TestTopNamesAStoppedProcess(t *testing.T) {
	t.Parallel()
	b := newTopBed(t, 0)
	sw := b.run(t, theSwitch, "switch")
	server, workers := b.train(t)
	processes := map[string]*child{"switch": sw, "server 0": server, "worker 1": workers[0], "worker 2": workers[1]}
	defer func() {
		for _, p := range processes {
			_ = p.Process.Signal(syscall.SIGCONT)
			_ = p.Process.Kill()
			_ = p.Wait()
		}
	}()
	trains := func(r TopLine) bool {
		return r.Verdict[0].Kind != "silent" && r.Processes[2].Rate > 0 && r.Processes[3].Rate > 0 && r.Processes[1].Process > 0
	}
	b.await(t, "it does not see the training", trains)
	for _, name := range []string{"switch", "server 0", "worker 1"} {
		stopped := time.Now()
		if err := processes[name].Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		r := b.await(t, name+" is stopped and not named", silentFirst(name))
		t.Logf("after %v: %s", time.Since(stopped).Round(100*time.Millisecond), r.Verdict[0].Text)
		if err := processes[name].Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		b.await(t, name+" goes on, and the training does not", trains)
	}
	_ = processes["worker 2"].Process.Kill()
	r := b.await(t, "worker 2 has gone and is not named", silentFirst("worker 2"))
	if !strings.Contains(r.Verdict[0].Text, "nothing listens there") {
		t.Errorf("of a worker that has gone: %s", r.Verdict[0].Text)
	}
	if err := b.end(); err != nil {
		t.Errorf("after Ctrl-C: %v", err)
	}
}

// A process that was stopped when it was asked shows what is of the time when it answers.
func TestTopNotesTheAnswer(t *testing.T) {
	t.Parallel()
	answers := make(chan time.Time, 1)
	process := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		time.Sleep(10 * time.Millisecond)
		answers <- time.Now()
		_, _ = w.Write([]byte("# TYPE libra_counters_age_seconds gauge\nlibra_counters_age_seconds 0\n"))
	}))
	defer process.Close()
	p := verdict.Process{Role: verdict.Server}
	at := netip.MustParseAddrPort(process.Listener.Addr().String())
	client := export.NewClient(export.Source{At: at}, access.Security{}, time.Minute)
	defer client.Close()
	view := &topView{names: []verdict.Process{p}, clients: []*export.Client{client}, judge: verdict.NewJudge([]verdict.Process{p}, time.Time{})}
	view.readProcess(t.Context(), 0)
	now, answered := time.Now(), <-answers
	if silent := view.judge.Report(now).Processes[0].Silent; silent > now.Sub(answered) {
		t.Errorf("silent for %v, and its answer came %v ago", silent, now.Sub(answered))
	}
}

// A single report has a line for each process and a verdict, as plain text.
func TestTopOnce(t *testing.T) {
	t.Parallel()
	_, path := latencyCluster(t, 7790)
	stdout, stderr, code := output(t, "top", "--config", path, "--for", "1500ms")
	if code != 0 || strings.Contains(stdout, "\x1b") {
		t.Errorf("%d, %q, %s", code, stdout, stderr)
	}
	stdout, stderr, code = output(t, "top", "--config", path, "--once")
	for _, want := range []string{"switch", "server 0", "worker 1", "telemetry has not answered yet (nothing listens there)"} {
		if !strings.Contains(stdout, want) || code != 0 || strings.Contains(stdout, "\x1b") {
			t.Errorf("%d, %q has no %q; %s", code, stdout, want, stderr)
		}
	}
}

// What is missing on the command line or in the cluster file is named.
func TestTopNeedsProcesses(t *testing.T) {
	t.Parallel()
	_, path := latencyCluster(t, 0)
	for want, args := range map[string][]string{
		"--config is required":      {},
		"--for -1s":                 {"--config", path, "--for", "-1s"},
		"exclude each other":        {"--config", path, "--for", "1s", "--once"},
		"telemetry.port is not set": {"--config", path},
		"cluster configuration":     {"--config", "/nowhere/cluster.yaml"},
	} {
		if _, stderr, code := output(t, append([]string{"top"}, args...)...); code == 0 || !strings.Contains(stderr, want) {
			t.Errorf("%v: %d, %s", args, code, stderr)
		}
	}
}
