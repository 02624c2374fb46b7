// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"flag"
	"regexp"
	"testing"
)

var reducers = flag.Uint64("reducers", 100, "`number` of seeds for lives of reducers")

// No life of reducers has a violation, whatever its seed; and in these, all that can happen to them
// does.
func TestReducerSeeds(t *testing.T) { liveSeeds(t, "reducers", *reducers, RunReducers) }

// The same seed gives reducers the same life, on one processor and on several.
func TestSameSeedSameReducersTrace(t *testing.T) {
	liveTwice(t, *first, min(*reducers, 10), ClusterAll, RunReducers)
}

// Lost frames are repeated, in time or when a later operation has its result, and the dead are
// named.
func TestReducersMeetTrouble(t *testing.T) {
	var total ReducersResult
	for seed := uint64(1); seed <= 40; seed++ {
		r, err := RunReducers(InTest(t), Options{Seed: seed, Kinds: ClusterAll})
		if err != nil {
			t.Fatal(err)
		}
		total.Add(r)
	}
	if total.Acked == 0 || total.Acked == total.Lives || total.Repeats == 0 || total.Hurried == 0 || total.Named == 0 || total.Crashes == 0 || total.Short == 0 || total.Results < 1000 ||
		total.Bundled == 0 || total.Stepped == 0 {
		t.Errorf("%+v", total)
	}
	quiet, err := RunReducers(InTest(t), Options{Seed: 2})
	if err != nil || quiet.Crashes+quiet.Named+quiet.Short > 0 || quiet.Traffic.Lost > 0 || quiet.Results == 0 {
		t.Errorf("without trouble: %+v, %v", quiet, err)
	}
}

// What the rules of rounds are there for happens without them, in each mode that has the rule.
func TestBrokenRulesOfRoundsAreFound(t *testing.T) {
	const sync, acked = 1, 2
	for f, modes := range map[fault]int{
		noFilter: sync | acked, shortFilter: sync | acked, keepsSlots: sync | acked, anySums: sync | acked, mute: sync | acked,
		takesTwice: sync | acked, keepsTakers: acked, anyTaken: acked, anyConfirmation: acked, startsEarly: acked,
	} {
		first := uint64(1)
		if f == anySums {
			first = 60 // none before shows it in mode sync
		}
		t.Run(string(f), func(t *testing.T) {
			t.Parallel()
			for seed := first; modes != 0 && seed < 2000; seed++ {
				r, err := RunReducers(InTest(t), Options{Seed: seed, Kinds: ClusterAll, fault: f})
				mode := sync << r.Acked
				if err != nil && modes&mode != 0 {
					modes &^= mode
					t.Logf("seed %d: %v", seed, err)
				}
			}
			if modes != 0 {
				t.Errorf("2,000 lives have not shown it in modes %b", modes)
			}
		})
	}
}

// Wrong sums and wrong names are found.
func TestReducerFaultsAreFound(t *testing.T) {
	for f, want := range map[fault]string{spoilsSum: "want", misnames: "dead|names itself"} {
		t.Run(string(f), func(t *testing.T) {
			t.Parallel()
			for seed := uint64(1); seed < 1000; seed++ {
				if _, err := RunReducers(InTest(t), Options{Seed: seed, Kinds: ClusterAll, fault: f}); err != nil {
					t.Logf("found: %v", err)
					if !regexp.MustCompile(want).MatchString(err.Error()) {
						t.Errorf("found by something else than %q", want)
					}
					return
				}
			}
			t.Error("1,000 lives have not shown it")
		})
	}
}
