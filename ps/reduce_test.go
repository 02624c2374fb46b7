// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"bytes"
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// The sums of a step are in the order of their keys, each the float32 nearest to the exact one,
// without rows of zeros; and a dropped step has no effect.
func TestSumsOfAStep(t *testing.T) {
	s, err := New(Config{Dim: 2, Exp: DefaultExp, Optimizer: Optimizer{Method: Adagrad}})
	if err != nil {
		t.Fatal(err)
	}
	push := func(keys []uint64, grads ...float32) {
		t.Helper()
		if err := s.Push(keys, grads); err != nil {
			t.Fatal(err)
		}
	}
	push([]uint64{math.MaxUint64, 7, 3}, 1, 2, 0.5, 0, 0x1p-30, 1<<10)
	before := s.Hash()
	s.Drop()
	if keys, sums := stepSums(t, s); len(keys)+len(sums) != 0 || s.Hash() != before {
		t.Errorf("a dropped step leaves %v, %v", keys, sums)
	}
	push([]uint64{math.MaxUint64, 7, 3}, 1, 2, 0.5, 0, 0x1p-30, 1<<10)
	push([]uint64{7, 5, 3}, -0.5, 0, 1, 1, 1<<16, 0)
	push([]uint64{5}, -1, -1)
	keys, sums, err := s.AppendSums([]uint64{9}, []float32{9})
	if err != nil || !slices.Equal(keys, []uint64{9, 3, math.MaxUint64}) || !slices.Equal(sums, []float32{9, 1 << 16, 1 << 10, 1, 2}) {
		t.Errorf("the step has %v, %v", keys, sums)
	}
	if n := s.Commit(); n != 4 {
		t.Errorf("%d rows are committed", n)
	}
	if keys, _ := stepSums(t, s); len(keys) != 0 {
		t.Errorf("the next step has %v", keys)
	}
}

// A harvest of a dropped step is not applied by the store that resumes: its sums are of gradients
// that were dropped.
func TestDroppedHarvestStaysDropped(t *testing.T) {
	cfg, hot := Config{Dim: 1, Exp: DefaultExp}, []uint64{7}
	s := newStore(t, cfg)
	if applied, err := s.ApplyHarvest(Harvest{Instance: 1, Number: 1, Sums: []int64{5}}, hot); !applied || err != nil {
		t.Fatalf("%v, %v", applied, err)
	}
	s.Drop()
	var file bytes.Buffer
	if err := s.WriteCheckpoint(&file, nil); err != nil {
		t.Fatal(err)
	}
	r, _, err := ReadCheckpoint(&file, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if applied, err := r.ApplyHarvest(Harvest{Instance: 1, Number: 1, Sums: []int64{5}}, hot); applied || err != nil || lastHarvest(r) != 1 {
		t.Errorf("the harvest comes again: applied %v, %v; the last is %d", applied, err, lastHarvest(r))
	}
}

// Rows are sorted by key, whichever bits differ.
func TestSortByKey(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, mask := range []uint64{0, 1, 0xff, 0x7ff, 0xfff, 1 << 63, 0xff000000ff, 0xf0f0f0f0f0f0f0f0, math.MaxUint64} {
		for _, n := range []int{0, 1, 2, 3, 255, 256, 1000} {
			rows, other := make([]keyedRow, n), make([]keyedRow, n)
			for i := range rows {
				rows[i] = keyedRow{key: r.Uint64()&mask | 1<<20&^mask, row: i}
			}
			want := slices.Clone(rows)
			slices.SortStableFunc(want, func(a, b keyedRow) int { return cmp.Compare(a.key, b.key) })
			if got := sortByKey(rows, other); !slices.Equal(got, want) {
				t.Errorf("%d keys that differ in %x are not in order", n, mask)
			}
		}
	}
}
