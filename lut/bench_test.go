// SPDX-License-Identifier: Apache-2.0

package lut

import (
	"math"
	"math/rand/v2"
	"testing"
)

// BenchmarkAdd adds numbers whose order the branch predictor cannot learn.
func BenchmarkAdd(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, c := range []struct {
		name string
		draw func() float64
	}{
		{"uniform (0,1)", rng.Float64},
		{"uniform (-1,1)", func() float64 { return 2*rng.Float64() - 1 }},
		{"normal, wide exponents", func() float64 { return rng.NormFloat64() * math.Exp2(-20*rng.Float64()) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			numbers := make([]uint32, 1<<18)
			for i := range numbers {
				numbers[i] = math.Float32bits(float32(c.draw()))
			}
			i, sum := 0, uint32(0)
			for b.Loop() {
				sum ^= defaultAdder.Add(numbers[i], numbers[i+1])
				i = (i + 2) % len(numbers)
			}
			_ = sum
		})
	}
}

func BenchmarkNew(b *testing.B) {
	for b.Loop() {
		mustNew(Config{})
	}
}
