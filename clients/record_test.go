// SPDX-License-Identifier: Apache-2.0

//go:build linux

package clients_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/libra-ina/libra/internal/trace"
)

// recorded runs a program as the workers of 'libra run --record', and returns the trace.
func recorded(t *testing.T, options string, program ...string) *trace.Trace {
	t.Helper()
	library := filepath.Join(build(t, plain), "libra.so.1")
	libra, err := buildLibra()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "trace")
	args := append([]string{"run", "--backend", "udp", "--record", dir}, strings.Fields(options)...)
	cmd := within(t, torchLimit, libra, slices.Concat(args, []string{"--"}, program)...)
	cmd.Env = append(os.Environ(), "LIBRA_LIBRARY="+library, "PYTHONPATH=python", "PYTHONDONTWRITEBYTECODE=1")
	run(t, cmd)
	got, err := trace.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// What clients in C push is recorded, each push and step.
func TestRecordC(t *testing.T) {
	t.Parallel()
	got := recorded(t, "--sync --optimizer sgd --learning-rate 0.1 --job line", filepath.Join(build(t, plain), "example"), "line")
	w := got.Workers[0]
	if len(got.Workers) != 1 || got.Dim != 1 || w.Pushes() != 800 || w.Steps != 200 {
		t.Fatalf("%d workers, rows of %d, %d pushes in %d steps", len(got.Workers), got.Dim, w.Pushes(), w.Steps)
	}
	// The weights begin at zero, so the error of the first point is -3.
	if !slices.Equal(w.Keys[:4], []uint64{1, 2, 1, 2}) || !slices.Equal(w.Grads[:4], []float32{-3, 0, 0, 2}) {
		t.Errorf("pushes begin with keys %v and gradients %v", w.Keys[:4], w.Grads[:4])
	}
}

// Sparse all-reduces of PyTorch and pushes of sessions in Python are recorded, each as its rank's,
// also from a process that a rank starts.
func TestRecordPython(t *testing.T) {
	python := torchPython(t)
	const reduce = `import os, subprocess, sys, torch, torch.distributed as d, libra.torch
rank = int(os.environ["RANK"])
if rank == 1 and sys.argv[1] != "again":
    again = [sys.executable, "-c", sys.argv[1], "again"]
    sys.exit(subprocess.run(again, start_new_session=True).returncode)
d.init_process_group("libra")
for step in range(3):
    d.all_reduce(torch.sparse_coo_tensor([[7, 3 + rank]], [[1.0, 2.0], [step, rank]], (100, 2)))
d.destroy_process_group()`
	got := recorded(t, "--sync --optimizer none --workers 2 --dim 2", python, "-c", reduce, reduce)
	// In the first rows the ranks agree on what they add up; those of the tensor come after them.
	const first, shift = 20, 17
	for rank, w := range got.Workers {
		var keys, wantKeys []uint64
		var grads, wantGrads []float32
		for i, key := range w.Keys {
			if key >= first {
				keys, grads = append(keys, key-shift), append(grads, w.Grads[2*i:2*i+2]...)
			}
		}
		for step := range 3 {
			wantKeys = append(wantKeys, 3+uint64(rank), 7)
			wantGrads = append(wantGrads, float32(step), float32(rank), 1, 2)
		}
		if !slices.Equal(keys, wantKeys) || !slices.Equal(grads, wantGrads) || w.Steps < 3 {
			t.Errorf("of rank %d are recorded the keys %v and gradients %v in %d steps", rank, keys, grads, w.Steps)
		}
	}
	if len(got.Workers) != 2 || got.Dim != 2 {
		t.Errorf("recorded %d ranks with rows of %d", len(got.Workers), got.Dim)
	}
}
