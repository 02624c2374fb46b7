// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// The sums of a step of 16,384 rows of one column, as from four hosts whose frames take turns.
func BenchmarkAppendSums(b *testing.B) {
	const hosts, rows, frame = 4, 1 << 12, 256
	s, err := New(Config{Dim: 1, Exp: -30, Optimizer: Optimizer{Method: None}})
	if err != nil {
		b.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	grads := make([]float32, frame)
	for i := range grads {
		grads[i] = float32(i + 1)
	}
	var keys [hosts][]uint64
	for h := range keys {
		for range rows {
			keys[h] = append(keys[h], rng.Uint64N(1<<20))
		}
		slices.Sort(keys[h])
	}
	for b.Loop() {
		b.StopTimer()
		for i := 0; i < rows; i += frame {
			for h := range keys {
				if err := s.Push(keys[h][i:i+frame], grads); err != nil {
					b.Fatal(err)
				}
			}
		}
		b.StartTimer()
		_, _, _ = s.AppendSums(nil, nil)
		b.StopTimer()
		s.Commit()
		s.MakeRoom()
		b.StartTimer()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/(hosts*rows), "ns/row")
}
