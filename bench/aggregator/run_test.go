// SPDX-License-Identifier: Apache-2.0

package aggregator

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/libra-ina/libra/aggregator"
)

// quick measures negotiations in a moment.
func quick(b Backend) Config {
	c := Defaults()
	c.Tests, c.Backends, c.Workers, c.Parameters = []Test{Negotiation}, []Backend{b}, []int{1, 3}, 500
	c.Rounds, c.Duration, c.SkipDenied = 2, time.Millisecond, true
	return c
}

// checkDelays checks the shape of what quick measures.
func checkDelays(t *testing.T, r *Report, backend string) {
	t.Helper()
	if len(r.Negotiations) != 2*3 {
		t.Fatalf("%d delays, want those of 2 clusters with 3 arithmetics", len(r.Negotiations))
	}
	for i, d := range r.Negotiations {
		if d.Backend != backend || d.Workers != []int{1, 3}[i/3] || d.Arithmetic != Arithmetics()[i%3].String() || d.Iterations < 2*firstIterations {
			t.Errorf("delay %d is %+v", i, d)
		}
		negotiates := d.Arithmetic == aggregator.Fixed.String()
		if (d.Negotiate.Median > 0) != negotiates || (d.Slowest > 0) != negotiates || d.Slowest < d.Negotiate.Min {
			t.Errorf("%s: negotiation took %+v, p99 %v", d.Arithmetic, d.Negotiate, d.Slowest)
		}
		if d.Reduce.Min <= 0 || d.Total.Min < d.Reduce.Min || d.Total.Max < d.Negotiate.Max || d.Reduce.Max < d.Reduce.Median {
			t.Errorf("%s: reduction %+v, iteration %+v", d.Arithmetic, d.Reduce, d.Total)
		}
	}
}

func TestNegotiationOverUDP(t *testing.T) {
	var steps [][2]int
	c := quick(UDP)
	c.Progress = func(done, total int, _ string) { steps = append(steps, [2]int{done, total}) }
	r, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	checkDelays(t, r, "udp")
	if last := steps[len(steps)-1]; len(steps) != last[1] || last[0] != last[1]-1 {
		t.Errorf("%d steps, the last one is %d of %d", len(steps), last[0], last[1])
	}
}

func TestInterrupt(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("enough")
	c := quick(UDP)
	c.Progress = func(done, _ int, _ string) {
		if done == 3 {
			cancel(stop)
		}
	}
	r, err := Run(ctx, c)
	if !errors.Is(err, stop) && !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want the cause", err)
	}
	if r == nil || len(r.Negotiations) != 1 {
		t.Errorf("report %+v, want what was measured before", r)
	}
}
