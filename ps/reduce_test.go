// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"math"
	"slices"
	"testing"
)

// The sums of a step come in the order of their keys, each the float32 nearest to the exact one, without rows of zeros; and
// a step that is dropped is as if it had never been.
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
	if keys, sums := s.AppendSums(nil, nil); len(keys)+len(sums) != 0 || s.Hash() != before {
		t.Errorf("a dropped step leaves %v, %v", keys, sums)
	}
	push([]uint64{math.MaxUint64, 7, 3}, 1, 2, 0.5, 0, 0x1p-30, 1<<10)
	push([]uint64{7, 5, 3}, -0.5, 0, 1, 1, 1<<16, 0)
	push([]uint64{5}, -1, -1)
	keys, sums := s.AppendSums([]uint64{9}, []float32{9})
	if !slices.Equal(keys, []uint64{9, 3, math.MaxUint64}) || !slices.Equal(sums, []float32{9, 1 << 16, 1 << 10, 1, 2}) {
		t.Errorf("the step has %v, %v", keys, sums)
	}
	if n := s.Commit(); n != 4 {
		t.Errorf("%d rows are committed", n)
	}
	if keys, _ := s.AppendSums(nil, nil); len(keys) != 0 {
		t.Errorf("the next step has %v", keys)
	}
}
