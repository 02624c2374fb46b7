// SPDX-License-Identifier: Apache-2.0

package simulation

import "testing"

// Lives go on at other switches, again and again, and lose and double nothing.
func TestStandbys(t *testing.T) {
	var total ClusterResult
	for seed := uint64(1); seed <= 60; seed++ {
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
