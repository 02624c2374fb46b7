// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/cluster/demo"
	"github.com/libra-ina/libra/internal/test/realdata"
)

// glmRows writes rows that a linear model predicts.
func glmRows(t *testing.T) string {
	t.Helper()
	var rows strings.Builder
	for i := range 500 {
		fmt.Fprintf(&rows, "%d %d:1 %d:%.2f\n", i%2, 2*(i%7)+i%2, 100+i%50, float64(i%9)-4)
	}
	return writeFile(t, "rows.libsvm", rows.String())
}

func runGLM(t *testing.T, args ...string) *demo.GLMResult {
	t.Helper()
	stdout, stderr, code := output(t, append([]string{"glm", "--json"}, args...)...)
	var line GLMLine
	if code != 0 || json.Unmarshal([]byte(stdout), &line) != nil || line.Summary == nil {
		t.Fatalf("libra glm %v: exit code %d\n%s%s", args, code, stdout, stderr)
	}
	return line.Summary
}

// Weights have the same bits on both backends, in both modes, with any number of workers,
// micro-batches and faults, and libra evaluate takes them.
func TestGLM(t *testing.T) {
	t.Parallel()
	data := glmRows(t)
	if stdout, stderr, code := output(t, "glm", "--backend", "udp", "--workers", "2", "--rows", "300"); code != 0 || !strings.Contains(stdout, "SHA-256 of the weights") {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
	for _, objective := range []string{"hinge", "square", "logistic"} { // the last needs root
		want := runGLM(t, "--backend", "udp", "--workers", "1", "--data", data, "--objective", objective)
		if want.Rows != 500 || want.Columns != 64 || len(want.Epochs) != 1 || want.Operations == 0 || want.WeightsSHA256 == "" {
			t.Errorf("%+v", want)
		}
		for _, backend := range []string{"udp", "afxdp"} {
			if backend == "afxdp" {
				if objective != "logistic" {
					continue // package glm tests that they are no different
				}
				needRoot(t)
			}
			out := filepath.Join(t.TempDir(), "weights.npz")
			r := runGLM(t, "--backend", backend, "--workers", "4", "--data", data, "--objective", objective, "--micro-batch", "64",
				"--loss", "0.01", "--duplicate", "0.01", "--reorder", "0.01", "--out", out)
			if acked := runGLM(t, "--backend", backend, "--workers", "2", "--data", data, "--objective", objective, "--acked", "--loss", "0.01"); !acked.Acked || r.Acked || acked.WeightsSHA256 != want.WeightsSHA256 || acked.Operations != want.Operations {
				t.Errorf("%s, %s, in mode acked: %+v, want %+v", objective, backend, acked, want)
			}
			if r.WeightsSHA256 != want.WeightsSHA256 || r.Epochs[0] != want.Epochs[0] {
				t.Errorf("%s, %s: %+v, want %+v", objective, backend, r, want)
			}
			task := "classification"
			if objective == "square" {
				task = "regression"
			}
			stdout, stderr, code := output(t, "evaluate", "--weights", out, "--data", data, "--task", task, "--json")
			var e Evaluation
			if code != 0 || json.Unmarshal([]byte(stdout), &e) != nil || e.Rows != 500 || task == "classification" && *e.AUC < 0.95 {
				t.Errorf("exit code %d: %s%s", code, stdout, stderr)
			}
		}
	}
}

// Labels that are no clicks are refused with a remedy that the command has, and that helps.
func TestGLMOfNumbers(t *testing.T) {
	t.Parallel()
	for _, rows := range []string{"3 5:1\n0 6:1\n", "0 5:1\n-1 6:1\n1 7:1\n"} {
		args := []string{"glm", "--backend", "udp", "--workers", "1", "--data", writeFile(t, "rows.libsvm", rows)}
		if _, stderr, code := output(t, args...); code != exitFailure || !strings.Contains(stderr, "(objective square of libra glm)") {
			t.Errorf("exit code %d: %s", code, stderr)
		}
		if _, stderr, code := output(t, append(args, "--objective", "square")...); code != 0 {
			t.Errorf("with the remedy, exit code %d: %s", code, stderr)
		}
	}
}

// On frappe, four bits cost at most 0.005 of the area under the ROC curve, as libra evaluate
// measures it: in float32 it is 0.908 (TestFrappe of package glm).
func TestGLMOfFrappe(t *testing.T) {
	t.Parallel()
	out := filepath.Join(t.TempDir(), "weights.csv")
	runGLM(t, "--backend", "udp", "--workers", "2", "--data", realdata.Path(t, "frappe-train.libfm.gz"), "--learning-rate", "2", "--epochs", "3", "--out", out)
	stdout, stderr, code := output(t, "evaluate", "--weights", out, "--data", realdata.Path(t, "frappe-test.libfm.gz"), "--json")
	var e Evaluation
	if code != 0 || json.Unmarshal([]byte(stdout), &e) != nil || *e.AUC < 0.903 || *e.AUC > 0.913 {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
}

// What is wrong with the rows is said once, by the worker that has found it.
func TestGLMRefusesRows(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rows string
		want []string
		args []string
	}{
		"a label":       {"1 1:1\n0 1:1\n0.5 1:1\n", []string{":3:1: label \"0.5\" is not 1, 0 or -1"}, nil},
		"NaN":           {"1 1:1\n0 1:nan\n", []string{":2:5: feature value \"nan\""}, nil},
		"no rows":       {"\n", []string{"the file holds no rows"}, nil},
		"a step":        {"9 1:1\n", []string{"row 1: its step 576", "lower the learning rate"}, []string{"--objective", "square", "--learning-rate", "64", "--batch", "1", "--micro-batch", "1"}},
		"an activation": {strings.Repeat("9 1:1 2:1 3:1 4:1\n", 64), []string{"row ", "its activation", "lower the learning rate"}, []string{"--objective", "square", "--batch", "8", "--learning-rate", "16", "--epochs", "9"}},
	} {
		_, stderr, code := output(t, append([]string{"glm", "--backend", "udp", "--workers", "2", "--data", writeFile(t, "rows", c.rows)}, c.args...)...)
		for _, want := range c.want {
			if code != exitFailure || !strings.Contains(stderr, want) || strings.Contains(stderr, "did not contribute") {
				t.Errorf("%s: exit code %d: %s, want %q", name, code, stderr, want)
			}
		}
	}
}

// glmCluster writes a cluster file without a server and starts its switch.
func glmCluster(t *testing.T) (config string) {
	t.Helper()
	config = glmFile(t)
	startGLMSwitch(t, config)
	return config
}

// glmFile writes a cluster file without a server.
func glmFile(t *testing.T) string {
	t.Helper()
	network := loopback()
	return writeFile(t, "cluster.yaml", fmt.Sprintf(`
backend: udp
port: %d
silence: 2s
job: {id: 9}
switch: {address: %[2]s1, control: %[2]s1:%[3]d}
workers: [{id: 5, address: %[2]s3}, {id: 7, address: %[2]s4}, {id: 2, address: %[2]s5}]
`, freePort(t, network+"1"), network, freePort(t, network+"1")))
}

func startGLMSwitch(t *testing.T, config string) {
	t.Helper()
	sw := libra(t.Context(), "switch", "--config", config)
	if err := sw.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = sw.Process.Signal(syscall.SIGTERM)
		_ = sw.Wait() // it was asked to end
	})
}

// Workers that are started by hand train together, and the one with the lowest number has the
// model.
func TestGLMByHand(t *testing.T) {
	t.Parallel()
	data := glmRows(t)
	want := runGLM(t, "--backend", "udp", "--workers", "1", "--data", data)
	config := glmCluster(t)
	if _, stderr, code := output(t, "config", "check", config); code != 0 {
		t.Error(stderr)
	}
	out := filepath.Join(t.TempDir(), "model")
	ended := make(chan string, 3)
	for _, id := range []string{"7", "2", "5"} {
		go func() {
			args := []string{"glm", "--config", config, "--id", id, "--data", data, "--out", out, "--format", "xlearn"}
			if id == "7" {
				args = append(args, "--json")
			}
			text, err := libra(t.Context(), args...).CombinedOutput()
			if err != nil {
				text = append(text, err.Error()...)
			}
			ended <- id + ": " + string(text)
		}()
	}
	for range 3 {
		text := <-ended
		if has := strings.Contains(text, want.WeightsSHA256); has != strings.HasPrefix(text, "2:") {
			t.Errorf("%s, want %s", text, want.WeightsSHA256)
		}
		if strings.HasPrefix(text, "7:") {
			_, lines, _ := strings.Cut(text, `{"`)
			lines = `{"` + lines
			conforms(t, "libra glm", lines)
			if !strings.Contains(lines, `"ready"`) || !strings.Contains(lines, `"operations"`) {
				t.Error(lines)
			}
		}
	}
	if _, stderr, code := output(t, "evaluate", "--weights", out, "--data", data); code != 0 {
		t.Error(stderr)
	}
}

// With mutual TLS the worker with the lowest number needs the role of a server besides its own, all
// need theirs, and the weights are the same.
func TestGLMWithCertificates(t *testing.T) {
	t.Parallel()
	rows := glmRows(t)
	want := runGLM(t, "--backend", "udp", "--workers", "1", "--data", rows)
	plain := glmFile(t)
	c, err := cluster.ReadAny(plain)
	if err != nil {
		t.Fatal(err)
	}
	a := newAuthority(t)
	startGLMSwitch(t, a.file(c, "switch", "libra://switch", c.Switch.Address, time.Hour))
	address := map[string]netip.Addr{}
	for _, w := range c.Workers {
		address[strconv.Itoa(int(w.ID))] = w.Address
	}
	for name, refused := range map[string]struct{ id, file, says string }{
		"no server's role": {"2", a.file(c, "no server", "libra://worker/9/2", address["2"], time.Hour), "libra://server/9"},
		"no worker's role": {"2", a.file(c, "no worker", "libra://server/9", address["2"], time.Hour), "libra://worker/9/2"},
		"another's role":   {"5", a.file(c, "another", "libra://worker/9/7", address["5"], time.Hour), "libra://worker/9/5"},
		"no certificate":   {"5", plain, "TLS mismatch"},
	} {
		_, stderr, code := output(t, "glm", "--config", refused.file, "--id", refused.id, "--data", rows)
		if code != exitFailure || !strings.Contains(stderr, refused.says) {
			t.Errorf("%s: exit code %d, want %q: %s", name, code, refused.says, stderr)
		}
	}
	files := map[string]string{
		"2": a.file(c, "worker 2", "libra://server/9 libra://worker/9/2", address["2"], time.Hour),
		"5": a.file(c, "worker 5", "libra://worker/9/5", address["5"], time.Hour),
		"7": a.file(c, "worker 7", "libra://worker/9", address["7"], time.Hour),
	}
	ended := make(chan string, len(files))
	for id, file := range files {
		go func() {
			text, err := libra(t.Context(), "glm", "--config", file, "--id", id, "--data", rows, "--acked").CombinedOutput()
			ended <- fmt.Sprintf("worker %s: %s%v", id, text, err)
		}()
	}
	for range files {
		if text := <-ended; !strings.HasSuffix(text, "<nil>") || strings.Contains(text, want.WeightsSHA256) != strings.HasPrefix(text, "worker 2:") {
			t.Errorf("%s, want %s of worker 2", text, want.WeightsSHA256)
		}
	}
}

// When a worker is killed, the others end within the limit, and name it: also if it is the one that
// holds the job.
func TestGLMKilled(t *testing.T) {
	t.Parallel()
	data := glmRows(t)
	config := glmCluster(t)
	const contribute = "contribute"
	for victim, c := range map[string]struct {
		mode   string
		didNot []string
	}{
		"7": {"--acked=false", []string{contribute}}, "2": {"--acked=false", []string{contribute}},
		"5": {"--acked", []string{contribute, "tell to have it"}}, // before it had a result, or after
	} {
		workers := map[string]*exec.Cmd{}
		texts := map[string]*waitBuffer{}
		for _, id := range []string{"2", "5", "7"} {
			workers[id], texts[id] = libra(t.Context(), "glm", "--config", config, "--id", id, "--data", data, "--epochs", "1000000", c.mode), &waitBuffer{want: "worker trains", found: make(chan struct{})}
			workers[id].Stderr = texts[id]
			if err := workers[id].Start(); err != nil {
				t.Fatal(err)
			}
		}
		for id := range workers {
			select {
			case <-texts[id].found:
			case <-time.After(time.Minute):
				t.Errorf("worker %s does not train", id)
			}
		}
		if err := workers[victim].Process.Kill(); err != nil {
			t.Error(err)
		}
		began := time.Now()
		for id, cmd := range workers {
			_ = cmd.Wait() // its exit code is what counts
			if id == victim {
				continue
			}
			text := texts[id].text.String()
			names := func(what string) bool {
				return strings.Contains(text, "worker "+victim+" did not "+what+": start all workers")
			}
			if cmd.ProcessState.ExitCode() != exitFailure || !strings.Contains(text, "libra: ") || !slices.ContainsFunc(c.didNot, names) {
				t.Errorf("worker %s, after worker %s was killed: exit code %d: %s", id, victim, cmd.ProcessState.ExitCode(), text)
			}
		}
		if took := time.Since(began); took > 2*time.Minute {
			t.Errorf("it took %v", took)
		}
	}
}
