// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

var meta = Meta{Job: "table", Dim: 2, Ranks: 2, Sync: true}

// record writes a trace of two ranks, of which the first has two clients; a process of no rank
// pushes, too. It returns its folder.
func record(t *testing.T, finish bool) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "trace")
	if err := Begin(dir, meta); err != nil {
		t.Fatal(err)
	}
	r := NewRecorder(dir, 1, meta.Dim)
	ranks := map[int]int{}
	client := func(rank int) *Recording {
		c := r.Client(0, "test")
		process := r.clients + 100
		c.note.Processes = []int{process, 7}
		if rank >= 0 {
			ranks[process] = rank
		}
		return c
	}
	a, b, c := client(0), client(1), client(0)
	client(-1).Push([]uint64{1}, []float32{1, 1})
	client(1) // pushes nothing
	a.Push([]uint64{9, 3, 9}, []float32{1, 2, 3, 4, 5, 6})
	a.EndStep()
	a.Push([]uint64{4}, []float32{7, 8})
	a.EndStep()
	b.Push(nil, nil)
	b.Push([]uint64{math.MaxUint64}, []float32{-1, 0x1p-149})
	c.Push([]uint64{5}, []float32{9, 10})
	a.Close()
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if finish {
		if err := Finish(dir, meta, func(processes []int) (int, bool) {
			for _, p := range processes {
				if rank, known := ranks[p]; known {
					return rank, true
				}
			}
			return 0, false
		}); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// What is read is what was pushed, in order of keys, and rows of the same key added up.
func TestRecordedIsRead(t *testing.T) {
	dir := record(t, true)
	got, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := &Trace{Name: "trace", Dim: 2, Parameters: 2 * 5, Least: true, Workers: []Worker{
		{Starts: []int{0, 2, 3, 4}, Keys: []uint64{3, 9, 4, 5}, Grads: []float32{3, 4, 6, 8, 7, 8, 9, 10}, Steps: 2},
		{Starts: []int{0, 1}, Keys: []uint64{math.MaxUint64}, Grads: []float32{-1, 0x1p-149}, Steps: 1},
	}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	var names []string
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".npy"))
	}
	if want := []string{"rank-0-2.gradients", "rank-0-2.keys", "rank-0-2.pushes", "rank-0.gradients", "rank-0.keys",
		"rank-0.pushes", "rank-1.gradients", "rank-1.keys", "rank-1.pushes", IndexName}; !slices.Equal(names, want) {
		t.Errorf("files %q, want %q", names, want)
	}
}

// NumPy reads the files. Debian's package is of /usr/bin/python3, whatever other one is on the
// PATH.
func TestNumPyReads(t *testing.T) {
	python := "python3"
	out, err := exec.Command(python, "-c", "import numpy").CombinedOutput()
	if err != nil {
		python = "/usr/bin/python3"
		out, err = exec.Command(python, "-c", "import numpy").CombinedOutput()
	}
	if err != nil {
		t.Skipf("no Python with NumPy (apt install python3-numpy): %s", out)
	}
	const script = `import sys, numpy as n
for f in "keys", "gradients", "pushes":
    a = n.load(sys.argv[1] + "/rank-0." + f + ".npy"); print(a.dtype, a.shape, a.tolist())`
	out, err = exec.Command(python, "-c", script, record(t, true)).CombinedOutput()
	const want = "uint64 (4,) [9, 3, 9, 4]\n" +
		"float32 (4, 2) [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]]\nuint64 (2, 2) [[3, 0], [1, 1]]\n"
	if err != nil || string(out) != want {
		t.Errorf("NumPy says %s (%v), want %s", out, err, want)
	}
}

// Whatever is wrong with a trace is said before anything starts, with the file and a remedy.
func TestWrongTraces(t *testing.T) {
	change := func(name string, do func([]byte) []byte) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			path := filepath.Join(dir, name)
			text, err := os.ReadFile(path)
			if err == nil {
				err = os.WriteFile(path, do(text), 0o644)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	replace := func(old, with string) func([]byte) []byte {
		return func(text []byte) []byte {
			if !strings.Contains(string(text), old) {
				panic("no " + old)
			}
			return []byte(strings.Replace(string(text), old, with, 1))
		}
	}
	for name, c := range map[string]struct {
		spoil func(*testing.T, string)
		want  []string
	}{
		"no index":   {func(_ *testing.T, dir string) { os.Remove(filepath.Join(dir, IndexName)) }, []string{"is no trace", "libra run --record"}},
		"no JSON":    {change(IndexName, func(text []byte) []byte { return text[:len(text)/2] }), []string{IndexName, "record the trace again"}},
		"format":     {change(IndexName, replace("libra trace", "other")), []string{IndexName, `"other"`}},
		"version":    {change(IndexName, replace(`"version": 1`, `"version": 2`)), []string{IndexName, "version 2"}},
		"incomplete": {change(IndexName, replace("true", "false")), []string{IndexName, "cut short"}},
		"rank":       {change(IndexName, replace(`"rank": 1`, `"rank": 2`)), []string{IndexName, "rank 2"}},
		"ranks":      {change(IndexName, replace(`"ranks": 2`, `"ranks": 1000000`)), []string{IndexName, "1000000 ranks"}},
		"path":       {change(IndexName, replace(`"rank-1"`, `"../x"`)), []string{IndexName, "../x"}},
		"dimension":  {change(IndexName, replace(`"dim": 2`, `"dim": 3`)), []string{"rank-0.gradients.npy", "(4, 3)"}},
		"parameters": {change(IndexName, replace(`"parameters": 0`, `"parameters": 4`)), []string{IndexName, "4 parameters are fewer than the 5 rows", again}},
		"lost file":  {func(_ *testing.T, dir string) { os.Remove(filepath.Join(dir, "rank-1.keys.npy")) }, []string{"rank-1.keys.npy", again}},
		"cut short":  {change("rank-0.keys.npy", func(text []byte) []byte { return text[:len(text)-8] }), []string{"rank-0.keys.npy", "cut short"}},
		"empty":      {change("rank-0.keys.npy", func([]byte) []byte { return nil }), []string{"rank-0.keys.npy", "no NumPy array"}},
		"head":       {change("rank-0.keys.npy", func(text []byte) []byte { return text[:40] }), []string{"rank-0.keys.npy", "its head"}},
		"type":       {change("rank-0.gradients.npy", replace("<f4", "<f8")), []string{"rank-0.gradients.npy", "<f4"}},
		"changed":    {change("rank-0.keys.npy", func(text []byte) []byte { text[headSize] ^= 1; return text }), []string{"rank-0.keys.npy", "another trace"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := record(t, true)
			c.spoil(t, dir)
			_, err := Read(dir)
			for _, want := range c.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%v lacks %q", err, want)
				}
			}
		})
	}
}

// A recording that was not completed is not a trace, and a folder with files is refused.
func TestCutShort(t *testing.T) {
	dir := record(t, false)
	if _, err := Read(dir); err == nil || !strings.Contains(err.Error(), "cut short") {
		t.Errorf("%v, want that it was cut short", err)
	}
	if err := Begin(dir, meta); err == nil || !strings.Contains(err.Error(), "not empty") {
		t.Errorf("%v, want that the folder is not empty", err)
	}
}

// A file that cannot be written does not end the training, but the trace is not complete.
func TestFailedRecording(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "trace")
	if err := Begin(dir, meta); err != nil {
		t.Fatal(err)
	}
	r := NewRecorder(dir, 1, meta.Dim)
	c := r.Client(os.Getpid(), "")
	if err := os.Mkdir(filepath.Join(dir, "host-1-client-1.keys.npy"), 0o755); err != nil {
		t.Fatal(err)
	}
	c.Push([]uint64{1}, []float32{1, 2})
	c.Push([]uint64{1}, []float32{1, 2})
	if err := r.Close(); err == nil || !strings.Contains(err.Error(), "keys.npy") {
		t.Errorf("%v lacks the file", err)
	}
	if err := Finish(dir, meta, func([]int) (int, bool) { return 0, true }); err == nil {
		t.Error("the trace is complete")
	}
	if _, err := Read(dir); err == nil {
		t.Error("the trace is read")
	}
}

// Each rank has to have pushed something.
func TestRankWithoutPushes(t *testing.T) {
	dir := record(t, false)
	err := Finish(dir, meta, func([]int) (int, bool) { return 0, true })
	if err == nil || !strings.Contains(err.Error(), "rank 1 pushed nothing") {
		t.Errorf("%v, want that rank 1 pushed nothing", err)
	}
}

func TestAncestors(t *testing.T) {
	if got := ancestors(os.Getpid()); len(got) < 2 || got[0] != os.Getpid() || got[1] != os.Getppid() {
		t.Errorf("ancestors %v of %d, whose parent is %d", got, os.Getpid(), os.Getppid())
	}
	if got := parentIn("12 (a) b) S 7 12"); got != 7 {
		t.Errorf("parent %d, want 7", got)
	}
}

// Made-up trainings have the share that they are made for, and are the same for the same seed.
func TestDrawnSkew(t *testing.T) {
	for _, s := range []Skew{OA, SE} {
		shape := Shape{Workers: 2, Pushes: 3, Rows: 16384}
		got := Draw(s, shape, 1)
		if !reflect.DeepEqual(got, Draw(s, shape, 1)) {
			t.Errorf("%s: another trace for the same seed", s.Name)
		}
		hot := map[uint64]bool{}
		for rank := range s.Hot {
			hot[keyOf(uint64(rank))] = true
		}
		n, of := 0, 0
		for _, w := range got.Workers {
			for i, start := range w.Starts[:w.Pushes()] {
				push := w.Keys[start:w.Starts[i+1]]
				if len(push) != shape.Rows || !slices.IsSorted(push) || len(slices.Compact(slices.Clone(push))) != len(push) {
					t.Fatalf("%s: a push of %d rows that are not sorted or distinct", s.Name, len(push))
				}
			}
			for _, key := range w.Keys {
				of++
				if hot[key] {
					n++
				}
			}
		}
		if share := float64(n) / float64(of); math.Abs(share-s.Share) > 0.005 {
			t.Errorf("%s: the hot parameters have %.3f of the updates, want %.2f", s.Name, share, s.Share)
		}
	}
}
