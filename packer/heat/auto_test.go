// SPDX-License-Identifier: Apache-2.0

package heat

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/libra-ina/libra/packer"
)

// zipfian returns a ranking of n rows whose updates fall with their rank.
func zipfian(n int) (r Ranking) {
	for i := range n {
		u := uint64(1e9/float64(i+1)) + 1
		r.Counts = append(r.Counts, Count{Key: uint64(i), Updates: u})
		r.Updates += u
	}
	return r
}

// Rows are hot as long as the cold pairs of which they spare the server cost more than their sums.
func TestAutoBalancesCosts(t *testing.T) {
	// A thousand updates of each of the first rows between two harvests, and ten thousand of all; of the
	// others one in ten harvests.
	r := Ranking{Updates: 10_000}
	for i := range 9 {
		r.Counts = append(r.Counts, Count{Key: uint64(i), Updates: 1000})
	}
	for i := range 1000 {
		r.Counts = append(r.Counts, Count{Key: uint64(100 + i), Updates: 1})
	}
	load := Auto{Workers: 2, Rate: 500, Batch: 1000, Period: time.Second}
	for name, c := range map[string]struct {
		costs Costs
		dim   int
		scale float64 // of the load
		want  int
	}{
		"a sum costs more than a cold pair": {Costs{Cold: []SizeCost{{1, 40}}, Sum: 60, HotPair: []SizeCost{{1 << 26, 5}}}, 1, 1, 9},
		"a sum costs less":                  {Costs{Cold: []SizeCost{{1, 80}}, Sum: 60, HotPair: []SizeCost{{1 << 26, 5}}}, 1, 1, 1009},
		"more updates between two harvests": {Costs{Cold: []SizeCost{{1, 40}}, Sum: 60, HotPair: []SizeCost{{1 << 26, 5}}}, 1, 100, 1009},
		"a hot pair costs too much":         {Costs{Cold: []SizeCost{{1, 40}}, Sum: 60, HotPair: []SizeCost{{1 << 26, 45}}}, 1, 1, 1},
		"banks beyond a cache cost more":    {Costs{Cold: []SizeCost{{1, 40}}, Sum: 60, HotPair: []SizeCost{{5, 5}, {6, 90}}}, 1, 1, 5},
		"rows of many columns cost more":    {Costs{Cold: []SizeCost{{1, 40}}, Sum: 60, HotPair: []SizeCost{{1 << 26, 5}}}, 9, 1, 1},
		"unless cold columns do as well":    {Costs{Cold: []SizeCost{{1, 40}}, Column: 30, Sum: 60, HotPair: []SizeCost{{1 << 26, 5}}}, 9, 1, 9},
	} {
		a := load
		a.Rate *= c.scale
		a.Costs = c.costs
		got, err := a.Choose(r, c.dim)
		if err != nil || got.Rows != c.want {
			t.Errorf("%s: %+v, %v; want %d rows", name, got, err, c.want)
		}
	}
}

// What is expected is the sum of what it consists of.
func TestAutoExpects(t *testing.T) {
	r := Ranking{Updates: 4, Counts: []Count{{Key: 1, Updates: 3}, {Key: 2, Updates: 1}}}
	a := Auto{Workers: 1, Rate: 10, Batch: 5, Period: time.Second, Costs: Costs{Cold: []SizeCost{{1, 50}}, Sum: 20, Stripe: 8, HotPair: []SizeCost{{1 << 26, 2}}}}
	got, err := a.Choose(r, 1)
	sums := 2 - math.Exp(-7.5) - math.Exp(-2.5)
	stripes := (1 - math.Exp(-5)) / 2 * 8 / 5
	want := Expected{Rows: 2, Share: 1, Sums: sums, Both: 2 + sums*20/10 + stripes, Server: 50, Stripe: stripes}
	want.Busier = want.Both // the server has no pairs
	near := func(a, b float64) bool { return math.Abs(a-b) < 1e-9 }
	if err != nil || got.Rows != want.Rows || !near(got.Share, 1) || !near(got.Sums, sums) || !near(got.Both, want.Both) || !near(got.Busier, want.Busier) ||
		!near(got.Server, 50) || !near(got.Stripe, stripes) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
}

// On CPUs of their own, aggregator and server are to be equally busy: more hot rows make the aggregator the
// slower one, although both together spend less.
func TestAutoApart(t *testing.T) {
	r := Ranking{Updates: 1000}
	for i := range 1000 {
		r.Counts = append(r.Counts, Count{Key: uint64(i), Updates: 1})
	}
	a := Auto{Workers: 1, Rate: 1e9, Batch: 1000, Period: time.Second,
		Costs: Costs{Cold: []SizeCost{{1, 30}}, HotPair: []SizeCost{{1 << 26, 10}}}}
	if e, err := a.Choose(r, 1); err != nil || e.Rows != 1000 {
		t.Errorf("together: %+v, %v", e, err)
	}
	a.Apart = true
	if e, err := a.Choose(r, 1); err != nil || e.Rows != 750 || math.Abs(e.Busier-7.5) > 1e-6 || math.Abs(e.Both-15) > 1e-6 {
		t.Errorf("apart: %+v, %v; want 750 rows", e, err)
	}
}

// Small pushes fill the stripes of few pages, large ones those of many; longer periods and more workers
// are worth more rows.
func TestAutoFollowsTheLoad(t *testing.T) {
	r := zipfian(6 * packer.PageSlots)
	rows := func(a Auto) int {
		t.Helper()
		e, err := a.Choose(r, 1)
		if err != nil {
			t.Fatal(err)
		}
		return e.Rows
	}
	stripes := Measured
	stripes.Stripe, stripes.HotPair = 1000, []SizeCost{{1 << 26, 5}}
	if few, many := rows(Auto{Costs: stripes, Batch: 32, Period: time.Second}), rows(Auto{Costs: stripes, Batch: 65536, Period: time.Second}); few >= many {
		t.Errorf("%d rows for pushes of 32, %d for pushes of 65,536", few, many)
	}
	dear := Measured
	dear.Sum, dear.HotPair = 200, stripes.HotPair
	short, long := Auto{Costs: dear, Rate: 1e5, Period: time.Millisecond}, Auto{Costs: dear, Rate: 1e5, Period: time.Second}
	if few, many := rows(short), rows(long); few >= many {
		t.Errorf("%d rows with harvests every millisecond, %d every second", few, many)
	}
	short.Workers = 64
	if few, many := rows(Auto{Costs: dear, Rate: 1e5, Period: time.Millisecond}), rows(short); few >= many {
		t.Errorf("%d rows for 4 workers, %d for 64", few, many)
	}
}

func TestAutoRefuses(t *testing.T) {
	for what, a := range map[string]Auto{
		"workers": {Workers: -1}, "rows a second": {Rate: math.NaN()}, "rows a second ": {Rate: math.Inf(1)},
		"pushes": {Batch: -1}, "harvest": {Period: -1},
	} {
		if _, err := a.Choose(zipfian(3), 1); !errors.Is(err, packer.ErrConfig) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := (Auto{}).Choose(zipfian(3), 0); !errors.Is(err, packer.ErrConfig) {
		t.Errorf("no columns: %v", err)
	}
	if e, err := (Auto{}).Choose(Ranking{}, 1); err != nil || e.Rows != 0 {
		t.Errorf("no rows: %+v, %v", e, err)
	}
}
