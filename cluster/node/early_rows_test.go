// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/train"
	"github.com/libra-ina/libra/train/data"
)

// versions is a server whose rows say which they are and how many mini-batches of its worker are
// part of them: those that a report named. Pulls, pushes and reports take random times.
type versions struct {
	train.Client
	mu      sync.Mutex
	rng     *rand.Rand
	settled uint64             // steps
	sums    map[uint64]float32 // of gradients
}

func (v *versions) nap(most int) time.Duration {
	v.mu.Lock()
	defer v.mu.Unlock()
	return time.Duration(v.rng.IntN(most)) * time.Microsecond
}

func (v *versions) Pull(ctx context.Context, keys []uint64, dst []float32) error {
	p, err := v.BeginPull(ctx, keys, dst)
	if err != nil {
		return err
	}
	return p.Wait(ctx)
}

// BeginPull reads each row at once, which is the oldest that it may be.
func (v *versions) BeginPull(_ context.Context, keys []uint64, dst []float32) (train.Pulling, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	rows := make([]float32, len(dst))
	for i := range keys {
		rows[i] = float32(1000*v.settled + keys[i]%1000)
	}
	return arriving{dst, rows}, nil
}

func (v *versions) Push(_ context.Context, keys []uint64, grads []float32) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	for i, key := range keys {
		v.sums[key] += grads[i]
	}
	return nil
}

func (v *versions) Flush(context.Context) error { time.Sleep(v.nap(300)); return nil }

// counted is a source of samples with one key of their own, a hot one of few, and one that all
// have.
type counted struct{ n, next int }

func (c *counted) keys(i int) []uint64 { return []uint64{uint64(i % 3), 10, 100 + uint64(i)} }
func (c *counted) Next(s *data.Sample) error {
	if c.next == c.n {
		return io.EOF
	}
	s.Label, s.Keys, s.Values = 1, append(s.Keys[:0], c.keys(c.next)...), append(s.Values[:0], 1, 1, 1)
	c.next++
	return nil
}
func (c *counted) Rewind() error     { c.next = 0; return nil }
func (c *counted) Shard() data.Shard { return data.Shard{Index: 0, Count: 1} }
func (c *counted) Rows() int         { return c.n }
func (c *counted) Close() error      { return nil }

// checking is a model that looks at how old rows are.
type checking struct {
	train.Linear
	of *age
}

type age struct {
	t     *testing.T
	step  uint64
	bound int
	most  int
	nap   func() time.Duration
}

func (m checking) Gradient(b *data.Batch, weights, grads []float32) float64 {
	time.Sleep(m.of.nap())
	for i, w := range weights {
		if key := uint64(w) % 1000; key != b.Keys[i]%1000 {
			m.of.t.Errorf("row %d is that of %d", b.Keys[i], key)
		}
		lacks := int(m.of.step) - int(w)/1000
		m.of.most = max(m.of.most, lacks)
		if lacks > m.of.bound {
			m.of.t.Errorf("staleness %d: row %d lacks %d mini-batches", m.of.bound, b.Keys[i], lacks)
		}
		grads[i] = 1
	}
	m.of.step++
	return 0
}

// However rows are kept, added up and asked for early, and however long reports take, no row lacks
// more mini-batches than Staleness allows, and each gradient is pushed once; also of a training
// that was resumed.
func TestRowsThatAreKeptAndPulledEarlyAreNoOlder(t *testing.T) {
	set, err := packer.NewHotSet(1, []uint64{10, 0, 2}, nil, packer.Meta{})
	if err != nil {
		t.Fatal(err)
	}
	for staleness := 1; staleness <= 9; staleness++ {
		for _, accumulate := range []int{1, 2, 5} {
			for _, every := range []time.Duration{time.Hour, time.Millisecond} {
				for _, first := range []uint64{0, 13} {
					synctest.Test(t, func(t *testing.T) {
						const rows, epochs = 61, 3
						v := &versions{rng: rand.New(rand.NewPCG(uint64(staleness), uint64(accumulate))), sums: map[uint64]float32{}, settled: first}
						a := &age{t: t, bound: staleness, step: first, nap: func() time.Duration { return v.nap(200) }}
						var c earlyClient = v
						kept := &hotRows{}
						if accumulate > 1 {
							kept = newHotRows(v, set, accumulate)
							c = kept
						}
						cfg := train.Config{
							Model: checking{of: a}, Epochs: epochs, Batch: 2, Staleness: staleness, ReportEvery: every, Window: 20, First: first,
							Report: func(_ context.Context, r train.Reached) error {
								time.Sleep(v.nap(3000))
								v.mu.Lock()
								v.settled = r.Steps
								v.mu.Unlock()
								time.Sleep(v.nap(100))
								kept.expireWeights()
								return nil
							},
						}
						result, err := train.Train(t.Context(), c, &counted{n: rows}, cfg)
						if err != nil {
							t.Fatal(err)
						}
						var pushed float32
						for _, n := range v.sums {
							pushed += n
						}
						// Of each mini-batch: one row for each sample, the bias, the row of all, and one or two of
						// few.
						if result.Steps != epochs*31-first || v.sums[10] != float32(result.Steps) || pushed < float32(result.Samples+2*result.Steps) {
							t.Errorf("%d steps, %v gradients, %v of the row of all", result.Steps, pushed, v.sums[10])
						}
						if first == 0 {
							for i := range rows {
								if n := v.sums[100+uint64(i)]; n != epochs {
									t.Errorf("row %d has %v gradients", i, n)
								}
							}
						}
						if want := max(1, staleness/2*2); every == time.Hour && a.most != want {
							t.Errorf("staleness %d: at most %d are missing, want %d", staleness, a.most, want)
						}
					})
				}
			}
		}
	}
}
