// SPDX-License-Identifier: Apache-2.0

//go:build linux

package clients_test

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/libra-ina/libra/internal/test/realdata"
)

// torchLimit is the time limit of a test's command. Eight processes that load PyTorch take a while
// on a busy machine.
const torchLimit = 10 * time.Minute

// buildLibra builds the command once, in the folder of the C library.
var buildLibra = sync.OnceValues(func() (string, error) {
	path := filepath.Join(built, "libra")
	out, err := exec.Command("go", "build", "-o", path, "../cmd/libra").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w\n%s", err, out)
	}
	return path, err
})

// torchPython returns a Python with PyTorch.
func torchPython(t testing.TB) string {
	t.Helper()
	path := withTorch()
	if path == "" {
		leaveOut(t, "no python3 has PyTorch with gloo (Debian: python3-torch): libra.torch is not tested")
	}
	return path
}

// torch returns the command that runs a Python program with PyTorch as the workers of 'libra run'
// with options.
func torch(t testing.TB, options []string, program ...string) *exec.Cmd {
	t.Helper()
	library := filepath.Join(build(t, plain), "libra.so.1")
	libra, err := buildLibra() // after build, which creates the folder
	if err != nil {
		t.Fatal(err)
	}
	args := slices.Concat([]string{"run", "--backend", "udp"}, options, []string{"--", torchPython(t)}, program)
	cmd := within(t, torchLimit, libra, args...)
	cmd.Env = append(os.Environ(), "LIBRA_LIBRARY="+library, "PYTHONPATH=python", "PYTHONDONTWRITEBYTECODE=1", "PYTHONFAULTHANDLER=1")
	return cmd
}

// The example that times all-reduces ends with both times, after comparing the sums.
func TestAllReduceExample(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"udp", "afxdp"} {
		t.Run(backend, func(t *testing.T) {
			if backend == "afxdp" {
				needRoot(t)
			}
			out := run(t, torch(t, strings.Fields("--sync --optimizer none --hosts 2 --workers 2 --dim 2 --backend "+backend),
				"python/examples/all_reduce.py", "--rows", "100", "--of", "1000", "--dim", "2", "--steps", "3", "--warm-up", "1"))
			if !regexp.MustCompile(`2 ranks, 100 rows of 1000, 2 floats each: p50 libra [0-9.]+ ms, gloo [0-9.]+ ms`).MatchString(out) {
				t.Errorf("printed %s", out)
			}
		})
	}
}

// TestTorch runs the tests of libra.torch, each as the workers of a cluster.
func TestTorch(t *testing.T) {
	t.Parallel()
	for program, options := range map[string]string{
		"group":     "--sync --optimizer none --hosts 2 --workers 4 --dim 2",
		"open":      "--sync --workers 2 --dim 2",
		"embedding": "--sync --optimizer sgd --learning-rate 1 --dim 2",
	} {
		t.Run(program, func(t *testing.T) {
			run(t, torch(t, strings.Fields(options), "python/test/torch_"+program+".py"))
		})
	}
	t.Run("in the server alone", func(t *testing.T) { // with hot rows each step would wait for a harvest
		const reduce = "import torch, torch.distributed as d, libra.torch; d.init_process_group('libra');" +
			"[d.all_reduce(torch.sparse_coo_tensor([[5, 9]], [1.0, 2.0], (100,))) for _ in range(3)]"
		cmd := torch(t, []string{"--sync", "--optimizer", "none", "--workers", "2", "--json"}, "-c", reduce)
		var messages bytes.Buffer
		cmd.Stderr = &messages
		out, err := cmd.Output()
		var result struct {
			Steps     int `json:"steps"`
			HotFrames int `json:"hot_frames"`
		}
		lines := bytes.Split(bytes.TrimSpace(out), []byte("\n"))
		if err := errors.Join(err, json.Unmarshal(lines[len(lines)-1], &result)); err != nil || result.Steps < 3 || result.HotFrames > 0 {
			t.Errorf("%+v, %v\n%s%s", result, err, out, &messages)
		}
	})
	t.Run("exit", func(t *testing.T) { // of a program that does not destroy its group: gloo's threads end before the interpreter
		const count = "import atexit, os; atexit.register(lambda: print(len(os.listdir(int(os.environ['LIBRA_TASKS']) if 'LIBRA_TASKS' in os.environ else '/proc/self/task')), 'threads'));" +
			"import torch, torch.distributed as d, libra.torch; d.init_process_group('libra'); d.all_reduce(torch.ones(3))"
		out := run(t, torch(t, strings.Fields("--sync --optimizer none --workers 2"), "-c", count))
		// The other process waits for the store, which may have a thread, and has no tensors.
		if !strings.Contains(out, "rank 1 | 2 threads") && !strings.Contains(out, "rank 1 | 1 threads") {
			t.Errorf("printed %s", out)
		}
	})
	t.Run("exit early", func(t *testing.T) { // while gloo's threads hold the last references to tensors
		const program = `
import os, sys
import torch, torch.distributed as dist, libra.torch
from torch.nn.parallel import DistributedDataParallel
def add(group):
    for _ in range(8):
        dist.all_reduce(torch.ones(1 << 20), group=group, async_op=True)
dist.init_process_group("libra")
model = DistributedDataParallel(torch.nn.Linear(4, 4))  # has the group for longer
child = os.fork()
if not child:  # a process that has the group without its threads
    sys.exit()
print("forked", os.waitpid(child, 0)[1])
sys.setswitchinterval(1000)
add(None)
add(dist.new_group(backend="gloo"))
`
		out := run(t, torch(t, strings.Fields("--sync --optimizer none --workers 2"), "-c", program))
		if strings.Count(out, "forked 0\n") != 2 {
			t.Errorf("printed %s", out)
		}
	})
	t.Run("no weights", func(t *testing.T) {
		const pull = "import os, libra; libra.Session(os.environ['LIBRA_JOB'], dim=1, parties=1).pull([1])"
		out, err := torch(t, []string{"--sync", "--optimizer", "none"}, "-c", pull).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "NoWeights") || !strings.Contains(string(out), "the job keeps no weights to pull: give it an optimizer, adagrad or sgd") {
			t.Errorf("without an optimizer it ends with %v\n%s", err, out)
		}
	})
	t.Run("no steps", func(t *testing.T) {
		const begin = "import torch.distributed, libra.torch; torch.distributed.init_process_group('libra')"
		out, err := torch(t, nil, "-c", begin).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "set job.sync in its cluster file, or give libra run --sync") {
			t.Errorf("without --sync it ends with %v\n%s", err, out)
		}
	})
}

var (
	aucLine = regexp.MustCompile(`AUC ([0-9.]+)(?:, weights (\w+))?`)
	block   = regexp.MustCompile("(?ms)^```sh\n(.*?)^```$")
)

// shorter writes the first rows of a file of real data.
func shorter(t *testing.T, name string, rows int) (path string) {
	t.Helper()
	in, err := os.Open(realdata.Path(t, name))
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	text, err := gzip.NewReader(in)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	w, lines := gzip.NewWriter(&out), bufio.NewScanner(text)
	for range rows {
		if lines.Scan() {
			_, _ = w.Write(append(lines.Bytes(), '\n'))
		}
	}
	if err := errors.Join(lines.Err(), w.Close()); err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, out.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestTorchLoaders trains with data loaders that fork and with those that spawn: the weights are
// the same.
func TestTorchLoaders(t *testing.T) {
	t.Parallel()
	data := []string{"--data", shorter(t, "frappe-train.libfm.gz", 1024), "--test", shorter(t, "frappe-test.libfm.gz", 256)}
	var weights []string
	for _, how := range []string{"fork", "spawn"} {
		program := append([]string{"python/examples/frappe.py", "libra", "--epochs", "1", "--batch", "512", "--loaders", how}, data...)
		cmd := torch(t, strings.Fields("--sync --optimizer none --workers 2 --dim 16"), program...)
		cmd.Env = append(cmd.Env, "OMP_NUM_THREADS=1")
		out := run(t, cmd)
		m := aucLine.FindStringSubmatch(out)
		if m == nil || m[2] == "" {
			t.Fatalf("with loaders that %s it printed %s", how, out)
		}
		weights = append(weights, m[2])
	}
	if weights[0] != weights[1] {
		t.Errorf("loaders that fork end with the weights %s, those that spawn with %s", weights[0], weights[1])
	}
}

// TestTorchSums compares sums with exact arithmetic, of hot rows and cold ones. With
// scripts/torch.sh there are as many ranks as it says.
func TestTorchSums(t *testing.T) {
	t.Parallel()
	ranks := []int{3}
	if os.Getenv(interpreter) != "" {
		ranks = []int{2, 5, 8}
	}
	for _, n := range ranks {
		out := run(t, torch(t, strings.Fields(fmt.Sprintf("--sync --optimizer none --hosts %d --workers %d --dim 4 --hot-rows 40", n, n)), "python/test/torch_sums.py"))
		if !regexp.MustCompile(fmt.Sprintf(`rank 0 of %d: [1-9]\d* sums exact, [1-9]\d* refused`, n)).MatchString(out) ||
			!regexp.MustCompile(`pairs summed in the network +[1-9]`).MatchString(out) {
			t.Errorf("%d ranks printed %s", n, out)
		}
	}
}

// TestTorchPage runs the commands of docs/python.md that train on frappe, on a part of it, and
// checks their output: the AUC is that of one process, and weights are those of the previous run.
func TestTorchPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/python.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## PyTorch\n")
	section, _, _ = strings.Cut(section, "\n## ")
	commands := block.FindAllStringSubmatch(section, -1)
	if len(commands) != 2 {
		t.Fatalf("the section PyTorch of docs/python.md has %d blocks of commands", len(commands))
	}
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	variables := []string{"LIBRA_LIBRARY=" + root + "/clients/c/build/libra.so.1", "PYTHONPATH=" + root + "/clients/python", "PYTHONDONTWRITEBYTECODE=1"}
	data := func(rows int) []string {
		return []string{"TRAIN=" + shorter(t, "frappe-train.libfm.gz", rows), "TEST=" + shorter(t, "frappe-test.libfm.gz", rows)}
	}
	python := torchPython(t)
	if err := os.Symlink(python, filepath.Join(bin, "python3")); err != nil {
		t.Fatal(err)
	}
	type outcome struct {
		auc     float64
		weights string
	}
	train := func(data []string, script string) (trained []outcome) {
		cmd := within(t, torchLimit, "bash", "-euc", script)
		cmd.Dir = root
		cmd.Env = append(append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH")), slices.Concat(variables, data)...)
		out := run(t, cmd)
		for _, m := range aucLine.FindAllStringSubmatch(out, -1) {
			auc, err := strconv.ParseFloat(m[1], 64)
			if err != nil {
				t.Fatal(err)
			}
			trained = append(trained, outcome{auc, m[2]})
		}
		t.Logf("%s: %v", strings.TrimSpace(script), trained)
		return trained
	}
	run(t, within(t, torchLimit, "make", "-C", root, "build", "clients"))

	lines := strings.Split(strings.TrimSpace(commands[0][1]), "\n")
	if len(lines) != 2 || strings.Replace(lines[0], " gloo ", " libra ", 1) != lines[1] {
		t.Fatalf("more than a word differs between\n%s", commands[0][1])
	}
	const alone = "bin/libra run --backend udp -- python3 clients/python/examples/frappe.py gloo --data $TRAIN --test $TEST --epochs "
	// No two asynchronous runs are equal: their AUC has a standard deviation of 0.004 with 8,192 rows,
	// and of 0.002 with 32,768.
	few, more := data(8192), data(32768)
	four, again, one := train(few, commands[0][1]), train(few, lines[1]), train(few, alone+"2")
	server, oneOfMore := train(more, commands[1][1]), train(more, alone+"5")
	if len(four) != 2 || len(again) != 1 || len(one) != 1 || len(server) != 1 || len(oneOfMore) != 1 {
		t.Fatal("not each of the commands has printed the AUC")
	}
	if four[1].weights != again[0].weights {
		t.Errorf("two runs end with the weights %s and %s", four[1].weights, again[0].weights)
	}
	if one[0].auc < 0.7 {
		t.Errorf("AUC %v: the model has learnt nothing", one[0].auc)
	}
	for _, other := range []outcome{four[0], one[0]} {
		if math.Abs(four[1].auc-other.auc) > 0.005 {
			t.Errorf("AUC %v; through gloo and in one process %v and %v", four[1].auc, four[0].auc, one[0].auc)
		}
	}
	// Its smaller steps may learn more from these few rows, and one run in a hundred learns less by
	// chance: then the median of five decides.
	if least := oneOfMore[0].auc - 0.005; server[0].auc < least {
		for range 4 {
			server = append(server, train(more, commands[1][1])...)
		}
		slices.SortFunc(server, func(a, b outcome) int { return cmp.Compare(a.auc, b.auc) })
		if len(server) != 5 || server[2].auc < least {
			t.Errorf("AUC %v with the rows in the server, asynchronously; in one process %v", server, oneOfMore[0].auc)
		}
	}
}
