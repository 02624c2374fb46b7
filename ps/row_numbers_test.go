// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/wire"
)

// coldAt makes a COLD_AT body of ones.
func coldAt(s *Store, numbering uint32, numbers ...uint32) wire.Rows {
	d := s.Config().Dim
	rows := wire.PutNumbered(make([]byte, wire.ColdAtLen(len(numbers), d)), wire.TypeColdAt, len(numbers), d, numbering)
	row := make([]float32, d)
	for i := range row {
		row[i] = 1
	}
	rows.SetNumbers(numbers)
	for i := range numbers {
		rows.SetRow(i, row)
	}
	return rows
}

// TestRowsKeepTheirNumbers requests the numbers of rows while the store grows over chunks and
// segments, and adds by number what another store adds by key.
func TestRowsKeepTheirNumbers(t *testing.T) {
	for _, dim := range []int{1, 3} {
		s, other := newStore(t, Config{Dim: dim, Exp: DefaultExp}), newStore(t, Config{Dim: dim, Exp: DefaultExp})
		rng := rand.New(rand.NewPCG(1, 2))
		var keys []uint64
		given, numbering := map[uint64]uint32{}, s.numbering
		for len(keys) < 3*chunkBytes/8/dim {
			few := make([]uint64, 100)
			for i := range few {
				few[i] = rng.Uint64N(1 << 20)
				if len(keys) > 0 && i%2 == 0 {
					few[i] = keys[rng.IntN(len(keys))]
				}
			}
			grads := gradients(len(few) * dim)
			if err := errors.Join(s.Push(few, grads), other.Push(few, grads)); err != nil {
				t.Fatal(err)
			}
			keys = append(keys, few...)
			numbers := make([]uint32, len(few))
			if s.Find(few, numbers) != numbering {
				t.Fatal("another numbering")
			}
			for i, key := range few {
				if before, known := given[key]; numbers[i] == 0 || known && numbers[i] != before {
					t.Fatalf("key %d has the number %d, before %d", key, numbers[i], before)
				}
				given[key] = numbers[i]
			}
			row := rng.IntN(len(keys))
			ones := make([]float32, dim)
			for i := range ones {
				ones[i] = 1
			}
			if err := errors.Join(s.AccumulateAt(coldAt(s, numbering, given[keys[row]])), other.Push(keys[row:row+1], ones)); err != nil {
				t.Fatal(err)
			}
			if rng.IntN(50) == 0 && s.Commit() != other.Commit() {
				t.Fatal("another number of rows in the step")
			}
		}
		s.Commit()
		other.Commit()
		if s.Hash() != other.Hash() {
			t.Errorf("dimension %d: other weights by number than by key", dim)
		}
		missing := make([]uint32, 1)
		if s.Find([]uint64{1 << 40}, missing); missing[0] != 0 {
			t.Errorf("a key without a row has the number %d", missing[0])
		}
	}
}

// TestNumbersThatAreNone adds by numbers of no row and of another store, and rows that are refused;
// the step does not change.
func TestNumbersThatAreNone(t *testing.T) {
	s := newStore(t, Config{Dim: 2, Exp: DefaultExp})
	if err := s.Push([]uint64{10, 11}, []float32{1, 2, 3, 4}); err != nil {
		t.Fatal(err)
	}
	var file bytes.Buffer
	if err := s.WriteCheckpoint(&file, nil); err != nil {
		t.Fatal(err)
	}
	restored, _, err := ReadCheckpoint(&file, s.cfg)
	if err != nil {
		t.Fatal(err)
	}
	if restored.numbering == s.numbering {
		t.Error("a store of a checkpoint has the same numbering") // by chance in one of 2^32 runs
	}
	with := func(change func(wire.Rows), numbers ...uint32) wire.Rows {
		rows := coldAt(s, s.numbering, numbers...)
		change(rows)
		return rows
	}
	other := coldAt(newStore(t, Config{Dim: 1, Exp: DefaultExp}), s.numbering, 1)
	before := pending(s)
	for name, c := range map[string]struct {
		rows wire.Rows
		want wire.Refusal
	}{
		"dimension":  {other, wire.Refusal{Code: wire.CodeDimension, Value: 2}},
		"numbering":  {coldAt(s, restored.numbering, 1), wire.Refusal{Code: wire.CodeNumbering, Value: s.numbering}},
		"zero":       {coldAt(s, s.numbering, 1, 0), wire.Refusal{Code: wire.CodeRowNumber, Index: 1, Value: 2}},
		"beyond":     {coldAt(s, s.numbering, 1, 2, 3), wire.Refusal{Code: wire.CodeRowNumber, Index: 2, Value: 2}},
		"largest":    {coldAt(s, s.numbering, math.MaxUint32), wire.Refusal{Code: wire.CodeRowNumber, Value: 2}},
		"not finite": {with(func(r wire.Rows) { r.SetRow(1, []float32{1, float32(math.NaN())}) }, 1, 2), wire.Refusal{Code: wire.CodeNotFinite, Index: 3}},
		"range":      {with(func(r wire.Rows) { r.SetRow(1, []float32{1 << 20, 1}) }, 1, 2), wire.Refusal{Code: wire.CodeOverflow, Index: 2}},
		"sum":        {with(func(r wire.Rows) { r.SetRow(0, []float32{130000, 1}); r.SetRow(1, []float32{130000, 1}) }, 2, 2), wire.Refusal{Code: wire.CodeOverflow, Index: 2}},
	} {
		var got wire.Refusal
		if err := s.AccumulateAt(c.rows); !errors.As(err, &got) || got != c.want {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if diff := cmp.Diff(before, pending(s)); diff != "" {
			t.Fatalf("%s: the step has changed: %s", name, diff)
		}
	}
}

// TestAccumulateAtAllocatesNothing adds to and looks up existing rows.
func TestAccumulateAtAllocatesNothing(t *testing.T) {
	s := newStore(t, Config{Dim: 2, Exp: DefaultExp})
	keys, numbers := []uint64{10, 11}, make([]uint32, 2)
	if err := s.Push(keys, make([]float32, 4)); err != nil {
		t.Fatal(err)
	}
	rows := coldAt(s, s.numbering, 1, 2)
	if n := testing.AllocsPerRun(100, func() {
		s.Find(keys, numbers)
		if err := s.AccumulateAt(rows); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
