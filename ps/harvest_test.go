package ps

import (
	"errors"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestHarvestIsAppliedOnce(t *testing.T) {
	hot := []uint64{70, 50, 90}
	for name, h := range map[string]Harvest{
		"all ranks":  {ID: 3, Sums: []int64{1, 2, 0, 0, 5}},
		"some ranks": {ID: 3, Ranks: []uint32{4, 0, 1}, Sums: []int64{5, 1, 2}},
		"rank twice": {ID: 3, Ranks: []uint32{0, 1, 4, 0}, Sums: []int64{7, 2, 5, -6}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, Config{Dim: 2})
			for _, first := range []bool{true, false} {
				if applied, err := s.ApplyHarvest(h, hot); applied != first || err != nil {
					t.Errorf("applied %v, %v; want %v", applied, err, first)
				}
			}
			want := map[uint64][]int64{70: {1, 2}, 90: {5, 0}}
			if diff := cmp.Diff(want, pending(s)); diff != "" {
				t.Error(diff)
			}
			h.ID = 2
			if applied, err := s.ApplyHarvest(h, hot); applied || err != nil {
				t.Errorf("an older harvest: %v, %v", applied, err)
			}
			h.ID = 4
			if applied, err := s.ApplyHarvest(h, hot); !applied || err != nil || s.LastHarvest() != 4 {
				t.Errorf("the next harvest: %v, %v; last is %d", applied, err, s.LastHarvest())
			}
		})
	}
}

func TestBadHarvestChangesNothing(t *testing.T) {
	hot := []uint64{70, 50}
	s := newStore(t, Config{Dim: 2})
	if err := s.AddSum(50, 1, math.MaxInt64); err != nil {
		t.Fatal(err)
	}
	before := pending(s)
	for name, test := range map[string]struct {
		harvest  Harvest
		overflow bool
	}{
		"rank beyond the hot set": {Harvest{ID: 1, Sums: []int64{1, 0, 0, 0, 1}}, false},
		"lengths":                 {Harvest{ID: 1, Ranks: []uint32{1}, Sums: []int64{1, 2}}, false},
		"overflow":                {Harvest{ID: 1, Sums: []int64{1, 1, 1, 1}}, true},
		"overflow by repetition":  {Harvest{ID: 1, Ranks: []uint32{0, 0}, Sums: []int64{math.MinInt64, -1}}, true},
	} {
		applied, err := s.ApplyHarvest(test.harvest, hot)
		if applied || err == nil || errors.Is(err, ErrOverflow) != test.overflow {
			t.Errorf("%s: %v, %v", name, applied, err)
		}
		if diff := cmp.Diff(before, pending(s)); diff != "" || s.LastHarvest() != 0 || s.Len() != 1 {
			t.Errorf("%s: last harvest %d, %d rows: %s", name, s.LastHarvest(), s.Len(), diff)
		}
	}
	// A zero beyond the hot set is what an unused slot holds.
	if applied, err := s.ApplyHarvest(Harvest{ID: 1, Sums: make([]int64, 100)}, hot); !applied || err != nil {
		t.Errorf("unused slots: %v, %v", applied, err)
	}
}
