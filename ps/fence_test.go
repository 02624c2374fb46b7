// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"errors"
	"testing"
)

// A store takes the harvests of one generation only, and of none without an aggregator.
func TestFence(t *testing.T) {
	s, err := New(Config{Dim: 1, Exp: DefaultExp})
	if err != nil {
		t.Fatal(err)
	}
	hot := []uint64{7}
	apply := func(instance, number uint64) error {
		_, err := s.ApplyHarvest(Harvest{Instance: instance, Number: number, Sums: []int64{1}}, hot)
		return err
	}
	for _, step := range []struct {
		generation []uint64
		instance   uint64
		taken      bool
	}{
		{[]uint64{5}, 5, true}, {[]uint64{5}, 6, false}, {[]uint64{6}, 5, false}, {[]uint64{6}, 6, true},
		{nil, 6, false}, {nil, 7, false}, {nil, 0, false}, {[]uint64{8, 9}, 8, true}, {[]uint64{8, 9}, 9, true},
		{[]uint64{8, 9}, 6, false},
	} {
		s.BeginGeneration(step.generation...)
		before := pendingUnits(s, 7)
		err := apply(step.instance, 1)
		if (err == nil) != step.taken || !step.taken && !errors.Is(err, ErrFenced) {
			t.Errorf("%+v: %v", step, err)
		}
		if after := pendingUnits(s, 7); !step.taken && after != before {
			t.Errorf("%+v: the refused harvest has changed %d to %d", step, before, after)
		}
	}
}

func pendingUnits(s *Store, key uint64) int64 {
	for k, sums := range s.Pending() {
		if k == key {
			return sums[0]
		}
	}
	return 0
}

// A full store takes gradients of the rows that it has to take, and of no other new row.
func TestFullStoreTakesSettledRows(t *testing.T) {
	for _, method := range []Method{SGD, None} {
		s, err := New(Config{Dim: 1, Exp: DefaultExp, MaxRows: 2, Optimizer: Optimizer{Method: method}})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Push([]uint64{1, 2}, []float32{1, 1}); err != nil {
			t.Fatal(err)
		}
		s.TakeAlways([]uint64{7, 8})
		for key, taken := range map[uint64]bool{7: true, 8: true, 9: false, 1: true} {
			if err := s.Push([]uint64{key}, []float32{1}); (err == nil) != taken || !taken && !errors.Is(err, ErrFull) {
				t.Errorf("%v, key %d: %v", method, key, err)
			}
		}
		if s.Len() != 4 {
			t.Errorf("%v: %d rows", method, s.Len())
		}
	}
}
