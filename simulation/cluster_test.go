// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// No life of a cluster has a violation, whatever its seed.
func TestClusterSeeds(t *testing.T) { liveSeeds(t, "clusters", *clusters, RunCluster) }

// The same seed gives a cluster the same life, on one processor and on several.
func TestSameSeedSameClusterTrace(t *testing.T) {
	liveTwice(t, *first, min(*clusters, 3), ClusterAll, RunCluster)
}

// A job has no effect on another on its switch, and the checks notice if it has.
func TestNeighboursAreApart(t *testing.T) {
	for f, want := range map[fault]string{takesTheirs: "the banks of the switch hold", givesTheirs: "the job of a neighbour ends with the weights"} {
		t.Run(string(f), func(t *testing.T) {
			from := map[fault]uint64{takesTheirs: 1, givesTheirs: 392}[f] // few lives last until a neighbour's training ends
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

// The accounts notice a mark that lacks a frame of the harvest.
func TestLostMarkIsFound(t *testing.T) {
	for seed := uint64(1); seed <= 200; seed++ {
		_, err := RunCluster(InTest(t), Options{Seed: seed, Kinds: Crash, fault: losesMark})
		if err == nil {
			continue // no harvest had frames
		}
		if !strings.Contains(err.Error(), "which was harvested") {
			t.Errorf("found by something else: %v", err)
		}
		return
	}
	t.Error("200 lives have not shown it")
}

// The accounts notice a harvest without the mark of a worker that was withdrawn. That its frames
// count twice needs a loss of the switch as well.
func TestForgottenMarkIsFound(t *testing.T) {
	const name = "cluster-withdrawn-worker-settles.txt"
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	for seed := range uint64(clusterScriptSeeds) {
		err := liveClusterScript(t, name, string(text), Options{Seed: seed + 1, fault: forgetsWithdrawn})
		if err == nil {
			continue // a harvest before the withdrawal had all
		}
		if !strings.Contains(err.Error(), "was harvested without a mark of it") {
			t.Errorf("found by something else: %v", err)
		}
		return
	}
	t.Error("no schedule has shown it")
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
