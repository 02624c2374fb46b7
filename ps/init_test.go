// SPDX-License-Identifier: Apache-2.0

package ps

import "testing"

// TestInitialWeightsAreSplitmix compares with SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): each
// column takes the next number of the row's stream.
func TestInitialWeightsAreSplitmix(t *testing.T) {
	const gamma uint64 = 0x9e3779b97f4a7c15
	i := Init{Scale: 0.5, Seed: 9}
	for _, key := range []uint64{0, 1, 1 << 63} {
		got := make([]float32, 5)
		i.fillRow(key, got)
		state := mix(mix(i.Seed+gamma) ^ key)
		for c := 1; c < len(got); c++ {
			want := (float64(mix(state+uint64(c)*gamma)>>40) - 1<<23) / (1 << 23) * 0.5
			if float64(got[c]) != want {
				t.Errorf("row %d, column %d: %g, want %g", key, c, got[c], want)
			}
		}
	}
}
