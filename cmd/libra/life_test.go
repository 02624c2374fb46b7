// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// running is one libra process of a test.
type running struct {
	*exec.Cmd
	stdout, stderr lines
}

// lines collects a process's output, and lets tests wait for it.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
	news chan struct{} // closed and replaced with each write
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.news != nil {
		close(l.news)
		l.news = nil
	}
	return l.text.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// awaitReady waits until the process announces that it serves.
func (l *lines) awaitReady(t *testing.T) {
	t.Helper()
	l.await(t, "ready", 1)
}

// await waits until the process has written a text a number of times.
func (l *lines) await(t *testing.T, text string, times int) {
	t.Helper()
	limit := time.After(time.Minute)
	for {
		l.mu.Lock()
		found := strings.Count(l.text.String(), text) >= times
		if l.news == nil {
			l.news = make(chan struct{})
		}
		news := l.news
		l.mu.Unlock()
		if found {
			return
		}
		select {
		case <-news:
		case <-limit:
			t.Fatalf("no %q: %q", text, l.String())
		}
	}
}

// begin starts a process that is killed when the test ends, if it still runs.
func begin(t *testing.T, args ...string) *running {
	t.Helper()
	r := &running{Cmd: libra(context.Background(), args...)}
	r.Stdout, r.Stderr = &r.stdout, &r.stderr
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if r.ProcessState == nil {
			_ = r.Process.Kill()
			_ = r.Wait()
		}
		if t.Failed() {
			t.Logf("libra %v: %v\n%s", args, r.ProcessState, r.stderr.String())
		}
	})
	return r
}

// finish waits for a process that must succeed, and decodes its last line.
func (r *running) finish(t *testing.T, into any) {
	t.Helper()
	if err := r.Wait(); err != nil {
		t.Fatalf("libra %v: %v\n%s", r.Args[1:], err, r.stderr.String())
	}
	if into != nil {
		decodeLast(t, r.stdout.String(), into)
	}
}

// kill ends a process with SIGKILL. It must have been running.
func (r *running) kill(t *testing.T) {
	t.Helper()
	if err := r.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := r.Wait(); err == nil || r.ProcessState.Exited() {
		t.Fatalf("libra %v had ended before it was killed: %v", r.Args[1:], r.ProcessState)
	}
}

// edited returns a copy of a configuration with texts replaced.
func edited(t *testing.T, config string, replace ...string) string {
	t.Helper()
	text, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(replace); i += 2 {
		if !bytes.Contains(text, []byte(replace[i])) {
			t.Fatalf("the configuration has no %q", replace[i])
		}
	}
	return writeFile(t, "cluster.yaml", strings.NewReplacer(replace...).Replace(string(text)))
}

// A worker of an asynchronous job that is killed and restarted rejoins at once, and the job ends
// normally.
func TestRestartedWorkerJoinsAnew(t *testing.T) {
	t.Parallel()
	config := edited(t, handMade(t), "sync: true", "sync: false, harvest: 2ms", "epochs: 2", "epochs: 200")
	sw := begin(t, "switch", "--config", config, "--json")
	sw.stdout.awaitReady(t)
	server := begin(t, "ps", "--config", config, "--json", "-v")
	other := begin(t, "worker", "--config", config, "--id", "4", "--json")
	worker := begin(t, "worker", "--config", config, "--id", "1", "--json")
	worker.stdout.awaitReady(t)
	for range 2 {
		worker.kill(t)
		worker = begin(t, "worker", "--config", config, "--id", "1", "--json")
		worker.stdout.awaitReady(t)
	}
	var result struct{ Result struct{ Samples, Steps int } }
	worker.finish(t, &result)
	other.finish(t, nil)
	server.finish(t, nil)
	if n := strings.Count(server.stderr.String(), "was restarted"); n != 2 {
		t.Errorf("the server notes %d restarts, want 2:\n%s", n, server.stderr.String())
	}
	if result.Result.Steps == 0 {
		t.Errorf("the restarted worker took no step: %+v", result)
	}
}

// A server that is killed before its first checkpoint and restarted, with its workers, ends with
// the weights of an undisturbed run: no state of the switch reaches the new instance.
func TestKilledServerBeginsAnew(t *testing.T) {
	t.Parallel()
	config := edited(t, handMade(t), "epochs: 2", "epochs: 40")
	sw := begin(t, "switch", "--config", config, "--json")
	sw.stdout.awaitReady(t)
	type outcome struct {
		Result struct {
			Weights  string `json:"weights_sha256"`
			HotPairs int    `json:"hot_pairs"`
		}
	}
	start := func(config string) (server *running, workers []*running) {
		server = begin(t, "ps", "--config", config, "--json")
		for _, id := range []string{"1", "4"} {
			workers = append(workers, begin(t, "worker", "--config", config, "--id", id, "--json"))
		}
		for _, w := range workers {
			w.stdout.awaitReady(t)
		}
		return server, workers
	}
	var want outcome
	server, workers := start(config)
	begun := time.Now()
	for _, w := range workers {
		w.finish(t, nil)
	}
	server.finish(t, &want)
	length := time.Since(begun)
	again := edited(t, config, "weights.libra", "others.libra")
	server, workers = start(again)
	moment := rand.N(length / 2)
	time.Sleep(moment) // any moment will do
	server.kill(t)
	for _, w := range workers {
		if err := w.Wait(); err == nil {
			t.Error("a worker ends well although its server was killed")
		}
	}
	server, workers = start(again)
	for _, w := range workers {
		w.finish(t, nil)
	}
	var got outcome
	server.finish(t, &got)
	if got != want {
		t.Errorf("killed after %v of %v: %+v, want %+v", moment, length, got, want)
	}
}

// Jobs are listed with their owners, and removed by an operator.
func TestJobCommands(t *testing.T) {
	t.Parallel()
	config := handMade(t)
	sw := begin(t, "switch", "--config", config, "--json")
	sw.stdout.awaitReady(t)
	address := switchControl(t, config)
	server := begin(t, "ps", "--config", config, "--json")
	server.stdout.awaitReady(t)

	type job struct {
		Job, Senders, Senders_reserved int
		Lease_s                        float64
		Instance, Owner                string
		Held                           bool
	}
	list := func(args ...string) []job {
		t.Helper()
		stdout, stderr, code := output(t, append([]string{"job", "list", "--json"}, args...)...)
		var answer struct{ Jobs []job }
		if err := json.Unmarshal([]byte(stdout), &answer); err != nil || code != 0 {
			t.Fatalf("job list: code %d, %v: %s%s", code, err, stdout, stderr)
		}
		return answer.Jobs
	}
	jobs := list("--config", config)
	if len(jobs) != 1 || jobs[0].Job != 9 || !jobs[0].Held || jobs[0].Senders_reserved != 2 || jobs[0].Lease_s != 5 || !strings.HasPrefix(jobs[0].Owner, "127.") {
		t.Fatalf("jobs %+v", jobs)
	}
	for _, command := range [][]string{{"job", "list", "--control", address}, {"stats", address}} {
		stdout, stderr, code := output(t, command...)
		for _, part := range []string{jobs[0].Instance, jobs[0].Owner, "0 of 2"} {
			if code != 0 || !strings.Contains(stdout, part) {
				t.Errorf("libra %v: code %d, no %q: %s%s", command, code, part, stdout, stderr)
			}
		}
	}
	if _, stderr, code := output(t, "stats", "--config", config, "--json"); code != 0 {
		t.Errorf("statistics of both: code %d, %s", code, stderr)
	}
	for name, c := range map[string]struct {
		args []string
		code int
		want string
	}{
		"no switch":          {[]string{"job", "list"}, exitUsage, "--config or --control"},
		"no address":         {[]string{"job", "list", "--control", "here"}, exitUsage, "here"},
		"no file":            {[]string{"job", "list", "--config", "none.yaml"}, exitFailure, "none.yaml"},
		"no id":              {[]string{"job", "remove", "--control", address}, exitUsage, "job ID"},
		"id 256":             {[]string{"job", "remove", "256", "--control", address}, exitUsage, "0 to 255"},
		"a word":             {[]string{"job", "remove", "nine", "--control", address}, exitUsage, "nine"},
		"another job":        {[]string{"job", "remove", "8", "--control", address}, exitFailure, "no job 8"},
		"another instance":   {[]string{"job", "remove", "9", "--control", address, "--instance", "2"}, exitFailure, jobs[0].Instance},
		"arguments for list": {[]string{"job", "list", "9"}, exitUsage, "9"},
	} {
		if _, stderr, code := output(t, c.args...); code != c.code || !strings.Contains(stderr, c.want) {
			t.Errorf("%s: code %d, want %d and %q: %s", name, code, c.code, c.want, stderr)
		}
	}
	if len(list("--control", address)) != 1 {
		t.Fatal("the job is gone")
	}
	if _, stderr, code := output(t, "job", "remove", "9", "--config", config, "--instance", jobs[0].Instance); code != 0 {
		t.Fatalf("job remove: code %d: %s", code, stderr)
	}
	if jobs := list("--control", address); len(jobs) != 0 {
		t.Errorf("after its removal: %+v", jobs)
	}
	if err := server.Wait(); server.ProcessState.ExitCode() != exitRemoved || !strings.Contains(server.stderr.String(), "job 9 was removed by an operator") {
		t.Errorf("the server of the removed job: %v\n%s", err, server.stderr.String())
	}

	// A job whose server is killed is listed as such, and can be removed.
	server = begin(t, "ps", "--config", edited(t, config, filepath.Base("weights.libra"), "other.libra"), "--json")
	server.stdout.awaitReady(t)
	again := list("--control", address)
	if len(again) != 1 || again[0].Instance == jobs[0].Instance {
		t.Fatalf("started again: %+v, was %+v", again, jobs)
	}
	server.kill(t)
	if after := list("--control", address); len(after) == 1 && after[0].Held {
		t.Errorf("a killed server holds its job: %+v", after)
	}
}
