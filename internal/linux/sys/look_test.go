// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"math"
	"slices"
	"testing"
	"time"
)

// looks simulates an owner whose work arrives after each of these times, in microseconds, and
// returns how often it slept.
func looks(l *Look, waits ...time.Duration) (slept int) {
	now := time.Unix(1, 0)
	for _, wait := range waits {
		come := now.Add(wait * time.Microsecond)
		for now.Before(come) && l.lookAgain(now) {
			now = now.Add(min(10*time.Microsecond, come.Sub(now)))
		}
		if now.Before(come) {
			slept++
			now = come
		} else if !l.since.IsZero() {
			l.endLook(now)
		}
	}
	return slept
}

func TestLook(t *testing.T) {
	const limit, soon, late = 64 * time.Microsecond, 60, 100
	for name, c := range map[string]struct {
		before time.Duration // credit, in looks
		waits  []time.Duration
		slept  int
	}{
		"work that comes soon is looked for":             {waits: slices.Repeat([]time.Duration{soon}, 100)},
		"what takes longer is slept for":                 {waits: []time.Duration{late}, slept: 1},
		"then others too, until the look is made up for": {waits: append([]time.Duration{late}, slices.Repeat([]time.Duration{soon}, 100)...), slept: 1 + 70},
		"looks that have paid stand for others":          {before: 3, waits: []time.Duration{late, soon, late, soon}, slept: 2},
		"work that comes soon is what counts":            {waits: slices.Repeat([]time.Duration{soon, soon, soon, soon, soon, soon, soon, soon, soon, soon, late}, 10), slept: 10},
	} {
		if slept := looks(&Look{Limit: limit, credit: c.before * limit}, c.waits...); slept != c.slept {
			t.Errorf("%s: slept %d times, want %d", name, slept, c.slept)
		}
	}
	if slept := looks(&Look{}, 1, 1); slept != 2 {
		t.Errorf("without a limit: slept %d times of 2", slept)
	}
	if slept := looks(&Look{Limit: math.MaxInt64}, slices.Repeat([]time.Duration{soon}, 1000)...); slept != 0 {
		t.Errorf("the longest look: slept %d times", slept)
	}
	l, slept := Look{Limit: 1, credit: -3}, 0
	for ; slept < 10 && !l.lookAgain(time.Unix(1, 0)); slept++ {
	}
	if slept != 3 {
		t.Errorf("the shortest look, of three in vain: slept %d times", slept)
	}
}

// A caller that always waits longer than a look looks in one wait of 64, however much looks have
// saved before.
func TestLookInVain(t *testing.T) {
	const limit = 64 * time.Microsecond
	l := &Look{Limit: limit}
	for range 10_000 {
		l.since = time.Unix(1, 0)
		l.endLook(l.since)
	}
	looked, now := 0, time.Unix(1, 0)
	for range 6400 {
		for l.lookAgain(now) {
			looked++
			now = now.Add(limit + 1)
		}
	}
	if looked < 100 || looked > 100+lookCredit+1 {
		t.Errorf("looked %d times in 6,400 waits", looked)
	}
}

// A look during which others keep the processor is unsuccessful, even if there is work after it.
// Its time counts, but only up to a limit: one look does not stop those of an owner whose looks
// have saved time.
func TestLookThatLosesTheProcessor(t *testing.T) {
	const limit = 64 * time.Microsecond
	for _, c := range []struct{ took, want time.Duration }{{10 * limit, -10 * limit}, {time.Hour, -lookLoss * limit}} {
		l, now := &Look{Limit: limit}, time.Unix(1, 0)
		if !l.lookAgain(now) {
			t.Fatal("sleeps at once")
		}
		l.endLook(now.Add(c.took))
		if l.credit != c.want || l.lookAgain(now.Add(c.took)) {
			t.Errorf("%v were lost: %+v", c.took, l)
		}
	}
	l := &Look{Limit: limit, credit: lookCredit * limit, since: time.Unix(1, 0)}
	if l.endLook(l.since.Add(time.Hour)); !l.lookAgain(time.Unix(1, 0)) {
		t.Errorf("an hour was lost of one whose looks have paid: %+v", l)
	}
}

func TestLookLeavesTheProcessor(t *testing.T) {
	l := &Look{Limit: time.Hour}
	for range 3 {
		if !l.Again() {
			t.Fatal("sleeps")
		}
	}
	l.Found()
	if l.credit != l.Limit/lookGain || !l.since.IsZero() {
		t.Errorf("%+v", l)
	}
	l.Found() // no look to end
	if n := testing.AllocsPerRun(100, func() { l.Again(); l.Found() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
