// SPDX-License-Identifier: Apache-2.0

package aggregator

import (
	"os"
	"testing"
	"time"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/internal/test/bedtest"
)

// TestCost measures every mode with every arithmetic. Frames that the program
// refuses, or takes for duplicates, end the run with an error.
func TestCost(t *testing.T) {
	c := Defaults()
	c.Tests, c.Stripes, c.Hot = []Test{Cost}, []int{1, 10}, []int{1000}
	c.Rounds, c.Duration = 1, time.Millisecond
	r, err := Run(t.Context(), c)
	bedtest.Check(t, err)
	for _, m := range Modes() {
		for _, a := range Arithmetics() {
			one, ten := r.find(a, m, 1, 1000), r.find(a, m, 10, 1000)
			if one == nil || ten == nil {
				t.Fatalf("%v, %v is not measured", m, a)
			}
			if len(one.Samples) != 1 || one.Pairs != 22 || ten.Pairs != 220 || one.NsPerFrame <= 0 || one.NsPerPair != one.NsPerFrame/22 {
				t.Errorf("%v, %v: %+v and %+v", m, a, one, ten)
			}
		}
	}
	if len(r.Results) != 3*3*2 || len(r.Targets) != 4 {
		t.Errorf("%d results, %d targets", len(r.Results), len(r.Targets))
	}
}

func TestThroughput(t *testing.T) {
	sweep := []int{1000, paperHot, aggregator.PageSlots, 3 * aggregator.PageSlots}
	c := Defaults()
	c.Tests, c.Arithmetics, c.Sweep, c.Exponents = []Test{Throughput}, []aggregator.Arithmetic{aggregator.Exact}, sweep, []float64{1}
	c.Rounds, c.Duration = 1, time.Millisecond
	r, err := Run(t.Context(), c)
	bedtest.Check(t, err)
	if len(r.Rates) != 2*len(sweep) || len(r.Systems) != 1+len(sweep) {
		t.Fatalf("%d rates, %d systems", len(r.Rates), len(r.Systems))
	}
	for i, q := range r.Rates {
		if q.Distribution != []string{"uniform", "Zipf 1.00"}[i/len(sweep)] || q.Hot != sweep[i%len(sweep)] || q.Pairs.Median <= 0 {
			t.Errorf("rate %d is %+v", i, q)
		}
	}
	for i, s := range r.Systems[1:] {
		before := r.Systems[i]
		if s.Hot != sweep[i] || s.HotShare <= before.HotShare || s.Server.Median <= 0 || s.Bound <= 0 {
			t.Errorf("system %d is %+v after %+v", i+1, s, before)
		}
		if s.Sums <= before.Sums || s.Sums > float64(s.Hot) || s.Harvest.Median <= 0 || s.Harvested >= s.Bound {
			t.Errorf("harvests of system %d are %+v after %+v", i+1, s, before)
		}
	}
}

func TestNegotiationOverAFXDP(t *testing.T) {
	r, err := Run(t.Context(), quick(AFXDP))
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Unavailable) > 0 {
		if os.Geteuid() != 0 {
			t.Skip(r.Unavailable)
		}
		t.Fatal(r.Unavailable)
	}
	checkDelays(t, r, "afxdp")
}
