// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/libra-ina/libra/wire"
)

const (
	benchKeys  = 1 << 20
	benchPairs = 4096
)

// zipfBatches returns 64 batches of keys with a Zipf distribution of exponent 1.1
// over benchKeys keys that lie anywhere in the 64-bit space.
func zipfBatches() [][]uint64 {
	rng := rand.New(rand.NewPCG(1, 2))
	zipf := rand.NewZipf(rng, 1.1, 1, benchKeys-1)
	batches := make([][]uint64, 64)
	for i := range batches {
		for range benchPairs {
			batches[i] = append(batches[i], mix(zipf.Uint64()))
		}
	}
	return batches
}

func gradients(n int) []float32 {
	rng := rand.New(rand.NewPCG(3, 4))
	grads := make([]float32, n)
	for i := range grads {
		grads[i] = rng.Float32() - 0.5
	}
	return grads
}

func reportPairs(b *testing.B) {
	b.ReportMetric(float64(b.N)*benchPairs/b.Elapsed().Seconds()/1e6, "Mpairs/s")
}

// BenchmarkAccumulate adds frames of 4,096 pairs to a warm store; every 64th is
// followed by a commit.
func BenchmarkAccumulate(b *testing.B) {
	s := newStore(b, Config{Dim: 1, Exp: DefaultExp, Capacity: benchKeys})
	var frames []wire.Rows
	grads := gradients(benchPairs)
	for _, keys := range zipfBatches() {
		frames = append(frames, cold(keys, grads))
	}
	i := 0
	for b.Loop() {
		if err := s.Accumulate(frames[i%len(frames)]); err != nil {
			b.Fatal(err)
		}
		if i++; i%len(frames) == 0 {
			s.Commit()
		}
	}
	reportPairs(b)
}

// BenchmarkMap works like a plain parameter server: the weights of 4,096 keys are updated in a Go
// map.
func BenchmarkMap(b *testing.B) {
	weights := make(map[uint64]float32, benchKeys)
	var frames []wire.Rows
	grads := gradients(benchPairs)
	for _, keys := range zipfBatches() {
		frames = append(frames, cold(keys, grads))
	}
	var value [1]float32
	i := 0
	for b.Loop() {
		rows := frames[i%len(frames)]
		for j := range rows.Count {
			rows.Row(j, value[:])
			weights[rows.Key(j)] -= 0.05 * value[0]
		}
		i++
	}
	reportPairs(b)
}

// BenchmarkPushRows adds batches of 4,096 rows of a factorisation machine.
func BenchmarkPushRows(b *testing.B) {
	s := newStore(b, Config{Dim: 9, Exp: DefaultExp, Optimizer: Optimizer{Method: Adagrad}})
	batches := zipfBatches()
	grads := gradients(benchPairs * 9)
	i := 0
	for b.Loop() {
		if err := s.Push(batches[i%len(batches)], grads); err != nil {
			b.Fatal(err)
		}
		if i++; i%len(batches) == 0 {
			s.Commit()
		}
	}
	b.ReportMetric(float64(b.N)*benchPairs/b.Elapsed().Seconds()/1e6, "Mrows/s")
}

func BenchmarkRead(b *testing.B) {
	s := newStore(b, Config{Dim: 1, Exp: DefaultExp, Capacity: benchKeys})
	batches := zipfBatches()
	grads := gradients(benchPairs)
	for _, keys := range batches {
		if err := s.Push(keys, grads); err != nil {
			b.Fatal(err)
		}
	}
	dst := make([]float32, benchPairs)
	i := 0
	for b.Loop() {
		s.Read(batches[i%len(batches)], dst)
		i++
	}
	reportPairs(b)
}

// BenchmarkHarvest applies and commits harvests of 65,536 sums, of hot rows that a job has pushed
// in a different order before. It reports nanoseconds per sum.
func BenchmarkHarvest(b *testing.B) {
	for _, dim := range []int{1, 9} {
		for _, method := range []Method{SGD, Adagrad} {
			b.Run(fmt.Sprintf("dim=%d/%v", dim, method), func(b *testing.B) {
				const sums = 65_536
				hot := make([]uint64, sums/dim)
				for r := range hot {
					hot[r] = mix(uint64(r))
				}
				s := newStore(b, Config{Dim: dim, Exp: DefaultExp, Optimizer: Optimizer{Method: method, LearningRate: 0.01}})
				for _, r := range rand.New(rand.NewPCG(5, 6)).Perm(len(hot)) {
					if err := s.Push(hot[r:r+1], gradients(dim)); err != nil {
						b.Fatal(err)
					}
				}
				h := Harvest{}
				for rank := range uint32(len(hot) * dim) {
					h.Ranks, h.Sums = append(h.Ranks, rank), append(h.Sums, int64(rank)+1)
				}
				for b.Loop() {
					h.Number++
					if _, err := s.ApplyHarvest(h, hot); err != nil {
						b.Fatal(err)
					}
					s.Commit()
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(h.Sums)), "ns/sum")
			})
		}
	}
}
