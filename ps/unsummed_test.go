// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// unsummedStore returns a store of one column without an optimiser, whose unit is 1.
func unsummedStore(t *testing.T, maxRows int) *Store {
	return newStore(t, Config{Dim: 1, Exp: -1, Optimizer: none, MaxRows: maxRows})
}

// noted adds units of rows of one column, and checks whether the step is still unsummed.
func noted(t *testing.T, s *Store, want bool, keys []uint64, units ...int64) {
	t.Helper()
	_, own := s.scratchRows(len(keys))
	copy(own, units)
	if _, err := s.applyUnits(keys, own, s.cfg.MaxRows); err != nil {
		t.Fatal(err)
	}
	if s.unsummed.closed == want {
		t.Errorf("noted: %v, want %v", !want, want)
	}
}

// Units that might have an overflow are added at once, after all that came before; whichever way
// they are added, sums are the same.
func TestUnsummedUnits(t *testing.T) {
	const most = unsummedMost - 5*3 - 3 // what is left: three keys that do not ascend, then two that do
	for _, n := range []int64{0, 225 << 46, most - 1, -most, most, -most - 1, math.MaxInt64, math.MinInt64 + 8} {
		s := unsummedStore(t, 0)
		noted(t, s, true, []uint64{8, 7, 8}, 1, 2, -5)
		noted(t, s, true, []uint64{7, 8}, -3, 2)
		noted(t, s, n >= -most && n < most, []uint64{9}, n)
		if diff := cmp.Diff(map[uint64][]int64{7: {-1}, 8: {-2}, 9: {n}}, pending(s)); diff != "" {
			t.Errorf("%d: %s", n, diff)
		}
		noted(t, s, false, []uint64{8}, 1) // Pending has had it summed
		s.Commit()
		noted(t, s, true, []uint64{8}, 1)
	}
}

// A key that may come often in a frame counts as often, and no sum is out of range by it.
func TestUnsummedKeysThatComeAgain(t *testing.T) {
	const half = unsummedMost/2 - 1
	for name, keys := range map[string][]uint64{"twice": {6, 6}, "descending": {6, 5}} {
		s := unsummedStore(t, 0)
		noted(t, s, true, keys, half, half)
		noted(t, s, false, []uint64{6}, 0)
		if got := pending(s)[6][0]; name == "twice" && got != 2*half || name != "twice" && got != half {
			t.Errorf("%s: %d", name, got)
		}
	}
	s := unsummedStore(t, 0)
	noted(t, s, true, []uint64{5, 6}, half, half)
	noted(t, s, true, []uint64{5, 6}, half, -half)
	noted(t, s, false, []uint64{6}, 0)
}

// The bound may leave 64 bits as a whole: four such units of one key wrap around to a small sum.
func TestUnsummedBoundWrapsAround(t *testing.T) {
	const most = unsummedMost - 1 // its bound is 2^62, and that of three in any order is 3·2^62
	s := unsummedStore(t, 0)
	noted(t, s, true, []uint64{6}, most)
	noted(t, s, false, []uint64{6, 6, 5}, most, most, most)
	want := float32(3 * most / 2) // the unit is 1/2
	if keys, sums := stepSums(t, s); !slices.Equal(keys, []uint64{5, 6}) || !slices.Equal(sums, []float32{want / 3, want}) {
		t.Errorf("the sums of keys %v are %v, want %v and %v", keys, sums, want/3, want)
	}
}

// The number of rows that are not summed is bounded.
func TestUnsummedRows(t *testing.T) {
	keys, units := make([]uint64, unsummedRows-1), slices.Repeat([]int64{-1 << 20}, unsummedRows-1)
	for _, more := range []int{1, 2} {
		s := unsummedStore(t, 0)
		noted(t, s, true, keys, units...)
		noted(t, s, more == 1, keys[:more], units[:more]...)
		want := float32(-(unsummedRows - 1 + more)) * (1 << 19)
		if k, sums, err := s.AppendSums([]uint64{3}, []float32{4}); err != nil || !slices.Equal(k, []uint64{3, 0}) || !slices.Equal(sums, []float32{4, want}) {
			t.Errorf("%d more: %v, %v, want %v", more, k, sums, want)
		}
	}
}

// Rows of two columns are moved into the table whole, also beyond the rows that it takes at a time.
func TestUnsummedRowsOfTwoColumns(t *testing.T) {
	s := newStore(t, Config{Dim: 2, Exp: -1, Optimizer: none})
	keys, units, want := make([]uint64, 2*readBatch+1), make([]int64, 4*readBatch+2), map[uint64][]int64{}
	for i := range keys {
		keys[i], units[2*i], units[2*i+1] = uint64(i), int64(i), int64(-2*i)
		want[keys[i]] = units[2*i:][:2]
	}
	noted(t, s, true, keys, units...)
	if diff := cmp.Diff(want, pending(s)); diff != "" {
		t.Error(diff)
	}
}

// The bound of rows is that of different ones, however often each comes.
func TestUnsummedRowsAreCountedOnce(t *testing.T) {
	s := unsummedStore(t, 3)
	noted(t, s, true, []uint64{5, 5}, 1, 1)
	noted(t, s, true, []uint64{6}, 1)
	noted(t, s, false, []uint64{5, 7}, 1, 1)
	if err := s.Push([]uint64{5, 8}, []float32{1, 1}); !errors.Is(err, ErrFull) {
		t.Errorf("a fourth row: %v", err)
	}
	if keys, sums := stepSums(t, s); !slices.Equal(keys, []uint64{5, 6, 7}) || !slices.Equal(sums, []float32{1.5, 0.5, 0.5}) {
		t.Error(keys, sums)
	}
}

// Commit counts rows, also those whose sums are zero, whether they have been summed before or not,
// or only the first of them; a step that is dropped leaves nothing.
func TestUnsummedStepsEnd(t *testing.T) {
	s := unsummedStore(t, 0)
	for name, between := range map[string]func(){
		"not summed": func() {},
		"summed":     func() { stepSums(t, s) },
		"counted":    func() { s.Len() },
		"more":       func() { stepSums(t, s); noted(t, s, true, []uint64{2}, 1) },
	} {
		noted(t, s, true, []uint64{2, 3, 2}, 1, 0, 1)
		between()
		if n := s.Commit(); n != 2 {
			t.Errorf("%s: %d rows", name, n)
		}
		noted(t, s, true, []uint64{9}, 1)
		between()
		s.Drop()
		if keys, _ := stepSums(t, s); len(keys) != 0 || s.Len() != 0 || s.Commit() != 0 {
			t.Errorf("%s: after a step that was dropped there are %v", name, keys)
		}
	}
}
