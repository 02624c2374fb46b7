// SPDX-License-Identifier: Apache-2.0

//go:build linux

package simulation

import (
	"flag"
	"strings"
	"testing"
)

var agentSeeds = flag.Uint64("agents", 60, "`number` of seeds for lives of agents")

// No life of agents has a violation, whatever its seed.
func TestAgentSeeds(t *testing.T) { liveSeeds(t, "agents", *agentSeeds, RunAgents) }

// In some lives of agents, cold rows travel in codes.
func TestAgentsSendCodes(t *testing.T) {
	for seed := uint64(1); seed < 100; seed++ {
		r, err := RunAgents(InTest(t), Options{Seed: seed, Kinds: ClusterAll})
		if err != nil {
			t.Fatal(err)
		}
		if r.Coded > 0 {
			return
		}
	}
	t.Error("no frame of 100 lives has codes")
}

// The same seed gives agents the same life, on one processor and on several.
func TestSameSeedSameAgentsTrace(t *testing.T) {
	liveTwice(t, *first, min(*agentSeeds, 4), ClusterAll, RunAgents)
}

// Jobs with steps go on when agents vanish: their parties are told that a step is dropped.
func TestAgentsRewind(t *testing.T) {
	var total AgentsResult
	for seed := uint64(1); seed <= 40; seed++ {
		r, err := RunAgents(InTest(t), Options{Seed: seed, Kinds: Rewind})
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		total.Add(r)
	}
	t.Logf("%d agents vanished, %d answers DROPPED", total.Rewinds, total.Dropped)
	if total.Rewinds < 20 || total.Dropped < 20 {
		t.Error("too few")
	}
}

// Faults in the steps of parties are found.
func TestAgentFaultsAreFound(t *testing.T) {
	for f, by := range map[fault]struct {
		from uint64 // seed
		want string
	}{
		overtakes:   {1, "the pushes of that step sum up to"},
		forgetsTorn: {1, "is not dropped"},
		startsOver:  {50, "no end in sight"},
		finishes:    {60, "ends as if its work were done"},
	} {
		t.Run(string(f), func(t *testing.T) {
			t.Parallel()
			for seed := by.from; seed < by.from+1000; seed++ {
				if _, err := RunAgents(InTest(t), Options{Seed: seed, Kinds: ClusterAll, fault: f}); err != nil {
					t.Logf("found: %v", err)
					if !strings.Contains(err.Error(), by.want) {
						t.Errorf("found by something else than %q", by.want)
					}
					return
				}
			}
			t.Error("1,000 lives have not shown it")
		})
	}
}
