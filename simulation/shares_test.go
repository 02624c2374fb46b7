// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"strings"
	"testing"
)

// A step takes the sums of all shares, and lives notice if it does not.
func TestCommitWithoutAShareIsFound(t *testing.T) {
	for seed := uint64(1); seed <= 400; seed++ {
		_, err := RunCluster(InTest(t), Options{Seed: seed, Kinds: Neighbour, fault: commitsWithout})
		if err == nil {
			continue // there is no neighbour with shares, or nothing was in its second one
		}
		t.Logf("seed %d: %v", seed, err)
		if !strings.Contains(err.Error(), "the job of a neighbour ends with the weights") {
			t.Errorf("found by something else")
		}
		return
	}
	t.Error("400 lives have not shown it")
}
