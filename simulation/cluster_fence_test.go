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
	t.Logf("%d trainings, %d fences, %d gradients to settle", total.Trainings, total.Fences, total.Taken)
	if total.Fences < 10 || total.Taken == 0 {
		t.Errorf("%d fences, %d gradients to settle", total.Fences, total.Taken)
	}
}

// The checks notice a harvest, a fence or a settlement that goes wrong.
func TestFaultyFencesAreFound(t *testing.T) {
	for f, kinds := range map[fault]Kinds{
		harvestsLate: Fence, asksEarly: Fence, marksUnsummed: Fence, freesAnswered: Fence, namesNoInstance: Fence,
		answersOlder: 0,
	} {
		t.Run(string(f), func(t *testing.T) {
			for seed := uint64(1); seed <= 200; seed++ {
				if _, err := RunCluster(InTest(t), Options{Seed: seed, Kinds: kinds, fault: f}); err != nil {
					t.Logf("found: %v", err)
					return
				}
			}
			t.Error("200 lives have not shown it")
		})
	}
}

// A worker whose frames to the server are lost while it settles, in a call at the end of a step,
// ends, as one does that has not lost its aggregator.
func TestWorkerThatCannotSettleEnds(t *testing.T) {
	r, err := RunCluster(InTest(t), Options{Seed: 5000071, Kinds: Loss | Duplicate | Queue | Neighbour | Outage | Fence})
	if err != nil || r.Fences == 0 {
		t.Errorf("%d fences, %v", r.Fences, err)
	}
}
