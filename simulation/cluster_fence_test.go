// SPDX-License-Identifier: Apache-2.0

package simulation

import "testing"

// Lives go on without their switch, and lose and double nothing.
func TestFences(t *testing.T) {
	var total ClusterResult
	for seed := uint64(1); seed <= 40; seed++ {
		r, err := RunCluster(InTest(t), Options{Seed: seed, Kinds: Fence})
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		total.Add(r)
	}
	t.Logf("%d trainings, %d fences", total.Trainings, total.Fences)
	if total.Fences < 10 {
		t.Errorf("%d fences", total.Fences)
	}
}
