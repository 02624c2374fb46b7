// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/train/data"
)

// TestOrderOfSamples checks the order through shards, epochs and windows: each worker has its own,
// and a restarted worker relies on it.
func TestOrderOfSamples(t *testing.T) {
	const seed, window, batch = 5, 6, 1
	for shard := range 2 {
		r := &recorder{Local: Local{newStore(t, Linear{}, 0)}}
		cfg := Config{Model: Linear{}, Epochs: 3, Batch: batch, Seed: seed, Window: window}
		if _, err := Train(t.Context(), r, numbered(32, data.Shard{Index: shard, Count: 2}), cfg); err != nil {
			t.Fatal(err)
		}
		var got, want []uint64
		for _, keys := range r.pushed {
			got = append(got, keys[0])
		}
		for epoch := range uint64(3) {
			for block := range uint64(3) { // of 6, 6 and 4 samples
				var numbers []uint64
				for i := block * window; i < min(16, (block+1)*window); i++ {
					numbers = append(numbers, 2*i+uint64(shard))
				}
				rng := rand.New(rand.NewPCG(seed+uint64(shard)*0x9e3779b97f4a7c15, epoch<<32+block))
				rng.Shuffle(len(numbers), func(i, j int) { numbers[i], numbers[j] = numbers[j], numbers[i] })
				want = append(want, numbers...)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("shard %d: order %v, want %v", shard, got, want)
		}
	}
}

// deaf is a Client whose weights stay zero, so that every sample costs ln 2.
type deaf struct{ countingPuller }

func (*deaf) Push(context.Context, []uint64, []float32) error { return nil }
func (*deaf) Flush(context.Context) error                     { return nil }
func (*deaf) Barrier(context.Context, uint64) error           { return nil }

// TestProgressIsTheMeanOfAnEpoch counts mini-batches and samples over all epochs,
// and the loss over one.
func TestProgressIsTheMeanOfAnEpoch(t *testing.T) {
	for _, sync := range []bool{false, true} {
		var seen []Progress
		cfg := Config{
			Model: Linear{}, Epochs: 2, Batch: 10, Sync: sync,
			Progress: func(p Progress) { seen = append(seen, p) },
		}
		r, err := Train(t.Context(), &deaf{}, numbered(25, data.Shard{Index: 0, Count: 1}), cfg)
		if err != nil {
			t.Fatal(err)
		}
		if len(seen) != 6 || seen[5] != r.Progress || r.Elapsed <= 0 {
			t.Fatalf("progress %+v, result %+v", seen, r)
		}
		for i, p := range seen {
			samples := uint64(i/3*25 + min(i%3*10+10, 25))
			if p.Epoch != i/3 || p.Step != uint64(i) || p.Steps != uint64(i+1) || p.Samples != samples || math.Abs(*p.LogLoss-math.Ln2) > 1e-9 {
				t.Errorf("mini-batch %d: %+v, want %d samples", i, p, samples)
			}
		}
	}
}

func TestMergedProgress(t *testing.T) {
	mean := 0.8
	a := &worker{cfg: Config{Model: Linear{}}, loss: 3, samples: 4, progress: Progress{Epoch: 2, Step: 9, Steps: 5, Samples: 40}}
	b := &worker{loss: 1, samples: 1, progress: Progress{Epoch: 2, Step: 9, Steps: 3, Samples: 20}}
	if diff := cmp.Diff(Progress{Epoch: 2, Step: 9, Steps: 8, Samples: 60, Loss: data.Loss{LogLoss: &mean}}, merge([]*worker{a, b})); diff != "" {
		t.Error(diff)
	}
	if got := merge([]*worker{{}, {}}); got != (Progress{}) {
		t.Errorf("workers without samples: %+v", got)
	}
}

// A worker without samples ends its epochs like the others.
func TestEmptyShardEndsEpochs(t *testing.T) {
	var epochs []int
	r := &recorder{Local: Local{newStore(t, Linear{}, 0)}}
	cfg := Config{Model: Linear{}, Epochs: 2, EpochDone: func(epoch int) error { epochs = append(epochs, epoch); return nil }}
	if _, err := Train(t.Context(), r, numbered(1, data.Shard{Index: 1, Count: 2}), cfg); err != nil || !slices.Equal(epochs, []int{0, 1}) || r.flushes != 2 {
		t.Errorf("epochs %v, %d flushes, %v", epochs, r.flushes, err)
	}
}

// A report starts the pause before the next.
func TestReportsPause(t *testing.T) {
	var reports []uint64
	cfg := Config{
		Staleness: math.MaxInt, ReportEvery: time.Hour,
		Report: func(_ context.Context, at Reached) error { reports = append(reports, at.Steps); return nil },
	}
	w := &worker{cfg: cfg, reports: reporter{cfg: &cfg, interval: math.MaxInt, at: time.Now().Add(-2 * time.Hour)}}
	for range 3 {
		if err := w.endStep(t.Context(), &deaf{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.reports.wait(); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(reports, []uint64{1}) {
		t.Errorf("reports %v, want one, of the first step", reports)
	}
}

// broken is a log with an unreadable row n.
type broken struct {
	*memory
	n int
}

func (b *broken) Next(s *data.Sample) error {
	if b.next >= b.n {
		return io.ErrUnexpectedEOF
	}
	return b.memory.Next(s)
}

// Training and its reference stop at any error.
func TestReadErrorsEndTraining(t *testing.T) {
	model := Linear{}
	for _, n := range []int{0, 3, 12} { // in the first window and in later ones
		cfg := Config{Model: model, Epochs: 2, Batch: 2, Window: 5}
		log := func() data.Source { return &broken{numbered(20, data.Shard{Index: 0, Count: 1}), n} }
		if _, err := Train(t.Context(), &deaf{}, log(), cfg); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("row %d: Train returns %v", n, err)
		}
		if _, err := Reference(t.Context(), newStore(t, model, 0), []data.Source{log()}, cfg); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("row %d: Reference returns %v", n, err)
		}
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	log := []data.Source{numbered(4, data.Shard{Index: 0, Count: 1})}
	if _, err := Reference(canceled, newStore(t, model, 0), log, Config{Model: model, Epochs: 1}); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	if _, err := Reference(t.Context(), newStore(t, model, 0), log, Config{}); err == nil {
		t.Error("Reference trains no model")
	}
}

// Sums do not depend on the order of the shards, even if one ends sooner.
func TestReferenceTakesShardsInAnyOrder(t *testing.T) {
	cfg := Config{Model: Linear{}, Epochs: 2, Batch: 5, Sync: true, Seed: 3}
	var hashes []any
	for _, order := range [][]int{{0, 1}, {1, 0}} {
		var shards []data.Source
		for _, i := range order {
			shards = append(shards, numbered(21, data.Shard{Index: i, Count: 2})) // 11 and 10 samples
		}
		store := newStore(t, cfg.Model, 0)
		got, err := Reference(t.Context(), store, shards, cfg)
		if err != nil || got.Steps != 10 || got.Samples != 42 {
			t.Errorf("order %v: %+v, %v", order, got, err)
		}
		hashes = append(hashes, store.Hash())
	}
	if hashes[0] != hashes[1] {
		t.Error("the weights differ")
	}
}
