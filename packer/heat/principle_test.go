// SPDX-License-Identifier: Apache-2.0

package heat

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/packer"
)

// steps returns a ranking whose i-th thousand rows have counts[i] updates each.
func steps(counts ...uint64) Ranking {
	var r Ranking
	for i, n := range counts {
		for j := range 1000 {
			r.Counts = append(r.Counts, Count{Key: uint64(i*1000 + j), Updates: n})
			r.Updates += n
		}
	}
	return r
}

func TestPrincipleRows(t *testing.T) {
	// T_n = 1,000,000; shares of the thousands: 60, 30, 5, 4, 0.9, 0.1 %.
	r := steps(600, 300, 50, 40, 9, 1)
	for name, c := range map[string]struct {
		p    Principle
		dim  int
		want int
		err  error
	}{
		"paper's rule":              {Principle{}, 1, 4000, nil},
		"a gain of exactly MinGain": {Principle{MinGain: 0.04}, 1, 4000, nil},
		"larger MinGain":            {Principle{MinGain: 0.2}, 1, 2000, nil},
		"smaller steps":             {Principle{Step: 100, MinGain: 0.01}, 1, 2000, nil},
		"step beyond the end":       {Principle{Step: 100_000}, 1, 6000, nil},
		"nothing gains enough":      {Principle{MinGain: 0.7}, 1, 0, nil},
		"p below the rule":          {Principle{Share: 0.5}, 1, 4000, nil},
		"p beyond the rule":         {Principle{Share: 0.995}, 1, 4556, nil},
		"p alone":                   {Principle{Share: 0.6, MinGain: 0.7}, 1, 1000, nil},
		"memory caps the rule":      {Principle{ChipBytes: 80_000, MemoryShare: 0.1}, 1, 2000, nil},
		"slot bytes count":          {Principle{ChipBytes: 80_000, MemoryShare: 0.1, SlotBytes: 8}, 1, 1000, nil},
		"dimension counts":          {Principle{ChipBytes: 80_000, MemoryShare: 0.1}, 16, 125, nil},
		"slots cap the rule":        {Principle{MaxSlots: 1500}, 1, 1500, nil},
		"p beyond the memory":       {Principle{Share: 0.95, ChipBytes: 80_000, MemoryShare: 0.1}, 1, 0, ErrShare},
		"p takes all the memory":    {Principle{Share: 0.9, ChipBytes: 80_000, MemoryShare: 0.1}, 1, 2000, nil},
		"all of the chip":           {Principle{MemoryShare: 1, ChipBytes: 8_000}, 1, 2000, nil},
		"the largest gain":          {Principle{MinGain: 1}, 1, 0, nil},
		"p out of range":            {Principle{Share: 1}, 1, 0, packer.ErrConfig},
		"negative p":                {Principle{Share: -0.1}, 1, 0, packer.ErrConfig},
		"negative c":                {Principle{MemoryShare: -0.1}, 1, 0, packer.ErrConfig},
		"negative chip":             {Principle{ChipBytes: -1}, 1, 0, packer.ErrConfig},
		"negative slot":             {Principle{SlotBytes: -1}, 1, 0, packer.ErrConfig},
		"negative slots":            {Principle{MaxSlots: -1}, 1, 0, packer.ErrConfig},
		"p not a number":            {Principle{Share: math.NaN()}, 1, 0, packer.ErrConfig},
		"c out of range":            {Principle{MemoryShare: 1.5}, 1, 0, packer.ErrConfig},
		"gain out of range":         {Principle{MinGain: -1}, 1, 0, packer.ErrConfig},
		"negative step":             {Principle{Step: -1}, 1, 0, packer.ErrConfig},
		"no dimension":              {Principle{}, 0, 0, packer.ErrConfig},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := c.p.Rows(r, c.dim)
			if !errors.Is(err, c.err) || got != c.want {
				t.Errorf("got %d, %v; want %d, %v", got, err, c.want, c.err)
			}
		})
	}
}

// The paper's chip: c = 0.05 of 20 MB are 1 MB, of which 30,000 parameters
// take 118 KB (the paper's §5.1, §5.7).
func TestPrincipleDefaultsAreThePapers(t *testing.T) {
	p, err := Principle{}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	if got := p.MemoryShare * float64(p.ChipBytes); got != 1<<20 {
		t.Errorf("default budget %v bytes, want 1 MiB", got)
	}
	if got := math.Ceil(float64(30_000*p.SlotBytes) / 1024); got != 118 {
		t.Errorf("30,000 parameters take %v KiB, want 118", got)
	}
}

func TestPrincipleShareOutOfReach(t *testing.T) {
	r := steps(10)
	r.Updates *= 2 // half of the updates belong to rows that are not listed
	if _, err := (Principle{Share: 0.6}).Rows(r, 1); !errors.Is(err, ErrShare) {
		t.Errorf("got %v", err)
	}
	if _, err := (Principle{Share: 0.6}).Rows(Ranking{}, 1); !errors.Is(err, ErrShare) {
		t.Errorf("nothing counted: got %v", err)
	}
	if k, err := (Principle{}).Rows(Ranking{}, 1); k != 0 || err != nil {
		t.Errorf("nothing counted, nothing demanded: %d, %v", k, err)
	}
}

func TestPrincipleHotSet(t *testing.T) {
	r := steps(600, 300, 50, 40, 9, 1)
	r.Err = 3
	h, err := Principle{Step: 500, MinGain: 0.15}.HotSet(r, 2, packer.Meta{Rate: 0.08, Seed: 5, Rows: 77})
	if err != nil {
		t.Fatal(err)
	}
	want := packer.Meta{Rate: 0.08, Seed: 5, Rows: 77, Updates: 1_000_000, Covered: 900_000, CountErr: 3}
	if diff := cmp.Diff(want, h.Meta()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if h.Len() != 2000 || h.Dim() != 2 || h.Key(1999) != 1999 || h.Count(1999) != 300 {
		t.Errorf("len %d, dim %d, last key %d with count %d", h.Len(), h.Dim(), h.Key(1999), h.Count(1999))
	}
	if h, err := (Principle{Share: 1}).HotSet(r, 2, packer.Meta{}); h != nil || !errors.Is(err, packer.ErrConfig) {
		t.Errorf("p out of range: %v, %v", h, err)
	}
}

// TestNumbersInErrors checks the numbers in errors.
func TestNumbersInErrors(t *testing.T) {
	ranking := Ranking{Counts: []Count{{Updates: 50}, {Updates: 30}, {Updates: 20}}, Updates: 100}
	_, share := Principle{Share: 0.95}.Rows(Ranking{Counts: ranking.Counts[:2], Updates: 100}, 4)
	_, budget := Principle{Share: 0.9, MaxSlots: 8}.Rows(ranking, 4)
	for want, err := range map[string]error{
		"p = 0.95, but all 2 counted rows have 0.8000":                                   share,
		"p = 0.9 takes 3 rows of dimension 4, there is room for 2; lower p, raise c or ": budget,
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
