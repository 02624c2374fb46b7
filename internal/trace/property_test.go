// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"encoding/binary"
	"encoding/json"
	"hash/crc32"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// push is what a client pushed in a step.
type push struct {
	keys  []uint64
	grads []float32
}

// TestRecordingsAreRead records clients of several ranks and hosts, with pushes small and large,
// and reads what each rank pushed: client by client in the order in which they came.
func TestRecordingsAreRead(t *testing.T) {
	for seed := range uint64(10) {
		rng, dir := rand.New(rand.NewPCG(seed, 0)), filepath.Join(t.TempDir(), "trace")
		m := Meta{Job: "table", Dim: 1 + rng.IntN(5), Ranks: 1 + rng.IntN(4), Sync: seed%2 == 0}
		if err := Begin(dir, m); err != nil {
			t.Fatal(err)
		}
		hosts := []*Recorder{NewRecorder(dir, 0, m.Dim), NewRecorder(dir, 1, m.Dim)}
		ranks := map[int]int{}
		pushed, steps := make([][]push, m.Ranks), make([]int, m.Ranks)
		order := 0
		client := func(rank int, pushes int) {
			c := hosts[rng.IntN(len(hosts))].Client(0, "client")
			order++
			c.note.Order = order // as the time, but never twice the same
			c.note.Processes = []int{1000 + order}
			if rank < m.Ranks {
				ranks[1000+order] = rank
			}
			ended := 0
			for range pushes {
				n := []int{1, 2, 5, 0, 3000, 9000}[rng.IntN(6)]
				p := push{make([]uint64, n), make([]float32, n*m.Dim)}
				first := rng.Uint64()
				for i := range p.keys {
					p.keys[i] = keyOf(first + uint64(i%(1+n*2/3))) // some twice
				}
				for i := range p.grads {
					p.grads[i] = float32(int32(first)>>8+int32(i)) / 1024
				}
				c.Push(p.keys, p.grads)
				if rng.IntN(2) == 0 {
					c.EndStep()
					ended++
				}
				if rank < m.Ranks {
					pushed[rank] = append(pushed[rank], p)
				}
			}
			if rank < m.Ranks {
				steps[rank] = max(steps[rank], ended)
			}
		}
		var came []int // rank of each client
		for rank := range m.Ranks {
			came = append(came, slices.Repeat([]int{rank}, 1+rng.IntN(3))...)
		}
		rng.Shuffle(len(came), func(i, j int) { came[i], came[j] = came[j], came[i] })
		for _, rank := range came {
			client(rank, 1+rng.IntN(4))
		}
		client(m.Ranks, 1) // of another program
		for _, r := range hosts {
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if err := Finish(dir, m, func(processes []int) (int, bool) { rank, known := ranks[processes[0]]; return rank, known }); err != nil {
			t.Fatal(err)
		}
		if x, err := readIndex(dir); err != nil || len(x.Parts) != len(came) ||
			!slices.IsSortedFunc(x.Parts, func(a, b Part) int { return a.Rank - b.Rank }) {
			t.Errorf("%+v, %v: want %d parts by rank", x, err, len(came))
		}
		empty := slices.IndexFunc(pushed, func(all []push) bool {
			return !slices.ContainsFunc(all, func(p push) bool { return len(p.keys) > 0 })
		})
		got, err := Read(dir)
		if empty >= 0 {
			if err == nil || !strings.Contains(err.Error(), "has no pushes") {
				t.Fatalf("rank %d has pushed no row: %v", empty, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		all := map[uint64]int{}
		for rank, w := range got.Workers {
			at := 0
			for _, p := range pushed[rank] {
				want := sumOf(p, m.Dim)
				if len(want) == 0 {
					continue
				}
				first, end := w.Starts[at], w.Starts[at+1]
				keys := w.Keys[first:end]
				if !slices.Equal(keys, slices.Sorted(maps.Keys(want))) {
					t.Fatalf("rank %d, push %d: %d keys, want %d in order", rank, at, len(keys), len(want))
				}
				for i, key := range keys {
					all[key]++
					if row := w.Grads[(first+i)*m.Dim:][:m.Dim]; !slices.Equal(row, want[key]) {
						t.Fatalf("rank %d, push %d, key %d: %v, want %v", rank, at, key, row, want[key])
					}
				}
				at++
			}
			if at != w.Pushes() || len(w.Keys) != w.Starts[at] || len(w.Grads) != m.Dim*len(w.Keys) {
				t.Fatalf("rank %d: %d pushes, want %d", rank, w.Pushes(), at)
			}
			want := at
			if m.Sync && steps[rank] > 0 {
				want = steps[rank]
			}
			if w.Steps != want {
				t.Errorf("rank %d: %d steps, want %d", rank, w.Steps, want)
			}
		}
		if want := uint64(len(all) * m.Dim); got.Parameters != want || !got.Least || got.Dim != m.Dim {
			t.Errorf("%d parameters (%v), want %d", got.Parameters, got.Least, want)
		}
		ranked := got.Ranked()
		if len(ranked) != len(all) || !slices.IsSortedFunc(ranked, func(a, b uint64) int {
			if all[a] != all[b] {
				return all[b] - all[a]
			}
			return map[bool]int{true: -1, false: 1}[a < b]
		}) {
			t.Error("the keys are not in the order of how many pushes have them")
		}
	}
}

// sumOf adds up the rows of each key.
func sumOf(p push, dim int) map[uint64][]float32 {
	sums := map[uint64][]float32{}
	for i, key := range p.keys {
		if sums[key] == nil {
			sums[key] = make([]float32, dim)
		}
		for j := range dim {
			sums[key][j] += p.grads[i*dim+j]
		}
	}
	return sums
}

// rewrite replaces an array of a trace by one that its index describes, too.
func rewrite(t *testing.T, dir, part, suffix string, change func(elements []byte) []byte) {
	t.Helper()
	path := filepath.Join(dir, part+suffix)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	elements := change(text[headSize:])
	if err := os.WriteFile(path, append(text[:headSize:headSize], elements...), 0o644); err != nil {
		t.Fatal(err)
	}
	x, err := readIndex(dir)
	if err != nil {
		t.Fatal(err)
	}
	for i := range x.Parts {
		if x.Parts[i].Name == part {
			x.Parts[i].Checksums[slices.Index(suffixes[:], suffix)] = crc32.Checksum(elements, castagnoli)
		}
	}
	if err := writeIndex(dir, x); err != nil {
		t.Fatal(err)
	}
}

// Arrays that do not fit each other, and gradients that no job sums, are refused although their
// checksums are right.
func TestArraysThatDoNotFit(t *testing.T) {
	number := func(at int, v uint64) func([]byte) []byte {
		return func(b []byte) []byte { binary.LittleEndian.PutUint64(b[8*at:], v); return b }
	}
	gradient := func(at int, v float64) func([]byte) []byte {
		return func(b []byte) []byte {
			binary.LittleEndian.PutUint32(b[4*at:], math.Float32bits(float32(v)))
			return b
		}
	}
	for name, c := range map[string]struct {
		suffix string
		change func([]byte) []byte
		want   string
	}{
		"more rows in the first push": {pushesSuffix, number(0, 5), "its pushes have more rows than"},
		"more rows in the last push":  {pushesSuffix, number(2, 2), "its pushes have more rows than"},
		"as many as wrap around":      {pushesSuffix, number(2, math.MaxUint64), "its pushes have more rows than"},
		"fewer rows":                  {pushesSuffix, number(0, 2), "its pushes have 3 rows, and"},
		"not a number":                {gradientsSuffix, gradient(0, math.NaN()), "gradient 0 is NaN, which no job sums"},
		"without bounds":              {gradientsSuffix, gradient(7, math.Inf(-1)), "gradient 7 is -Inf, which no job sums"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := record(t, true)
			rewrite(t, dir, "rank-0", c.suffix, c.change)
			if _, err := Read(dir); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "rank-0"+c.suffix) ||
				!strings.Contains(err.Error(), again) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

// An index is read within its limits, and not beyond.
func TestLimitsOfIndexes(t *testing.T) {
	part := func(c func(*Part)) func(*Index) { return func(x *Index) { c(&x.Parts[0]) } }
	for name, c := range map[string]struct {
		change func(*Index)
		ok     bool
	}{
		"as it is":              {func(*Index) {}, true},
		"no floats":             {func(x *Index) { x.Dim = 0 }, false},
		"the longest rows":      {func(x *Index) { x.Dim = maxDim }, true},
		"longer ones":           {func(x *Index) { x.Dim = maxDim + 1 }, false},
		"no ranks":              {func(x *Index) { x.Ranks = 0 }, false},
		"the most ranks":        {func(x *Index) { x.Ranks = MaxRanks }, true},
		"more":                  {func(x *Index) { x.Ranks = MaxRanks + 1 }, false},
		"no parts":              {func(x *Index) { x.Parts = nil }, false},
		"a negative rank":       {part(func(p *Part) { p.Rank = -1 }), false},
		"a rank beyond":         {part(func(p *Part) { p.Rank = meta.Ranks }), false},
		"a negative number":     {part(func(p *Part) { p.Pushes = -1 }), false},
		"no pushes":             {part(func(p *Part) { p.Pushes = 0 }), true},
		"the most pushes":       {part(func(p *Part) { p.Pushes = maxRows }), true},
		"more pushes":           {part(func(p *Part) { p.Pushes = maxRows + 1 }), false},
		"a negative row number": {part(func(p *Part) { p.Rows = -1 }), false},
		"no rows":               {part(func(p *Part) { p.Rows = 0 }), true},
		"more rows":             {part(func(p *Part) { p.Rows = maxRows + 1 }), false},
		"a folder":              {part(func(p *Part) { p.Name = "a/b" }), false},
	} {
		x := meta.index()
		x.Complete, x.Parts = true, []Part{{Name: "rank-0", Pushes: 1, Rows: 1}}
		c.change(x)
		dir := t.TempDir()
		if err := writeIndex(dir, x); err != nil {
			t.Fatal(err)
		}
		if got, err := readIndex(dir); (err == nil) != c.ok || err == nil && len(got.Parts) != len(x.Parts) || err != nil && !strings.Contains(err.Error(), again) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What a client pushes after the end of its recording is not recorded, and no failure.
func TestPushesAfterTheEnd(t *testing.T) {
	dir := t.TempDir()
	r := NewRecorder(dir, 3, 1)
	c := r.Client(0, "test")
	c.Push([]uint64{1}, []float32{2})
	c.Close()
	c.Push(make([]uint64, 50_000), make([]float32, 50_000)) // more than is buffered
	c.Close()
	if err := r.Close(); err != nil || c.note.Rows != 1 || c.note.Pushes != 1 {
		t.Errorf("%+v, %v", c.note, err)
	}
}

// A client that fails says so in its note, whatever it pushes later, and nothing of it is kept.
func TestNotesOfFailures(t *testing.T) {
	dir := t.TempDir()
	r := NewRecorder(dir, 3, 1)
	c := r.Client(0, "test")
	c.Push([]uint64{1}, []float32{2})
	c.arrays[1].file.Close() // as a disk that fails
	c.Close()
	c.Push([]uint64{1}, []float32{2})
	var n note
	text, err := os.ReadFile(filepath.Join(dir, "host-3-client-1"+noteSuffix))
	if err == nil {
		err = json.Unmarshal(text, &n)
	}
	if err != nil || !strings.Contains(n.Failed, gradientsSuffix) || n.Pushes != 1 || n.Rows != 1 {
		t.Errorf("%+v, %v", n, err)
	}
	if err := r.Close(); err == nil || !strings.Contains(err.Error(), gradientsSuffix) {
		t.Errorf("the recorder ends with %v", err)
	}
}

// A push has as many distinct rows as are asked for, in order, also where more hot parameters would
// be in it by chance; there is a gradient for each, all steps are there, and no two workers push
// the same.
func TestDrawnShapes(t *testing.T) {
	s, shape := Skew{"drawn", 100_000, 50, 0.9}, Shape{Workers: 3, Pushes: 100, Rows: 10}
	got := Draw(s, shape, 7)
	if got.Name != s.Name || got.Dim != 1 || got.Parameters != s.Parameters || got.Least || len(got.Workers) != shape.Workers {
		t.Fatalf("%+v", got)
	}
	seen := map[float32]bool{}
	for i, w := range got.Workers {
		if w.Pushes() != shape.Pushes || w.Steps != shape.Pushes || len(w.Grads) != len(w.Keys) {
			t.Fatalf("worker %d: %d pushes, %d steps, %d gradients of %d keys", i, w.Pushes(), w.Steps, len(w.Grads), len(w.Keys))
		}
		for p, start := range w.Starts[:shape.Pushes] {
			keys := w.Keys[start:w.Starts[p+1]]
			if len(keys) != shape.Rows || !slices.IsSorted(keys) || len(slices.Compact(slices.Clone(keys))) != shape.Rows {
				t.Fatalf("worker %d, push %d: %d keys, want %d that are sorted and distinct", i, p, len(keys), shape.Rows)
			}
		}
		if same := slices.Equal(w.Keys, got.Workers[(i+1)%shape.Workers].Keys); same {
			t.Errorf("worker %d pushes the keys of the next", i)
		}
		for _, g := range w.Grads[:8] {
			if seen[g] || g-g != 0 || g == 0 {
				t.Fatalf("worker %d has the gradient %v, of another one: %v", i, g, seen[g])
			}
			seen[g] = true
		}
	}
	if other := Draw(s, shape, 8); slices.Equal(other.Workers[0].Grads, got.Workers[0].Grads) || slices.Equal(other.Workers[0].Keys, got.Workers[0].Keys) {
		t.Error("another seed gives the same pushes")
	}
}
