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
	// A thousand updates of each of the first rows between two harvests, and ten thousand of all; of
	// the others one in ten harvests.
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
		// Nine tenths of the updates are those of nine rows: each costs a commit in a period, not in an
		// update.
		"a commit for a period, not for an update": {Costs{Cold: []SizeCost{{1, 10}}, Commit: []SizeCost{{1, 3e3}}, Sum: 3e3, HotPair: []SizeCost{{1 << 26, 11}}}, 1, 1, 1},
		"a commit that costs more than a sum":      {Costs{Cold: []SizeCost{{1, 10}}, Commit: []SizeCost{{1, 3e3}}, Sum: 2e3, HotPair: []SizeCost{{1 << 26, 11}}}, 1, 1, 1009},
		"by number, a row costs less":              {Costs{Cold: []SizeCost{{1, 80}}, Numbered: []SizeCost{{1, 40}}, Sum: 60, HotPair: []SizeCost{{1 << 26, 5}}}, 1, 1, 9},
		"a hot pair costs too much":                {Costs{Cold: []SizeCost{{1, 40}}, Sum: 60, HotPair: []SizeCost{{1 << 26, 45}}}, 1, 1, 1},
		"banks beyond a cache cost more":           {Costs{Cold: []SizeCost{{1, 40}}, Sum: 60, HotPair: []SizeCost{{5, 5}, {6, 90}}}, 1, 1, 5},
		"rows of many columns cost more":           {Costs{Cold: []SizeCost{{1, 40}}, Sum: 60, HotPair: []SizeCost{{1 << 26, 5}}}, 9, 1, 1},
		"unless cold columns do as well":           {Costs{Cold: []SizeCost{{1, 40}}, Column: 30, Sum: 60, HotPair: []SizeCost{{1 << 26, 5}}}, 9, 1, 9},
	} {
		a := load
		a.Rate *= c.scale
		a.Costs = c.costs
		a.Numbered = c.costs.Numbered != nil
		got, err := a.Choose(r, c.dim)
		if err != nil || got.Rows != c.want {
			t.Errorf("%s: %+v, %v; want %d rows", name, got, err, c.want)
		}
	}
}

// spent returns the CPU time of aggregator, server and harvests for an update if the first rows are
// hot, added up row by row as Auto's documentation says.
func spent(a Auto, r Ranking, dim, hot int) (aggregator, server, harvests float64) {
	updates := float64(a.Workers) * a.Rate * a.Period.Seconds()
	touched := func(f float64) float64 { return 1 - math.Exp(-f*updates) }
	in := func(size int) func(n int) float64 { // share of the updates of the rows of a page or block
		return func(n int) (f float64) {
			for i := range hot {
				if i*dim/size == n {
					f += float64(r.Counts[i].Updates) / float64(r.Updates)
				}
			}
			return f
		}
	}
	add := a.Costs.Cold
	if a.Numbered {
		add = a.Costs.Numbered
	}
	rows, more := len(r.Counts), a.Costs.Column*float64(dim-1)
	for i, c := range r.Counts {
		f := float64(c.Updates) / float64(r.Updates)
		if i < hot {
			aggregator += f * updates * float64(dim) * costAt(a.Costs.HotPair, hot*dim)
			harvests += touched(f) * float64(dim) * a.Costs.Sum
			continue
		}
		server += f * updates * (costAt(add, rows) + more)
		if a.Costs.Commit != nil {
			server += touched(f) * (costAt(a.Costs.Commit, rows) + more)
		}
	}
	for n := range (hot*dim-1)/packer.PageSlots + 1 {
		aggregator += updates / float64(a.Batch) * a.Costs.Stripe / 2 * (1 - math.Exp(-in(packer.PageSlots)(n)*float64(a.Batch)))
	}
	for n := range (hot*dim-1)/blockSlots + 1 {
		harvests += a.Costs.Block * touched(in(blockSlots)(n))
	}
	return aggregator / updates, server / updates, harvests / updates
}

// No other number costs less.
func TestAutoIsBest(t *testing.T) {
	small := zipfian(300)
	costs := Costs{
		Cold: []SizeCost{{1, 30}, {400, 60}}, Numbered: []SizeCost{{1, 15}, {400, 25}}, Commit: []SizeCost{{1, 10}, {400, 50}},
		Column: 9, HotPair: []SizeCost{{64, 4}, {128, 8}, {1024, 16}}, Stripe: 55, Sum: 23, Block: 340,
	}
	for _, dim := range []int{1, 3} {
		for _, rate := range []float64{100, 1e4, 1e6} {
			for _, batch := range []int{32, 4096} {
				for _, numbered := range []bool{false, true} {
					for _, apart := range []bool{false, true} {
						a := Auto{Workers: 1, Rate: rate, Batch: batch, Period: time.Second, Numbered: numbered, Apart: apart, Costs: costs}
						best, at := math.Inf(1), 0
						for hot := 1; hot <= len(small.Counts); hot++ {
							aggregator, server, harvests := spent(a, small, dim, hot)
							cost := aggregator + server + harvests
							if apart {
								cost = max(aggregator, server) + harvests
							}
							if cost < best {
								best, at = cost, hot
							}
						}
						e, err := a.Choose(small, dim)
						got := e.Both
						if apart {
							got = e.Busier
						}
						if err != nil || math.Abs(got-best) > 1e-9*best || e.Rows != at {
							t.Errorf("%d columns, %+v: %+v, %v; best are %d rows, which cost %v", dim, a, e, err, at, best)
						}
					}
				}
			}
		}
	}
}

// What is expected is the sum of what it consists of.
func TestAutoExpects(t *testing.T) {
	r := Ranking{Updates: 4, Counts: []Count{{Key: 1, Updates: 3}, {Key: 2, Updates: 1}}}
	a := Auto{Workers: 1, Rate: 10, Batch: 5, Period: time.Second, Costs: Costs{Cold: []SizeCost{{1, 50}}, Commit: []SizeCost{{1, 30}}, Sum: 20, Stripe: 8, HotPair: []SizeCost{{1 << 26, 2}}}}
	got, err := a.Choose(r, 1)
	sums := 2 - math.Exp(-7.5) - math.Exp(-2.5)
	stripes := (1 - math.Exp(-5)) / 2 * 8 / 5
	alone := 50 + sums*30/10
	want := Expected{Rows: 2, Share: 1, Sums: sums, Both: 2 + sums*20/10 + stripes, Server: alone, Stripe: stripes}
	want.Busier = want.Both // the server has no pairs
	near := func(a, b float64) bool { return math.Abs(a-b) < 1e-9 }
	if err != nil || got.Rows != want.Rows || !near(got.Share, 1) || !near(got.Sums, sums) || !near(got.Both, want.Both) || !near(got.Busier, want.Busier) ||
		!near(got.Server, alone) || !near(got.Stripe, stripes) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
}

// On CPUs of their own, aggregator and server are to be equally busy: more hot rows make the
// aggregator the slower one, although both together spend less.
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

// Small pushes fill the stripes of few pages, large ones those of many; longer periods and more
// workers are worth more rows.
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

// A row that is updated in hardly any period costs more in a harvest than at the server, however
// rare that is.
func TestAutoOfRareUpdates(t *testing.T) {
	for _, rate := range []float64{1, 1e-9, 1e-15, 1e-30, 1e-200} {
		e, err := (Auto{Rate: rate}).Choose(zipfian(1000), 1)
		if err != nil || e.Rows != 1 || !(e.Sums > 0) || e.Both <= e.Server {
			t.Errorf("%v rows a second: %+v, %v; want one row, as at least one is hot", rate, e, err)
		}
	}
}

func TestAutoRefuses(t *testing.T) {
	for what, a := range map[string]Auto{
		"workers": {Workers: -1}, "rows a second": {Rate: math.NaN()}, "rows a second ": {Rate: math.Inf(1)},
		"pushes": {Batch: -1}, "harvest": {Period: -1},
		// What they multiply to is no number, although each is one.
		"too many updates": {Rate: 1e308, Workers: 100, Period: time.Second}, "none": {Rate: 5e-324},
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
