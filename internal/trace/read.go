// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Trace is what the workers of a training push.
type Trace struct {
	Name string
	Dim  int // floats of a row
	// Parameters is the number of floats of the whole model. Where the index does not know it, it is
	// that of the rows that were pushed, and Least is true.
	Parameters uint64
	Least      bool
	Workers    []Worker // by rank
}

// Worker is what one worker pushes. The rows of a push are in ascending order of their keys, which
// are distinct.
type Worker struct {
	Starts []int // first row of each push, and the number of rows
	Keys   []uint64
	Grads  []float32 // Dim for each key
	Steps  int       // iterations
}

// Pushes returns the number of pushes.
func (w *Worker) Pushes() int { return len(w.Starts) - 1 }

// Read reads the trace of a folder. Errors name the file and a remedy.
func Read(dir string) (*Trace, error) {
	x, err := readIndex(dir)
	if err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	t := &Trace{Name: filepath.Base(filepath.Clean(dir)), Dim: x.Dim, Parameters: x.Parameters,
		Workers: make([]Worker, x.Ranks)}
	for i := range t.Workers {
		t.Workers[i].Starts = []int{0}
	}
	for _, p := range x.Parts {
		if err := t.readPart(dir, x, p); err != nil {
			return nil, fmt.Errorf("trace: %w", err)
		}
	}
	for rank := range t.Workers {
		w := &t.Workers[rank]
		if w.Pushes() == 0 {
			return nil, fmt.Errorf("trace: %s: rank %d has no pushes: %s", filepath.Join(dir, IndexName), rank, again)
		}
		if w.Steps == 0 || !x.Sync {
			w.Steps = w.Pushes() // each push is a step
		}
	}
	// A row has one parameter at least; the rest of it may be zeros that fill it.
	switch rows := uint64(len(t.Ranked())); {
	case t.Parameters == 0:
		t.Parameters, t.Least = rows*uint64(t.Dim), true
	case t.Parameters < rows:
		return nil, fmt.Errorf("trace: %s: %d parameters are fewer than the %d rows pushed, so they are of another model: %s",
			filepath.Join(dir, IndexName), t.Parameters, rows, again)
	}
	return t, nil
}

func (t *Trace) readPart(dir string, x *Index, p Part) error {
	name := func(suffix string) string { return filepath.Join(dir, p.Name+suffix) }
	var pushes, keys []uint64
	var grads []float32
	uints := func(to *[]uint64) func([]byte) {
		return func(part []byte) {
			for ; len(part) > 0; part = part[8:] {
				*to = append(*to, binary.LittleEndian.Uint64(part))
			}
		}
	}
	if err := readArray(name(pushesSuffix), typeUint64, p.Pushes, 2, p.Checksums[2], uints(&pushes)); err != nil {
		return err
	}
	if err := readArray(name(keysSuffix), typeUint64, p.Rows, 0, p.Checksums[0], uints(&keys)); err != nil {
		return err
	}
	if err := readArray(name(gradientsSuffix), typeFloat32, p.Rows, x.Dim, p.Checksums[1], func(part []byte) {
		for ; len(part) > 0; part = part[4:] {
			grads = append(grads, math.Float32frombits(binary.LittleEndian.Uint32(part)))
		}
	}); err != nil {
		return err
	}
	for i, g := range grads {
		if g-g != 0 {
			return fmt.Errorf("%s: gradient %d is %v, which no job sums: %s", name(gradientsSuffix), i, g, again)
		}
	}
	w := &t.Workers[p.Rank]
	var row uint64
	for ; len(pushes) > 0; pushes = pushes[2:] {
		n := pushes[0]
		if n > uint64(len(keys))-row {
			return fmt.Errorf("%s: its pushes have more rows than %s: %s", name(pushesSuffix), name(keysSuffix), again)
		}
		w.add(t.Dim, keys[row:row+n], grads[row*uint64(t.Dim):(row+n)*uint64(t.Dim)])
		row += n
	}
	if row != uint64(len(keys)) {
		return fmt.Errorf("%s: its pushes have %d rows, and %s has %d: %s", name(pushesSuffix), row, name(keysSuffix),
			len(keys), again)
	}
	w.Steps = max(w.Steps, p.Steps)
	return nil
}

// add appends a push, with its rows in order and those of the same key added up. An empty one is
// left out.
func (w *Worker) add(dim int, keys []uint64, grads []float32) {
	if len(keys) == 0 {
		return
	}
	order := make([]int, len(keys))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(keys[a], keys[b]) })
	first := len(w.Keys)
	for _, i := range order {
		row := grads[i*dim : (i+1)*dim]
		if last := len(w.Keys) - 1; last >= first && w.Keys[last] == keys[i] {
			for j, g := range row {
				w.Grads[last*dim+j] += g
			}
			continue
		}
		w.Keys = append(w.Keys, keys[i])
		w.Grads = append(w.Grads, row...)
	}
	w.Starts = append(w.Starts, len(w.Keys))
}

// Ranked returns all keys, those that most pushes have first, and of as many the smallest.
func (t *Trace) Ranked() []uint64 {
	counts := map[uint64]int{}
	for _, w := range t.Workers {
		for _, key := range w.Keys {
			counts[key]++
		}
	}
	type counted struct {
		key uint64
		n   int
	}
	all := make([]counted, 0, len(counts))
	for key, n := range counts {
		all = append(all, counted{key, n})
	}
	slices.SortFunc(all, func(a, b counted) int { return cmp.Or(b.n-a.n, cmp.Compare(a.key, b.key)) })
	keys := make([]uint64, len(all))
	for i, c := range all {
		keys[i] = c.key
	}
	return keys
}

// parentIn returns the parent's number in the text of /proc/PID/stat: the second field after the
// name in parentheses, which may have any characters.
func parentIn(stat string) int {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) < 2 {
		return 0
	}
	n, _ := strconv.Atoi(fields[1])
	return n
}
