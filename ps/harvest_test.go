// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"bytes"
	"errors"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestHarvestIsAppliedOnce(t *testing.T) {
	hot := []uint64{70, 50, 90}
	for name, h := range map[string]Harvest{
		"all ranks":  {Number: 3, Sums: []int64{1, 2, 0, 0, 5}},
		"some ranks": {Number: 3, Ranks: []uint32{4, 0, 1}, Sums: []int64{5, 1, 2}},
		"rank twice": {Number: 3, Ranks: []uint32{0, 1, 4, 0}, Sums: []int64{7, 2, 5, -6}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, Config{Dim: 2, Exp: DefaultExp})
			for _, first := range []bool{true, false} {
				if applied, err := s.ApplyHarvest(h, hot); applied != first || err != nil {
					t.Errorf("applied %v, %v; want %v", applied, err, first)
				}
			}
			want := map[uint64][]int64{70: {1, 2}, 90: {5, 0}}
			if diff := cmp.Diff(want, pending(s)); diff != "" {
				t.Error(diff)
			}
			h.Number = 2
			if applied, err := s.ApplyHarvest(h, hot); applied || err != nil {
				t.Errorf("an older harvest: %v, %v", applied, err)
			}
			h.Number = 4
			if applied, err := s.ApplyHarvest(h, hot); !applied || err != nil || lastHarvest(s) != 4 {
				t.Errorf("the next harvest: %v, %v; last is %d", applied, err, lastHarvest(s))
			}
		})
	}
}

// Rows of one column have a separate loop: harvests of them follow the same rules.
func TestHarvestOfScalars(t *testing.T) {
	hot := []uint64{70, 50, 90}
	for name, h := range map[string]Harvest{
		"all ranks":  {Sums: []int64{1, 0, 5}},
		"some ranks": {Ranks: []uint32{2, 1, 0}, Sums: []int64{5, 0, 1}},
		"rank twice": {Ranks: []uint32{0, 2, 0}, Sums: []int64{7, 5, -6}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, Config{Dim: 1, Exp: DefaultExp})
			for n := range int64(3) { // rows are new, then known, then in a step that has begun
				h.Number++
				if applied, err := s.ApplyHarvest(h, hot); !applied || err != nil {
					t.Fatalf("harvest %d: %v, %v", h.Number, applied, err)
				}
				times := max(1, n)
				if diff := cmp.Diff(map[uint64][]int64{70: {times}, 90: {5 * times}}, pending(s)); diff != "" {
					t.Error(diff)
				}
				if n == 0 {
					s.Commit()
				}
			}
		})
	}
	for name, h := range map[string]Harvest{
		"a rank beyond the hot set": {Ranks: []uint32{0, 3}, Sums: []int64{1, 1}},
		"a sum beyond the hot set":  {Sums: []int64{1, 0, 0, 1}},
		"an overflow":               {Ranks: []uint32{2, 0, 0}, Sums: []int64{1, math.MaxInt64, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, Config{Dim: 1, Exp: DefaultExp})
			h.Number = 1
			if applied, err := s.ApplyHarvest(h, hot); applied || err == nil {
				t.Errorf("applied %v, %v", applied, err)
			}
			if len(pending(s)) > 0 || s.Len() > 0 || lastHarvest(s) != 0 {
				t.Errorf("left behind: %v in %d rows, harvest %d", pending(s), s.Len(), lastHarvest(s))
			}
		})
	}
}

func lastHarvest(s *Store) uint64 {
	_, number := s.LastHarvest()
	return number
}

// The shares of a job take turns with their harvests. One that comes again after that of another
// share is not added again.
func TestHarvestNumbersOfShares(t *testing.T) {
	hot := []uint64{70}
	s := newStore(t, Config{Dim: 1, Exp: DefaultExp})
	s.BeginGeneration(8, 9)
	applied := int64(0)
	for i, h := range []struct {
		instance, number uint64
		fresh            bool
	}{{8, 1, true}, {9, 1, true}, {8, 1, false}, {9, 1, false}, {8, 2, true}, {9, 1, false}, {9, 2, true}, {8, 2, false}} {
		fresh, err := s.ApplyHarvest(Harvest{Instance: h.instance, Number: h.number, Sums: []int64{1}}, hot)
		if fresh != h.fresh || err != nil {
			t.Errorf("%d: %+v: %v, %v", i, h, fresh, err)
		}
		if h.fresh {
			applied++
		}
		if got := pendingUnits(s, 70); got != applied {
			t.Fatalf("%d: %+v: the sum is %d, want %d", i, h, got, applied)
		}
	}
	s.Commit()
	again, _, err := ReadCheckpoint(bytes.NewReader(encode(t, s, nil)), Config{Dim: 1, Exp: DefaultExp})
	if err != nil {
		t.Fatal(err)
	}
	again.BeginGeneration(10, 11) // a restart opens new instances, whose numbers begin again
	for _, instance := range []uint64{10, 11} {
		if fresh, err := again.ApplyHarvest(Harvest{Instance: instance, Number: 1, Sums: []int64{1}}, hot); !fresh || err != nil {
			t.Errorf("instance %d: %v, %v", instance, fresh, err)
		}
	}
}

// An aggregator counts the harvests of each instance of a job from 1, and a store
// outlives an instance in its checkpoint.
func TestHarvestNumbersBelongToAnInstance(t *testing.T) {
	hot := []uint64{70}
	s := newStore(t, Config{Dim: 1, Exp: DefaultExp})
	apply := func(instance, number uint64, want bool) {
		t.Helper()
		if applied, err := s.ApplyHarvest(Harvest{Instance: instance, Number: number, Sums: []int64{1}}, hot); applied != want || err != nil {
			t.Fatalf("harvest %d of instance %d: %v, %v; want %v", number, instance, applied, err, want)
		}
	}
	apply(8, 64, true)
	apply(8, 64, false)
	apply(8, 63, false)
	s.Commit()
	s, _, err := ReadCheckpoint(bytes.NewReader(encode(t, s, nil)), Config{Dim: 1, Exp: DefaultExp})
	if err != nil {
		t.Fatal(err)
	}
	if instance, number := s.LastHarvest(); instance != 8 || number != 64 {
		t.Errorf("restored: harvest %d of instance %d", number, instance)
	}
	apply(8, 64, false)
	apply(3, 1, true)
	apply(3, 1, false)
	apply(3, 2, true)
	if diff := cmp.Diff(map[uint64][]int64{70: {2}}, pending(s)); diff != "" {
		t.Error(diff)
	}
}

func TestBadHarvestChangesNothing(t *testing.T) {
	hot := []uint64{70, 50}
	s := newStore(t, Config{Dim: 2, Exp: DefaultExp})
	if err := s.AddSum(50, 1, math.MaxInt64); err != nil {
		t.Fatal(err)
	}
	before := pending(s)
	for name, test := range map[string]struct {
		harvest  Harvest
		overflow bool
	}{
		"rank beyond the hot set": {Harvest{Number: 1, Sums: []int64{1, 0, 0, 0, 1}}, false},
		"lengths":                 {Harvest{Number: 1, Ranks: []uint32{1}, Sums: []int64{1, 2}}, false},
		"overflow":                {Harvest{Number: 1, Sums: []int64{1, 1, 1, 1}}, true},
		"overflow by repetition":  {Harvest{Number: 1, Ranks: []uint32{0, 0}, Sums: []int64{math.MinInt64, -1}}, true},
	} {
		applied, err := s.ApplyHarvest(test.harvest, hot)
		if applied || err == nil || errors.Is(err, ErrOverflow) != test.overflow {
			t.Errorf("%s: %v, %v", name, applied, err)
		}
		if diff := cmp.Diff(before, pending(s)); diff != "" || lastHarvest(s) != 0 || s.Len() != 1 {
			t.Errorf("%s: last harvest %d, %d rows: %s", name, lastHarvest(s), s.Len(), diff)
		}
	}
	// A zero beyond the hot set is the content of an unused slot.
	if applied, err := s.ApplyHarvest(Harvest{Number: 1, Sums: make([]int64, 100)}, hot); !applied || err != nil {
		t.Errorf("unused slots: %v, %v", applied, err)
	}
}

// Ranks that belong to other keys than in the previous harvest, or whose rows were undone and now
// belong to another key, are added to the right keys.
func TestHarvestAfterTheRowsHaveChanged(t *testing.T) {
	s := newStore(t, Config{Dim: 1, Exp: DefaultExp})
	number := uint64(0)
	harvest := func(hot []uint64, sums ...int64) error {
		number++
		_, err := s.ApplyHarvest(Harvest{Number: number, Sums: sums}, hot)
		return err
	}
	want := map[uint64][]int64{}
	for _, hot := range [][]uint64{{1, 2, 3}, {1, 2, 3}, {3, 1, 2}, {3, 1, 2, 4}, {4, 3, 2, 1}} {
		for range 2 {
			var sums []int64
			for rank, key := range hot {
				sums = append(sums, int64(10*rank+1))
				if want[key] == nil {
					want[key] = []int64{0}
				}
				want[key][0] += int64(10*rank + 1)
			}
			if err := harvest(hot, sums...); err != nil {
				t.Fatal(err)
			}
		}
	}
	// The rows of 5 and 6 are undone; then 7 gets the former's.
	if err := harvest([]uint64{5, 6, 1}, 1, 1, math.MaxInt64); !errors.Is(err, ErrOverflow) {
		t.Fatal(err)
	}
	for range 2 {
		if err := harvest([]uint64{7, 5, 6}, 1, 2, 3); err != nil {
			t.Fatal(err)
		}
	}
	want[7], want[5], want[6] = []int64{2}, []int64{4}, []int64{6}
	// Those of 8 and 9 are undone, and then a push that has placed none; then 10 gets the former's.
	hot := []uint64{8, 9, 1}
	if err := harvest(hot, 1, 1, math.MaxInt64); !errors.Is(err, ErrOverflow) {
		t.Fatal(err)
	}
	if err := s.AddSum(1, 0, math.MaxInt64); !errors.Is(err, ErrOverflow) {
		t.Fatal(err)
	}
	if err := s.AddSum(10, 0, 5); err != nil {
		t.Fatal(err)
	}
	if err := harvest(hot, 1, 2, 3); err != nil {
		t.Fatal(err)
	}
	want[10], want[8], want[9], want[1] = []int64{5}, []int64{1}, []int64{2}, []int64{want[1][0] + 3}
	if diff := cmp.Diff(want, pending(s)); diff != "" {
		t.Error(diff)
	}
}

// A dropped step takes its harvest with it: checkpoints of the store say that the harvest was
// taken, so that no later step contains it.
func TestDroppedHarvestIsNotTakenAgain(t *testing.T) {
	for _, end := range []func(*Store){(*Store).Drop, func(s *Store) { s.Commit() }} {
		cfg := Config{Dim: 1, Exp: DefaultExp}
		s, hot := newStore(t, cfg), []uint64{1}
		h := Harvest{Instance: 5, Number: 3, Sums: []int64{7}}
		if applied, err := s.ApplyHarvest(h, hot); !applied || err != nil {
			t.Fatal(applied, err)
		}
		end(s)
		restored, _, err := ReadCheckpoint(bytes.NewReader(encode(t, s, nil)), cfg)
		if err != nil {
			t.Fatal(err)
		}
		if applied, err := restored.ApplyHarvest(h, hot); applied || err != nil {
			t.Errorf("the harvest is taken again: %v, %v", applied, err)
		}
	}
}
