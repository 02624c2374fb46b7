// SPDX-License-Identifier: Apache-2.0

package simulation

import "testing"

// Lives go on at other switches, again and again, and lose and double nothing.
func TestStandbys(t *testing.T) {
	var total ClusterResult
	for seed := uint64(1); seed <= 40; seed++ {
		r, err := RunCluster(InTest(t), Options{Seed: seed, Kinds: Standby})
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		total.Add(r)
	}
	t.Logf("%d trainings, %d fences, %d moves, %d gradients to settle", total.Trainings, total.Fences, total.Moves, total.Taken)
	if total.Fences < 10 || total.Moves < 10 || total.Taken == 0 {
		t.Errorf("%d fences, %d moves, %d gradients to settle", total.Fences, total.Moves, total.Taken)
	}
}

// The checks notice what goes wrong between two generations, and faults of any one also in later
// ones.
func TestFaultyStandbysAreFound(t *testing.T) {
	for _, f := range []fault{harvestsFormer, marksUnsummed} {
		t.Run(string(f), func(t *testing.T) {
			for seed := uint64(1); seed <= 100; seed++ {
				if r, err := RunCluster(InTest(t), Options{Seed: seed, Kinds: Standby, fault: f}); err != nil {
					t.Logf("found, after %d moves: %v", r.Moves, err)
					return
				}
			}
			t.Error("100 lives have not shown it")
		})
	}
}
