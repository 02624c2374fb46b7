// SPDX-License-Identifier: Apache-2.0

package simulation

import "testing"

// Trainings are moved by an operator, to other switches and to none, and lose and double nothing.
func TestDrains(t *testing.T) {
	var total ClusterResult
	for seed := uint64(1); seed <= 20; seed++ {
		r, err := RunCluster(InTest(t), Options{Seed: seed, Kinds: Drain})
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		total.Add(r)
	}
	t.Logf("%d trainings, %d drains, %d fences, %d moves, %d gradients to settle", total.Trainings, total.Drains, total.Fences, total.Moves,
		total.Taken)
	if total.Drains < 5 || total.Moves < 5 || total.Fences <= total.Moves || total.Taken == 0 {
		t.Errorf("%d drains, %d fences, %d moves, %d gradients to settle", total.Drains, total.Fences, total.Moves, total.Taken)
	}
}

// The checks notice what goes wrong when the aggregator is alive, and what it had.
func TestFaultyDrainsAreFound(t *testing.T) {
	for _, f := range []fault{harvestsFormer, marksUnsummed, asksEarly} {
		t.Run(string(f), func(t *testing.T) {
			for seed := uint64(1); seed <= 200; seed++ {
				if r, err := RunCluster(InTest(t), Options{Seed: seed, Kinds: Drain, fault: f}); err != nil {
					t.Logf("found, with seed %d after %d drains: %v", seed, r.Drains, err)
					return
				}
			}
			t.Error("200 lives have not shown it")
		})
	}
}
