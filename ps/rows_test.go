// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"bytes"
	"errors"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/wire"
)

// No single push does work proportional to the store: none allocates more than two chunks and the
// segments that it splits. Memory that is not allocated cannot be copied into.
func TestGrowthIsInSteps(t *testing.T) {
	const dim, frame, frames = 9, 36, 9000
	s := newStore(t, Config{Dim: dim, Exp: DefaultExp, Optimizer: Optimizer{Method: Adagrad}})
	grads := make([]float32, frame*dim)
	keys := make([]uint64, frame)
	var key, worst uint64
	var before, after runtime.MemStats
	for range frames {
		for i := range keys {
			key++
			keys[i] = mix(key)
		}
		runtime.ReadMemStats(&before)
		if err := s.Push(keys, grads); err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		worst = max(worst, after.TotalAlloc-before.TotalAlloc)
		if s.Len()%(50*frame) == 0 {
			s.Commit()
		}
	}
	if s.Len() != frame*frames {
		t.Fatalf("%d rows", s.Len())
	}
	t.Logf("one push allocated up to %d bytes", worst)
	const segmentBytes = segmentEntries * 16
	if limit := uint64(2*chunkBytes*5/2 + frame*2*segmentBytes); worst > limit {
		t.Errorf("one push allocated %d bytes, more than %d", worst, limit)
	}
}

// The memory is that of the rows, and at most twice that of the entries for the table.
func TestMemoryOfARow(t *testing.T) {
	const n, dim = 200_000, 9
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	s := newStore(t, Config{Dim: dim, Exp: DefaultExp, Optimizer: Optimizer{Method: Adagrad}})
	zeros := make([]float32, dim)
	for key := range uint64(n) {
		if err := s.Push([]uint64{mix(key)}, zeros); err != nil {
			t.Fatal(err)
		}
		if key%1000 == 0 {
			s.Commit()
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	perRow := float64(after.HeapAlloc-before.HeapAlloc) / n
	t.Logf("%.0f bytes a row", perRow)
	// Key, sums, weights and squares, and entries of 16 bytes that are used at least to a quarter;
	// a tenth more for the last chunk and the rest.
	if limit := 1.1 * (8 + dim*16 + 4*16); perRow > limit {
		t.Errorf("%.0f bytes a row, more than %.0f", perRow, limit)
	}
	runtime.KeepAlive(s)
}

// Rows keep their place and contents over chunk borders.
func TestManyChunks(t *testing.T) {
	for _, dim := range []int{1, 3, 2000} {
		s := newStore(t, Config{Dim: dim, Exp: DefaultExp, Optimizer: Optimizer{Method: Adagrad}, Capacity: 70})
		size := 1 << s.rows.shift
		if bytes := size * dim * 8; size < 64 || size&(size-1) != 0 || bytes > chunkBytes && size > 64 {
			t.Errorf("dimension %d: %d rows in a chunk", dim, size)
		}
		n := 2*size + 3
		grads := make([]float32, dim)
		for key := range uint64(n) {
			grads[dim-1] = float32(key % 1000)
			if err := s.Push([]uint64{key}, grads); err != nil {
				t.Fatal(err)
			}
		}
		if len(s.rows.chunks) != 3 || s.Len() != n {
			t.Errorf("dimension %d: %d rows in %d chunks", dim, s.Len(), len(s.rows.chunks))
		}
		row := 0
		for key, sums := range s.Pending() {
			if key != uint64(row) || sums[dim-1] != units(int64(row % 1000))[0] {
				t.Fatalf("dimension %d: row %d is key %d with sum %d", dim, row, key, sums[dim-1])
			}
			row++
		}
		if row != n || s.Commit() != n {
			t.Errorf("dimension %d: %d rows pending", dim, row)
		}
	}
}

// A store of few rows takes little memory: the first chunk doubles as they are added.
func TestFewRowsTakeLittle(t *testing.T) {
	s := newStore(t, Config{Dim: 1, Exp: DefaultExp})
	for key := range uint64(1000) {
		if err := s.Push([]uint64{key}, []float32{1}); err != nil {
			t.Fatal(err)
		}
		if room := s.rows.room; room < s.Len() || room > max(64, 2*s.Len()) || len(s.rows.chunks[0].sums) != room {
			t.Fatalf("%d rows have room for %d", s.Len(), room)
		}
	}
}

// Rows from a harvest count against the limit of rows that gradients may add.
func TestHarvestedRowsCount(t *testing.T) {
	s := newStore(t, Config{Dim: 2, Exp: DefaultExp, MaxRows: 3})
	if applied, err := s.ApplyHarvest(Harvest{Number: 1, Ranks: []uint32{0, 3}, Sums: []int64{1, 2}}, []uint64{8, 9}); !applied || err != nil || s.Len() != 2 {
		t.Fatalf("harvest: %v, %v, %d rows", applied, err, s.Len())
	}
	if err := s.Push([]uint64{5}, make([]float32, 2)); err != nil {
		t.Errorf("the third row: %v", err)
	}
	if err := s.Push([]uint64{6}, make([]float32, 2)); !errors.Is(err, ErrFull) || s.Len() != 3 {
		t.Errorf("the fourth row: %v, %d rows", err, s.Len())
	}
}

func TestRowsAreBounded(t *testing.T) {
	cfg := Config{Dim: 2, Exp: DefaultExp, MaxRows: 3}
	s := newStore(t, cfg)
	if err := s.Push([]uint64{5, 6}, []float32{1, 1, 1, 1}); err != nil {
		t.Fatal(err)
	}
	before := pending(s)
	err := s.Accumulate(cold([]uint64{5, 7, 6, 8}, make([]float32, 8)))
	var got wire.Refusal
	if want := (wire.Refusal{Code: wire.CodeRowsFull, Index: 3, Value: 3}); !errors.As(err, &got) || got != want {
		t.Errorf("error %#v, want %#v", err, want)
	}
	if diff := cmp.Diff(before, pending(s)); diff != "" || s.Len() != 2 {
		t.Errorf("%d rows: %s", s.Len(), diff)
	}
	if err := s.Push([]uint64{7, 8}, make([]float32, 4)); !errors.Is(err, ErrFull) {
		t.Errorf("push: %v", err)
	}
	if err := s.Push([]uint64{7, 7, 6}, make([]float32, 6)); err != nil || s.Len() != 3 {
		t.Errorf("the last row: %v, %d rows", err, s.Len())
	}
	if err := s.AddSum(8, 0, 1); !errors.Is(err, ErrFull) {
		t.Errorf("sum: %v", err)
	}
	if err := s.AddSum(7, 0, 1); err != nil {
		t.Errorf("sum of a row that is there: %v", err)
	}
	// Harvested sums were acknowledged, so they are accepted.
	if applied, err := s.ApplyHarvest(Harvest{Number: 1, Sums: []int64{1, 2}}, []uint64{9}); !applied || err != nil || s.Len() != 4 {
		t.Errorf("harvest: %v, %v, %d rows", applied, err, s.Len())
	}
	if err := s.Push([]uint64{9, 7}, make([]float32, 4)); err != nil {
		t.Errorf("rows that are there: %v", err)
	}
	// They are all in a checkpoint, which is read completely, and then count against the limit.
	s.Commit()
	r, _, err := ReadCheckpoint(bytes.NewReader(encode(t, s, nil)), cfg)
	if err != nil || r.Len() != 4 {
		t.Fatalf("checkpoint: %v", err)
	}
	if err := r.Push([]uint64{10}, make([]float32, 2)); !errors.Is(err, ErrFull) {
		t.Errorf("push after a restart: %v", err)
	}
}

// Forgotten rows leave zeros in every chunk, since their places are reused.
func TestForgetClearsAllChunks(t *testing.T) {
	const dim, n = 1024, 200
	r := newRows(dim, None)
	r.reserveRows(n)
	if len(r.chunks) < 3 {
		t.Fatalf("%d rows are in %d chunks", n, len(r.chunks))
	}
	r.n = n
	for i := range n {
		c, j := r.chunkAt(i)
		c.markRow(j)
		c.sums[j*dim], c.sums[(j+1)*dim-1] = 1, 1
	}
	r.forgetRows()
	for i := range n {
		c, j := r.chunkAt(i)
		if c.sums[j*dim] != 0 || c.sums[(j+1)*dim-1] != 0 || !c.markRow(j) {
			t.Fatalf("row %d of %d in a chunk is not clear", i, 1<<r.shift)
		}
	}
}
