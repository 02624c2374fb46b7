// SPDX-License-Identifier: Apache-2.0

package simulation

import "testing"

// Lives lose workers and servers, and repeat steps: they lose and double nothing.
func TestRewinds(t *testing.T) {
	var total ClusterResult
	for seed := uint64(1); seed <= 60; seed++ {
		r, err := RunCluster(InTest(t), Options{Seed: seed, Kinds: Rewind})
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		total.Add(r)
	}
	t.Logf("%d trainings, %d rewinds, %d restarts, %d moves", total.Trainings, total.Rewinds, total.Restarts, total.Moves)
	if total.Rewinds < 20 || total.Restarts < 20 || total.Moves < 20 {
		t.Errorf("%d rewinds, %d restarts, %d moves", total.Rewinds, total.Restarts, total.Moves)
	}
}

// The checks notice what is left of before a rewind.
func TestFaultyRewindsAreFound(t *testing.T) {
	for _, f := range []fault{keepsAdmissions, keepsBanks, harvestsLate, harvestsFormer} {
		t.Run(string(f), func(t *testing.T) {
			for seed := uint64(1); seed <= 100; seed++ {
				if r, err := RunCluster(InTest(t), Options{Seed: seed, Kinds: Rewind, fault: f}); err != nil {
					t.Logf("found, with seed %d after %d rewinds: %v", seed, r.Rewinds, err)
					return
				}
			}
			t.Error("100 lives have not shown it")
		})
	}
}
