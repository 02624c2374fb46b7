// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"math/rand/v2"
	"testing"
)

// A step of 16,384 rows of one column, in batches as of frames, all of them new, or none; and
// without an optimiser, where all are.
func BenchmarkFreshRows(b *testing.B) {
	const rows, frame = 1 << 14, 128
	adagrad := Optimizer{Method: Adagrad, LearningRate: 0.1, Epsilon: 1e-8}
	for _, c := range []struct {
		name      string
		fresh     bool
		optimizer Optimizer
	}{{"new", true, adagrad}, {"known", false, adagrad}, {"no optimiser", true, Optimizer{Method: None}}} {
		b.Run(c.name, func(b *testing.B) {
			rng := rand.New(rand.NewPCG(1, 2))
			grads := make([]float32, frame)
			for i := range grads {
				grads[i] = float32(i + 1)
			}
			var s *Store
			keys := make([]uint64, rows)
			for n := 0; b.Loop(); n++ {
				b.StopTimer()
				if n%40 == 0 {
					var err error
					if s, err = New(Config{Dim: 1, Exp: -30, Optimizer: c.optimizer}); err != nil {
						b.Fatal(err)
					}
				}
				if c.fresh || n == 0 { // known ones are new once in 40 steps
					for i := range keys {
						keys[i] = rng.Uint64N(1 << 40)
					}
				}
				b.StartTimer()
				for i := 0; i < rows; i += frame {
					if err := s.Push(keys[i:i+frame], grads); err != nil {
						b.Fatal(err)
					}
				}
				b.StopTimer()
				s.Commit()
				s.MakeRoom()
				b.StartTimer()
			}
		})
	}
}
