// SPDX-License-Identifier: Apache-2.0

package ring

import (
	"fmt"
	"math"
	"math/rand/v2"
)

// Gradients writes random gradients into a vector. 92 % are below 2^-10, 6.5 % below 2^-5 and 1.5 %
// below 1: the shares of the codes of 0, 1 and 2 bytes that the paper's Table III has of a
// perceptron's gradients.
func Gradients(vector []float32, worker int) {
	rng := rand.New(rand.NewPCG(1, uint64(worker)))
	for i := range vector {
		least, most := 0.0, 0x1p-10
		switch x := rng.Float64(); {
		case x < 0.015:
			least, most = 0x1p-5, 1
		case x < 0.08:
			least, most = 0x1p-10, 0x1p-5
		}
		v := least + rng.Float64()*(most-least)
		if rng.Uint32()&1 == 0 {
			v = -v
		}
		vector[i] = float32(v)
	}
}

// check compares results with the sums of what the workers gave in an operation, and with each
// other: they must be the same.
func check(vectors [][]float32, sums []float64, bound float64) error {
	for w, v := range vectors {
		for i, x := range v {
			if math.Float32bits(x) != math.Float32bits(vectors[0][i]) {
				return fmt.Errorf("value %d is %v at worker %d, and %v at worker 0", i, x, w, vectors[0][i])
			}
		}
	}
	for i, x := range vectors[0] {
		if !(math.Abs(float64(x)-sums[i]) <= bound) {
			return fmt.Errorf("value %d is %v, want %v with an error of at most %v", i, x, sums[i], bound)
		}
	}
	return nil
}
