// SPDX-License-Identifier: Apache-2.0

package retransmit

import "testing"

// The bound grows in a round trip in which it was reached, and not in later ones.
func TestBoundGrowsWhereItIsReached(t *testing.T) {
	c := congestion{bound: 10, reached: true, round: 5}
	for i, want := range []float64{11, 11, 11} {
		c.updateBound(c.round, c.round+4, 100)
		if c.bound != want {
			t.Errorf("after round trip %d the bound is %v, want %v", i, c.bound, want)
		}
	}
}
