// SPDX-License-Identifier: Apache-2.0

//go:build linux

package simulation

import (
	"bytes"
	"flag"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

var agentSeeds = flag.Uint64("agents", 60, "`number` of seeds for lives of agents")

// No life of agents has a violation, whatever its seed.
func TestAgentSeeds(t *testing.T) {
	kinds, err := ParseKinds(*only)
	if err != nil {
		t.Fatal(err)
	}
	var (
		mu    sync.Mutex
		total AgentsResult
		ended atomic.Bool
	)
	t.Cleanup(func() { t.Logf("%d seeds from %d on, %v:\n%+v", *agentSeeds, *first, kinds, total) })
	shards := uint64(runtime.GOMAXPROCS(0))
	for shard := range shards {
		t.Run(fmt.Sprintf("shard %d of %d", shard+1, shards), func(t *testing.T) {
			t.Parallel()
			for n := shard; n < *agentSeeds && !ended.Load(); n += shards {
				var trace bytes.Buffer
				o := Options{Seed: *first + n, Kinds: kinds}
				if *show {
					o.Trace = &trace
				}
				r, err := RunAgents(InTest(t), o)
				if err != nil {
					t.Errorf("%v\nits trace: go test ./simulation -run '^TestAgentSeeds$' -v -first %d -agents 1 -only '%s' -trace",
						err, o.Seed, *only)
					ended.Store(*stop)
				}
				mu.Lock()
				total.Add(r)
				if *show {
					t.Logf("%s", &trace)
				}
				mu.Unlock()
			}
		})
	}
}

// The same seed gives agents the same life, on one processor and on several.
func TestSameSeedSameAgentsTrace(t *testing.T) {
	for seed := *first; seed < *first+min(*agentSeeds, 4); seed++ {
		var traces [2]bytes.Buffer
		var results [2]AgentsResult
		for i := range traces {
			before := 0
			if i == 1 {
				before = runtime.GOMAXPROCS(1)
			}
			var err error
			results[i], err = RunAgents(InTest(t), Options{Seed: seed, Kinds: ClusterAll, Trace: &traces[i]})
			if before > 0 {
				runtime.GOMAXPROCS(before)
			}
			if err != nil {
				t.Error(err)
			}
		}
		if results[0] != results[1] {
			t.Fatalf("seed %d: two lives differ, from here on:\n%s", seed, firstDifference(traces[0].Bytes(), traces[1].Bytes()))
		}
		if traces[0].Len() < 1000 {
			t.Errorf("seed %d: a trace of %d bytes", seed, traces[0].Len())
		}
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
		startsOver:  {20, "no end in sight"},
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
