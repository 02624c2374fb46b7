// SPDX-License-Identifier: Apache-2.0

package digits

import "testing"

// BenchmarkGradient is a worker's step with the paper's network.
func BenchmarkGradient(b *testing.B) {
	n := New([]int{784, 500, 500, 10}, 1)
	images, labels := make([]float32, 25*784), make([]uint8, 25)
	for i := range images {
		images[i] = float32(i%7) / 7
	}
	gradient, p := make([]float32, len(n.Weights)), n.NewPass(25)
	for b.Loop() {
		p.Gradient(gradient, images, labels)
	}
}
