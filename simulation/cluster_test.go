// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// No life of a cluster has a violation, whatever its seed.
func TestClusterSeeds(t *testing.T) {
	kinds, err := ParseKinds(*only)
	if err != nil {
		t.Fatal(err)
	}
	var (
		mu    sync.Mutex
		total ClusterResult
		ended atomic.Bool
	)
	t.Cleanup(func() { t.Logf("%d seeds from %d on, %v:\n%+v", *clusters, *first, kinds, total) })
	shards := uint64(runtime.GOMAXPROCS(0))
	for shard := range shards {
		t.Run(fmt.Sprintf("shard %d of %d", shard+1, shards), func(t *testing.T) {
			t.Parallel()
			for n := shard; n < *clusters && !ended.Load(); n += shards {
				var trace bytes.Buffer
				o := Options{Seed: *first + n, Kinds: kinds}
				if *show {
					o.Trace = &trace
				}
				r, err := RunCluster(InTest(t), o)
				if err != nil {
					t.Errorf("%v\nits trace: go test ./simulation -run '^TestClusterSeeds$' -v -first %d -clusters 1 -only '%s' -trace",
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

// The same seed gives a cluster the same life, on one processor and on several.
func TestSameSeedSameClusterTrace(t *testing.T) {
	for seed := *first; seed < *first+min(*clusters, 3); seed++ {
		var traces [2]bytes.Buffer
		var results [2]ClusterResult
		for i := range traces {
			before := 0
			if i == 1 {
				before = runtime.GOMAXPROCS(1)
			}
			var err error
			results[i], err = RunCluster(InTest(t), Options{Seed: seed, Kinds: ClusterAll, Trace: &traces[i]})
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

// A job has no effect on another on its switch, and the checks notice if it has.
func TestNeighboursAreApart(t *testing.T) {
	for f, want := range map[fault]string{takesTheirs: "the banks of the switch hold", givesTheirs: "the job of a neighbour ends with the weights"} {
		t.Run(string(f), func(t *testing.T) {
			from := map[fault]uint64{takesTheirs: 1, givesTheirs: 380}[f] // few lives last until a neighbour's training ends
			for seed := from; seed < from+200; seed++ {
				if _, err := RunCluster(InTest(t), Options{Seed: seed, Kinds: Neighbour | Crash, fault: f}); err != nil {
					t.Logf("found: %v", err)
					if !strings.Contains(err.Error(), want) {
						t.Errorf("found by something else than %q", want)
					}
					return
				}
			}
			t.Error("200 lives have not shown it")
		})
	}
	without, err := RunCluster(InTest(t), Options{Seed: 1, Kinds: ClusterAll &^ Neighbour})
	if err != nil || without.Neighbours != 0 {
		t.Errorf("a neighbour although there is none: %d trainings, %v", without.Neighbours, err)
	}
}

// firstDifference returns the lines around the first difference of two traces.
func firstDifference(a, b []byte) string {
	at := 0
	for at < min(len(a), len(b)) && a[at] == b[at] {
		at++
	}
	from := max(0, at-300)
	return fmt.Sprintf("%s\n--- and\n%s", a[from:min(len(a), at+100)], b[from:min(len(b), at+100)])
}

// No outage of a link that is shorter than ten seconds ends a process, whoever notices it first.
func TestOutagesEndNothing(t *testing.T) {
	var total ClusterResult
	for seed := uint64(1); seed <= 40; seed++ {
		r, err := RunCluster(InTest(t), Options{Seed: seed, Kinds: Outage})
		if err != nil {
			t.Error(err)
		}
		total.Add(r)
	}
	if total.Outages < 20 {
		t.Errorf("%d outages", total.Outages)
	}
}
