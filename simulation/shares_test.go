// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"strings"
	"testing"
)

// A step takes the sums of all shares, at one switch or at several, each by its own number, and
// lives notice if it does not. So do lives without barriers, where the last step lacks something.
func TestFaultsOfSharesAreFound(t *testing.T) {
	for _, f := range []fault{commitsWithout, numbersTogether, closesEarly, acknowledgesChild, addsChildTwice} {
		const lives = 400
		seed := uint64(1)
		for ; seed <= lives; seed++ {
			_, err := RunCluster(InTest(t), Options{Seed: seed, Kinds: Neighbour, fault: f})
			if err == nil {
				continue // there is no neighbour with shares, or nothing was in its second one
			}
			t.Logf("%s: seed %d: %v", f, seed, err)
			if !strings.Contains(err.Error(), "the job of a neighbour ends with the weights") &&
				(f != acknowledgesChild || !strings.Contains(err.Error(), "which nothing explains")) &&
				(f != closesEarly || !strings.Contains(err.Error(), "neighbour's worker")) { // its frames are refused
				t.Errorf("%s: found by something else", f)
			}
			break
		}
		if seed > lives {
			t.Errorf("%s: %d lives have not shown it", f, lives)
		}
	}
}

// Some neighbours train with several switches to the end, and some without barriers, though
// machines lose power and processes are killed, some of them while the plan changes.
func TestNeighboursWithSeveralSwitches(t *testing.T) {
	for _, kinds := range []Kinds{Neighbour, Neighbour | Crash} {
		const start, lives = 30, 200 // shortly before the first that trains to the end
		divided, timed, changes, interrupted := 0, 0, 0, 0
		for seed := uint64(start); seed < start+lives && (divided == 0 || timed == 0 || changes == 0 || interrupted == 0 && kinds&Crash != 0); seed++ {
			r, err := RunCluster(InTest(t), Options{Seed: seed, Kinds: kinds})
			if err != nil {
				t.Fatal(err)
			}
			divided, timed, changes = divided+r.Divided, timed+r.Timed, changes+r.Changes
			interrupted += r.Interrupted
		}
		if divided == 0 || timed == 0 || changes == 0 || interrupted == 0 && kinds&Crash != 0 {
			t.Errorf("%v: %d lives: %d divided, %d timed, %d changes, %d interrupted", kinds, lives, divided, timed, changes, interrupted)
		}
	}
}

// The server, the worker or a switch is killed when the worker has adopted a plan, and before the
// shares that it has left are harvested once more and closed: then the job ends, or has lost
// nothing.
func TestKillsBetweenAdoptionAndClose(t *testing.T) {
	const start, lives, want = 10, 120, 3 // shortly before the first
	unclosed, changes := 0, 0
	for seed := uint64(start); seed < start+lives && unclosed < want; seed++ {
		r, err := RunCluster(InTest(t), Options{Seed: seed, Kinds: Neighbour | Crash, changes: true})
		if err != nil {
			t.Fatal(err)
		}
		unclosed, changes = unclosed+r.Unclosed, changes+r.Changes
	}
	if unclosed < want || changes == 0 {
		t.Errorf("%d lives: %d killed, %d changes", lives, unclosed, changes)
	}
}
