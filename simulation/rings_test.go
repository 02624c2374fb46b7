// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"flag"
	"strings"
	"testing"
)

var rings = flag.Uint64("rings", 60, "`number` of seeds for lives of rings")

// No life of a ring has a violation, whatever its seed; and in these, all that can happen to them
// does.
func TestRingSeeds(t *testing.T) { liveSeeds(t, "rings", *rings, RunRings) }

// The same seed gives a ring the same life, on one processor and on several.
func TestSameSeedSameRingTrace(t *testing.T) {
	liveTwice(t, *first, min(*rings, 6), ClusterAll, RunRings)
}

// Lost frames are repeated, copies are found, and the dead are named.
func TestRingsMeetTrouble(t *testing.T) {
	var total RingsResult
	for seed := uint64(1); seed <= 40; seed++ {
		r, err := RunRings(InTest(t), Options{Seed: seed, Kinds: ClusterAll})
		if err != nil {
			t.Fatal(err)
		}
		total.Add(r)
	}
	if total.Repeats == 0 || total.Duplicates == 0 || total.Named == 0 || total.Crashes == 0 || total.Short == 0 ||
		total.Traffic.Forged == 0 || total.Results < 300 {
		t.Errorf("%+v", total)
	}
	quiet, err := RunRings(InTest(t), Options{Seed: 2})
	if err != nil || quiet.Crashes+quiet.Named+quiet.Short > 0 || quiet.Traffic.Lost > 0 || quiet.Results == 0 {
		t.Errorf("without trouble: %+v, %v", quiet, err)
	}
}

// Wrong values, and workers that never come, are found.
func TestRingFaultsAreFound(t *testing.T) {
	for f, want := range map[fault]string{spoilsSum: "want", staysAbsent: "worker 1 (10.0.1.2:7000) has not come to it"} {
		t.Run(string(f), func(t *testing.T) {
			t.Parallel()
			for seed := uint64(1); seed < 1000; seed++ {
				if _, err := RunRings(InTest(t), Options{Seed: seed, Kinds: ClusterAll, fault: f}); err != nil {
					t.Logf("found: %v", err)
					if !strings.Contains(err.Error(), want) {
						t.Errorf("found by something else than %q", want)
					}
					return
				}
			}
			t.Error("1,000 lives have not shown it")
		})
	}
}
