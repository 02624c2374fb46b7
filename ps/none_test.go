// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/libra-ina/libra/internal/num/fixedpoint"
	"github.com/libra-ina/libra/wire"
)

var none = Optimizer{Method: None}

// both checks that two calls had the same result.
func both(t *rapid.T, a, b error) {
	if (a == nil) != (b == nil) || a != nil && a.Error() != b.Error() {
		t.Fatalf("%v; without an optimiser %v", a, b)
	}
}

// stepSums returns the sums of the open step.
func stepSums(t interface {
	Helper()
	Fatal(...any)
}, s *Store) ([]uint64, []float32) {
	t.Helper()
	keys, sums, err := s.AppendSums(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return keys, sums
}

// Steps of a store without an optimiser have the same sums, bit for bit, as those of one with, of
// gradients that the unit holds, whatever their contents: batches, refused batches and harvests;
// and however they end.
func TestSumsWithoutOptimizer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := config(t)
		with, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		cfg.Optimizer = none
		without, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		hot := []uint64{3, 5, math.MaxUint64}
		format := fixedpoint.Format{Exp: cfg.Exp}
		for step := range uint64(rapid.IntRange(1, 10).Draw(t, "steps")) {
			for i, p := range parts(t, cfg.Dim) {
				for i, x := range p.grads {
					n, err := format.FromFloat32(x)
					if err != nil {
						t.Fatal(err)
					}
					p.grads[i] = format.ToFloat32(n)
				}
				switch rapid.SampledFrom([]string{"batch", "batch", "refused", "harvest"}).Draw(t, "kind") {
				case "batch":
					both(t, with.Accumulate(cold(p.keys, p.grads)), without.Accumulate(cold(p.keys, p.grads)))
				case "refused":
					twice := slices.Concat(p.keys, []uint64{p.keys[0], p.keys[0]})
					grads := slices.Concat(p.grads, slices.Repeat([]float32{float32(math.NaN())}, 2*cfg.Dim))
					a, b := with.Push(twice, grads), without.Push(twice, grads)
					if !errors.Is(a, fixedpoint.ErrNotFinite) {
						t.Fatal(a)
					}
					both(t, a, b)
				case "harvest":
					sums := rapid.SliceOfN(rapid.Int64Range(-1<<40, 1<<40), len(hot)*cfg.Dim, len(hot)*cfg.Dim).Draw(t, "harvest")
					h := Harvest{Instance: 1, Number: 100*step + uint64(i) + 1, Sums: sums}
					_, a := with.ApplyHarvest(h, hot)
					_, b := without.ApplyHarvest(h, hot)
					both(t, a, b)
				}
			}
			if rapid.Bool().Draw(t, "look") { // which makes the step summed
				if diff := cmp.Diff(pending(with), pending(without)); diff != "" {
					t.Fatal(diff)
				}
			}
			keys, sums := stepSums(t, with)
			otherKeys, otherSums := stepSums(t, without)
			if !slices.Equal(keys, otherKeys) || !slices.EqualFunc(sums, otherSums, sameBits) {
				t.Fatalf("%v, %v; without an optimiser %v, %v", keys, sums, otherKeys, otherSums)
			}
			if rapid.Bool().Draw(t, "drop") {
				with.Drop()
				without.Drop()
			} else if a, b := with.Commit(), without.Commit(); a != b {
				t.Fatalf("%d and %d rows are committed", a, b)
			}
			if rapid.Bool().Draw(t, "room") {
				with.MakeRoom()
				without.MakeRoom()
			}
			if rapid.IntRange(0, 3).Draw(t, "resume") == 0 {
				without = resumed(t, without)
			}
			if without.Len() != 0 || lastHarvest(without) != lastHarvest(with) {
				t.Fatalf("%d rows are left; the last harvest is %d, and %d of the other", without.Len(), lastHarvest(without), lastHarvest(with))
			}
		}
	})
}

// resumed returns the store that continues from a checkpoint without rows.
func resumed(t interface{ Fatal(...any) }, s *Store) *Store {
	var file bytes.Buffer
	if err := s.WriteCheckpoint(&file, []byte("step")); err != nil {
		t.Fatal(err)
	}
	if n := checkpointHeadLen + 4 + len("step") + 4; file.Len() != n {
		t.Fatal(file.Len(), "bytes, not", n)
	}
	r, attachment, err := ReadCheckpoint(&file, s.cfg)
	if err != nil || string(attachment) != "step" {
		t.Fatal(attachment, err)
	}
	return r
}

// Weights are the initial ones, whatever was pushed, and no checkpoint or worker can name a row for
// them.
func TestWithoutOptimizerThereAreNoWeights(t *testing.T) {
	cfg := Config{Dim: 2, Exp: DefaultExp, Optimizer: none, Init: Init{Seed: 7}}
	s, fresh := newStore(t, cfg), newStore(t, Config{Dim: 2, Exp: DefaultExp, Init: Init{Seed: 7}})
	check := func(open int) {
		t.Helper()
		if got, want := read(s, 10), read(fresh, 10); !slices.Equal(got, want) {
			t.Errorf("weights %v, not the initial ones, %v", got, want)
		}
		numbers := []uint32{9}
		if s.Find([]uint64{10}, numbers); numbers[0] != 0 {
			t.Errorf("the row has number %d", numbers[0])
		}
		var refusal wire.Refusal
		if err := s.AccumulateAt(coldAt(s, s.numbering, 1)); !errors.As(err, &refusal) || refusal != (wire.Refusal{Code: wire.CodeRowNumber}) {
			t.Errorf("a row is named by number: %v", err)
		}
		for key := range s.Rows() {
			t.Errorf("key %d has weights", key)
		}
		if s.Len() != open || s.Hash() != fresh.Hash() {
			t.Errorf("%d rows, not %d; hash %x", s.Len(), open, s.Hash())
		}
		if resumed(t, s).Len() != 0 {
			t.Error("a checkpoint has rows")
		}
		if all, err := Merge(s, s); err != nil || all.Len() != 0 {
			t.Errorf("%v rows together, %v", all.Len(), err)
		}
	}
	check(0)
	if err := s.Push([]uint64{10, 11}, []float32{1, 2, 3, 4}); err != nil {
		t.Fatal(err)
	}
	check(2)
	s.Commit()
	check(0)

	var file bytes.Buffer
	if err := s.WriteCheckpoint(&file, nil); err != nil {
		t.Fatal(err)
	}
	if _, _, err := ReadCheckpoint(&file, fresh.cfg); !errors.Is(err, ErrMismatch) {
		t.Errorf("read with an optimiser: %v", err)
	}
	if err := fresh.Push([]uint64{10}, []float32{1, 2}); err != nil {
		t.Fatal(err)
	}
	fresh.cfg.Optimizer = none // rows in a file that must not have any
	p := fresh.Snapshot(nil)
	p.rows = 1
	if err := p.Write(&file, alone); err != nil {
		t.Fatal(err)
	}
	if _, _, err := ReadCheckpoint(&file, cfg); !errors.Is(err, ErrCorrupt) {
		t.Errorf("rows without weights: %v", err)
	}
}

// The limit applies to a step's rows.
func TestMaxRowsOfAStep(t *testing.T) {
	s := newStore(t, Config{Dim: 1, Exp: DefaultExp, Optimizer: none, MaxRows: 2})
	for step := range uint64(3) {
		if err := s.Push([]uint64{2 * step, 2*step + 1}, []float32{1, 2}); err != nil {
			t.Fatal(err)
		}
		if err := s.Push([]uint64{99}, []float32{1}); !errors.Is(err, ErrFull) {
			t.Errorf("a third row: %v", err)
		}
		if n := s.Commit(); n != 2 {
			t.Errorf("%d rows in the step", n)
		}
	}
}

// The memory is that of the largest step, however many keys there have been, and no step allocates.
func TestMemoryOfStepsWithoutOptimizer(t *testing.T) {
	const most, batch = 20_000, 100
	s := newStore(t, Config{Dim: 1, Exp: DefaultExp, Optimizer: none})
	rng := rand.New(rand.NewPCG(1, 2))
	keys, grads := make([]uint64, batch), gradients(batch)
	grads[0], grads[1] = 1e-30, 1e30 // which no unit holds
	var sumKeys []uint64
	var sums []float32
	step := func(rows int) {
		for range rows / batch {
			for i := range keys {
				keys[i] = rng.Uint64()
			}
			if err := s.Push(keys, grads); err != nil {
				t.Fatal(err)
			}
		}
		var err error
		sumKeys, sums, err = s.AppendSums(sumKeys[:0], sums[:0])
		if err != nil || len(sumKeys) != rows || s.Commit() != rows {
			t.Fatalf("%d sums of %d rows", len(sumKeys), rows)
		}
		s.MakeRoom()
	}
	step(most)
	room, directory, wide := s.rows.room, len(s.index.dir), len(s.wide.sums)
	if n := testing.AllocsPerRun(100, func() { step(rng.IntN(most/batch) * batch) }); n != 0 {
		t.Errorf("%v allocations a step", n)
	}
	if s.rows.room != room || len(s.index.dir) != directory || len(s.wide.sums) != wide {
		t.Errorf("room for %d rows and %d segments, after the first step %d and %d", s.rows.room, len(s.index.dir), room, directory)
	}
}
