// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/libra-ina/libra/internal/num/fixedpoint"
	"github.com/libra-ina/libra/wire"
)

// newStore returns a store or fails the test.
func newStore(tb testing.TB, cfg Config) *Store {
	tb.Helper()
	s, err := New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// cold returns the body of a COLD frame.
func cold(keys []uint64, grads []float32) wire.Rows {
	dim := len(grads) / len(keys)
	payload := make([]byte, wire.ColdLen(len(keys), dim))
	rows := wire.PutRows(payload, wire.TypeCold, len(keys), dim)
	for i, key := range keys {
		rows.SetKey(i, key)
		rows.SetRow(i, grads[i*dim:])
	}
	return rows
}

// pending returns the sums of the open step.
func pending(s *Store) map[uint64][]int64 {
	m := make(map[uint64][]int64)
	for key, sums := range s.Pending() {
		m[key] = slices.Clone(sums)
	}
	return m
}

func read(s *Store, key uint64) []float32 {
	dst := make([]float32, s.Config().Dim)
	s.Read([]uint64{key}, dst)
	return dst
}

func TestConfigIsChecked(t *testing.T) {
	for name, cfg := range map[string]Config{
		"no dimension":         {},
		"large dimension":      {Dim: 65536},
		"exponent":             {Dim: 1, Exp: -101},
		"optimiser":            {Dim: 1, Optimizer: Optimizer{Method: 3}},
		"capacity":             {Dim: 1, Capacity: -1},
		"learning rate":        {Dim: 1, Optimizer: Optimizer{LearningRate: -1}},
		"NaN epsilon":          {Dim: 1, Optimizer: Optimizer{Epsilon: float32(math.NaN())}},
		"infinite accumulator": {Dim: 1, Optimizer: Optimizer{InitialAccumulator: float32(math.Inf(1))}},
		"scale":                {Dim: 1, Init: Init{Scale: -1}},
	} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestMethodNames(t *testing.T) {
	for _, m := range []Method{SGD, Adagrad, None} {
		if got, err := ParseMethod(m.String()); err != nil || got != m {
			t.Errorf("ParseMethod(%q) = %v, %v", m, got, err)
		}
	}
	if _, err := ParseMethod("adam"); err == nil {
		t.Error("an unknown name is accepted")
	}
}

func TestUnseenRowsHaveInitialWeights(t *testing.T) {
	cfg := Config{Dim: 9, Exp: DefaultExp, Init: Init{Scale: 0.25, Seed: 7}}
	s := newStore(t, cfg)
	var sum, squares float64
	const rows = 2000
	for key := range uint64(rows) {
		w := read(s, key)
		if w[0] != 0 {
			t.Fatalf("column 0 of row %d is %g", key, w[0])
		}
		for _, v := range w[1:] {
			if v < -0.25 || v >= 0.25 {
				t.Fatalf("row %d: %g is outside the scale", key, v)
			}
			sum += float64(v)
			squares += float64(v) * float64(v)
		}
	}
	// A uniform variable in [-a, a) has mean 0 and variance a²/3; the bounds
	// are five standard errors.
	n := float64(rows * 8)
	variance := 0.25 * 0.25 / 3
	if mean := sum / n; math.Abs(mean) > 5*math.Sqrt(variance/n) {
		t.Errorf("mean %g", mean)
	}
	if got := squares / n; math.Abs(got-variance) > 5*variance/math.Sqrt(n) {
		t.Errorf("variance %g, want about %g", got, variance)
	}
	if s.Len() != 0 {
		t.Errorf("reading inserted %d rows", s.Len())
	}
	if cmp.Equal(read(s, 1), read(s, 2)) {
		t.Error("two rows have the same weights")
	}
	cfg.Init.Seed++
	if cmp.Equal(read(s, 1), read(newStore(t, cfg), 1)) {
		t.Error("the seed changes nothing")
	}
	// Inserting a row must not change its contents.
	before := read(s, 3)
	if err := s.AddSum(3, 0, 0); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, read(s, 3)); diff != "" || s.Len() != 1 {
		t.Errorf("after insertion, %d rows: %s", s.Len(), diff)
	}
}

func TestWeightsChangeAtCommitOnly(t *testing.T) {
	s := newStore(t, Config{Dim: 2, Exp: DefaultExp, Optimizer: Optimizer{LearningRate: 0.5}, Init: Init{Scale: 1e-9}})
	if err := s.Accumulate(cold([]uint64{5, 6, 5}, []float32{1, 2, 3, 4, 0.5, -1})); err != nil {
		t.Fatal(err)
	}
	if w := read(s, 5); w[0] != 0 {
		t.Errorf("weight before the commit: %g", w[0])
	}
	unit := int64(1) << -DefaultExp
	want := map[uint64][]int64{5: {3 * unit / 2, unit}, 6: {3 * unit, 4 * unit}}
	if diff := cmp.Diff(want, pending(s)); diff != "" {
		t.Errorf("pending (-want +got): %s", diff)
	}
	if n := s.Commit(); n != 2 {
		t.Errorf("committed %d rows, want 2", n)
	}
	if w := read(s, 5); w[0] != -0.75 {
		t.Errorf("weight %g, want -0.75", w[0])
	}
	if len(pending(s)) != 0 || s.Commit() != 0 {
		t.Error("the step is not empty after its commit")
	}
}

func TestRefusalsChangeNothing(t *testing.T) {
	big := float32(1 << 16)
	nan := float32(math.NaN())
	for _, test := range []struct {
		name  string
		keys  []uint64
		grads []float32
		want  wire.Refusal
	}{
		{"dimension", []uint64{1}, []float32{1}, wire.Refusal{Code: wire.CodeDimension, Value: 2}},
		{"NaN", []uint64{1, 9}, []float32{1, 1, 1, nan}, wire.Refusal{Code: wire.CodeNotFinite, Index: 3}},
		{"infinity", []uint64{9, 1}, []float32{1, float32(math.Inf(-1)), 1, 1}, wire.Refusal{Code: wire.CodeNotFinite, Index: 1}},
		{"value out of range", []uint64{9, 1}, []float32{1, 1, 2 * big, 1}, wire.Refusal{Code: wire.CodeOverflow, Index: 2}},
		{"sum with the step's", []uint64{9, 8, 1}, []float32{1, 1, 1, 1, 1, big}, wire.Refusal{Code: wire.CodeOverflow, Index: 5}},
		{"sum within the frame", []uint64{9, 8, 9}, []float32{-big, 1, 1, 1, -big - 1, 1}, wire.Refusal{Code: wire.CodeOverflow, Index: 4}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newStore(t, Config{Dim: 2, Exp: DefaultExp, Optimizer: Optimizer{Method: Adagrad}})
			if err := s.Push([]uint64{1, 2}, []float32{1, big, 1, 1}); err != nil {
				t.Fatal(err)
			}
			before := pending(s)
			err := s.Accumulate(cold(test.keys, test.grads))
			var got wire.Refusal
			if !errors.As(err, &got) || got != test.want {
				t.Errorf("error %#v, want %#v", err, test.want)
			}
			if diff := cmp.Diff(before, pending(s)); diff != "" || s.Len() != 2 {
				t.Errorf("%d rows; sums (-before +after): %s", s.Len(), diff)
			}
			// The rows that the frame would have inserted are new.
			if err := s.Push([]uint64{9, 8, 7}, []float32{1, 1, 1, 1, 1, 1}); err != nil {
				t.Fatal(err)
			}
			before[7], before[8], before[9] = units(1, 1), units(1, 1), units(1, 1)
			if diff := cmp.Diff(before, pending(s)); diff != "" || s.Commit() != 5 {
				t.Errorf("after another push: %s", diff)
			}
		})
	}
}

// TestOverflowOfPairs checks rows of one column.
func TestOverflowOfPairs(t *testing.T) {
	big := float32(1 << 16)
	s := newStore(t, Config{Dim: 1, Exp: DefaultExp})
	if err := s.Push([]uint64{1}, []float32{big}); err != nil {
		t.Fatal(err)
	}
	before := pending(s)
	err := s.Accumulate(cold([]uint64{9, 8, 1, 7}, []float32{1, 1, big, 1}))
	var got wire.Refusal
	if want := (wire.Refusal{Code: wire.CodeOverflow, Index: 2}); !errors.As(err, &got) || got != want {
		t.Errorf("error %#v, want %#v", err, want)
	}
	if diff := cmp.Diff(before, pending(s)); diff != "" || s.Len() != 1 {
		t.Errorf("%d rows; sums (-before +after): %s", s.Len(), diff)
	}
}

func units(values ...int64) []int64 {
	for i := range values {
		values[i] <<= -DefaultExp
	}
	return values
}

func TestPushErrors(t *testing.T) {
	s := newStore(t, Config{Dim: 2, Exp: DefaultExp})
	if err := s.Push([]uint64{1}, []float32{1}); err == nil {
		t.Error("a half row is accepted")
	}
	if err := s.Push([]uint64{1}, []float32{1, float32(math.Inf(1))}); !errors.Is(err, fixedpoint.ErrNotFinite) {
		t.Errorf("infinity: %v", err)
	}
	big := float32(1 << 16)
	if err := s.Push([]uint64{1, 1}, []float32{1, big, 1, big}); !errors.Is(err, ErrOverflow) {
		t.Errorf("overflow: %v", err)
	}
	if err := s.AddSum(1, 2, 1); err == nil {
		t.Error("column 2 of a row of 2 is accepted")
	}
	if err := s.AddSum(1, 1, math.MaxInt64); err != nil {
		t.Error(err)
	}
	if err := s.AddSum(1, 1, 1); !errors.Is(err, ErrOverflow) {
		t.Errorf("overflow: %v", err)
	}
	if diff := cmp.Diff(map[uint64][]int64{1: {0, math.MaxInt64}}, pending(s)); diff != "" {
		t.Error(diff)
	}
}

// config draws a small configuration.
func config(t *rapid.T) Config {
	return Config{
		Dim: rapid.IntRange(1, 5).Draw(t, "dim"),
		Exp: rapid.IntRange(-50, -20).Draw(t, "exp"),
		Optimizer: Optimizer{
			Method:       rapid.SampledFrom([]Method{SGD, Adagrad}).Draw(t, "method"),
			LearningRate: 0.1,
		},
		Init: Init{Seed: rapid.Uint64().Draw(t, "seed")},
	}
}

// TestHashIgnoresRowsWithoutChange compares a row whose gradients cancelled at
// the store with one whose gradients cancelled elsewhere.
func TestHashIgnoresRowsWithoutChange(t *testing.T) {
	a, b := newStore(t, Config{Dim: 3, Exp: DefaultExp}), newStore(t, Config{Dim: 3, Exp: DefaultExp})
	for _, s := range []*Store{a, b} {
		if err := s.Push([]uint64{4}, []float32{1, 2, 3}); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Push([]uint64{7, 7}, []float32{1, 2, 3, -1, -2, -3}); err != nil {
		t.Fatal(err)
	}
	before := b.Hash()
	a.Commit()
	b.Commit()
	if a.Hash() != b.Hash() {
		t.Error("a row that did not change is part of the hash")
	}
	if b.Hash() == before {
		t.Error("a row that changed is not part of the hash")
	}
}

func TestSteadyStateDoesNotAllocate(t *testing.T) {
	s := newStore(t, Config{Dim: 3, Exp: DefaultExp, Optimizer: Optimizer{Method: Adagrad}})
	keys := make([]uint64, 100)
	for i := range keys {
		keys[i] = uint64(i) << 40
	}
	grads := make([]float32, 3*len(keys))
	frame := cold(keys, grads)
	dst, read := make([]float32, 6), []uint64{keys[3], 1}
	step := func() {
		if err := s.Accumulate(frame); err != nil {
			t.Fatal(err)
		}
		if err := s.AddSum(keys[5], 1, 3); err != nil {
			t.Fatal(err)
		}
		s.Read(read, dst)
		s.Commit()
	}
	step()
	if n := testing.AllocsPerRun(100, step); n != 0 {
		t.Errorf("%g allocations in a step", n)
	}
}
