// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"testing"

	"github.com/libra-ina/libra/wire"
)

const (
	benchKeys = 1 << 20
	benchHot  = 30_000
)

// benchKey scatters ranks over the key space, as hashed features are.
func benchKey(rank uint64) uint64 {
	hi, lo := bits.Mul64(rank^0x2d358dccf1f0f030, 0x9e3779b97f4a7c15)
	return hi ^ lo
}

func benchHotSet(tb testing.TB, dim int) *HotSet {
	tb.Helper()
	keys := make([]uint64, benchHot/dim)
	for r := range keys {
		keys[r] = benchKey(uint64(r))
	}
	h, err := NewHotSet(dim, keys, nil, Meta{})
	if err != nil {
		tb.Fatal(err)
	}
	return h
}

type testBatch struct {
	keys  []uint64
	grads []float32
}

// benchBatches draws batches with Zipf exponent 1.1 over 2^20 keys. With
// combined, the keys of a batch are distinct, as after a worker has added up
// the gradients of one iteration.
func benchBatches(n, size, dim int, combined bool) []testBatch {
	rng := rand.New(rand.NewPCG(1, 2))
	zipf := rand.NewZipf(rng, 1.1, 1, benchKeys-1)
	batches := make([]testBatch, n)
	for b := range batches {
		seen := map[uint64]bool{}
		for len(batches[b].keys) < size {
			key := benchKey(zipf.Uint64())
			if combined && seen[key] {
				continue
			}
			seen[key] = true
			batches[b].keys = append(batches[b].keys, key)
		}
		for range size * dim {
			batches[b].grads = append(batches[b].grads, rng.Float32()-0.5)
		}
	}
	return batches
}

// ring is a set of payloads as large as a UMEM.
type ring struct {
	frames [512][1500]byte
	next   int
}

// fill packs a batch into payloads of the ring.
func (r *ring) fill(p *Packer, b testBatch) (Sent, error) {
	err := p.Begin(b.keys, b.grads)
	for err == nil && p.Next() != 0 {
		r.next++
		_, err = p.Fill(r.frames[r.next%len(r.frames)][wire.EnvelopeLen:])
	}
	return p.Sent(), err
}

func BenchmarkPack(b *testing.B) {
	for _, layout := range []Layout{LaneAligned, Dense} {
		for _, combined := range []bool{false, true} {
			for _, dim := range []int{1, 16} {
				name := fmt.Sprintf("%v/combined=%v/dim=%d", layout, combined, dim)
				b.Run(name, func(b *testing.B) {
					const size = 4096
					hot := benchHotSet(b, dim)
					p, err := New(Config{HotSet: hot, Layout: layout, Stripes: wire.DefaultStripes})
					if err != nil {
						b.Fatal(err)
					}
					batches := benchBatches(64, size/dim, dim, combined)
					frames := &ring{}
					var pairs int
					var total Sent
					pack := func(i int) {
						t := batches[i%len(batches)]
						sent, err := frames.fill(p, t)
						if err != nil {
							b.Fatal(err)
						}
						pairs += len(t.grads)
						total.HotPairs += sent.HotPairs
						total.HotStripes += sent.HotStripes
					}
					for i := range batches { // grow the scratch memory
						pack(i)
					}
					pairs, total = 0, Sent{}
					b.ReportAllocs()
					for i := 0; b.Loop(); i++ {
						pack(i)
					}
					b.ReportMetric(float64(pairs)/b.Elapsed().Seconds()/1e6, "Mpairs/s")
					b.ReportMetric(100*total.Unfilled(), "%unfilled")
					b.ReportMetric(100*float64(total.HotPairs)/float64(pairs), "%hot")
				})
			}
		}
	}
}

func BenchmarkRanks(b *testing.B) {
	hot := benchHotSet(b, 1)
	batches := benchBatches(64, 4096, 1, false)
	ranks := make([]uint32, 4096)
	b.Run("batch", func(b *testing.B) {
		n := 0
		for i := 0; b.Loop(); i++ {
			hot.index.findAll(ranks, batches[i%len(batches)].keys)
			n += len(ranks)
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/key")
	})
	b.Run("one by one", func(b *testing.B) {
		n := 0
		for i := 0; b.Loop(); i++ {
			for k, key := range batches[i%len(batches)].keys {
				ranks[k], _ = hot.Rank(key)
			}
			n += len(ranks)
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/key")
	})
	b.Run("map", func(b *testing.B) {
		m := make(map[uint64]uint32, hot.Len())
		for r := range uint32(hot.Len()) {
			m[hot.Key(r)] = r + 1
		}
		n := 0
		for i := 0; b.Loop(); i++ {
			for k, key := range batches[i%len(batches)].keys {
				ranks[k] = m[key]
			}
			n += len(ranks)
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/key")
	})
}
