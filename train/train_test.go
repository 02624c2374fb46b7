// SPDX-License-Identifier: Apache-2.0

package train

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
	"pgregory.net/rapid"

	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/train/data"
	"github.com/libra-ina/libra/train/settings"
)

func newStore(tb testing.TB, m Model, seed uint64) *ps.Store {
	tb.Helper()
	store, err := ps.New(SmallData.Store(m, seed))
	if err != nil {
		tb.Fatal(err)
	}
	return store
}

// cluster is a parameter server for several workers in this process.
type cluster struct {
	mu      sync.Mutex
	arrived sync.Cond
	store   *ps.Store
	workers int
	waiting int
	step    uint64
	failed  error
}

func newCluster(store *ps.Store, workers int) *cluster {
	c := &cluster{store: store, workers: workers}
	c.arrived.L = &c.mu
	return c
}

func (c *cluster) Pull(ctx context.Context, keys []uint64, dst []float32) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Local{c.store}.Pull(ctx, keys, dst)
}

func (c *cluster) Push(ctx context.Context, keys []uint64, grads []float32) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Local{c.store}.Push(ctx, keys, grads)
}

func (c *cluster) Flush(context.Context) error { return nil }

// Barrier commits when the last worker arrives.
func (c *cluster) Barrier(_ context.Context, step uint64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if step != c.step { // the others would wait for this worker
		c.failed = fmt.Errorf("barrier of step %d in step %d", step, c.step)
		c.arrived.Broadcast()
	}
	if c.failed != nil {
		return c.failed
	}
	if c.waiting++; c.waiting == c.workers {
		c.store.Commit()
		c.waiting = 0
		c.step++
		c.arrived.Broadcast()
		return nil
	}
	for c.step == step && c.failed == nil {
		c.arrived.Wait()
	}
	if c.step == step {
		return c.failed
	}
	return nil
}

// TestSynchronousTrainingMatchesReference runs workers whose shards have
// different numbers of mini-batches, with the whole shard and with a window of it
// in memory.
func TestSynchronousTrainingMatchesReference(t *testing.T) {
	for _, test := range []struct{ rows, workers, batch, window int }{
		{1000, 1, 64, 0},
		{1003, 4, 25, 0},   // shard 3 lacks a sample, but no mini-batch
		{1001, 4, 25, 0},   // shard 0 has one mini-batch more than the others
		{1001, 4, 25, 60},  // windows of two and a half mini-batches
		{1000, 2, 100, 50}, // mini-batches limited by the window
		{3, 5, 2, 0},       // two shards are empty
	} {
		t.Run(fmt.Sprintf("%+v", test), func(t *testing.T) {
			cfg := Config{
				Model: FM{Factors: 4, L2: 1e-4}, Epochs: 3, Batch: test.batch,
				Sync: true, Seed: 11, Window: test.window,
			}
			sources := func() []data.Source { return shards(t, test.rows, test.workers) }
			reference := newStore(t, cfg.Model, 1)
			want, err := Reference(t.Context(), reference, sources(), cfg)
			if err != nil {
				t.Fatal(err)
			}

			c := newCluster(newStore(t, cfg.Model, 1), test.workers)
			var group errgroup.Group
			results := make([]Result, test.workers)
			for i, src := range sources() {
				group.Go(func() (err error) {
					results[i], err = Train(t.Context(), c, src, cfg)
					return err
				})
			}
			if err := group.Wait(); err != nil {
				t.Fatal(err)
			}
			if c.store.Hash() != reference.Hash() {
				t.Error("the weights differ from the reference's")
			}
			if c.store.Hash() == newStore(t, cfg.Model, 1).Hash() {
				t.Error("nothing was trained")
			}
			var got Progress
			for _, r := range results {
				got.Steps += r.Steps
				got.Samples += r.Samples
			}
			if got.Steps != want.Steps || got.Samples != want.Samples || got.Samples != uint64(3*test.rows) {
				t.Errorf("%+v, the reference has %+v", got, want.Progress)
			}
		})
	}
}

func TestBatchesCountsTheLoop(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 200).Draw(t, "n")
		window := rapid.OneOf(rapid.IntRange(1, 250), rapid.Just(math.MaxInt)).Draw(t, "window")
		batch := rapid.OneOf(rapid.IntRange(1, 250), rapid.Just(math.MaxInt)).Draw(t, "batch")
		cfg, err := Config{Model: Linear{}, Window: window, Batch: batch}.normal()
		if err != nil {
			t.Fatal(err)
		}
		w := &worker{src: &memory{samples: make([]data.Sample, n), shard: data.Shard{Index: 0, Count: 1}}, cfg: cfg}
		for epoch := range 2 {
			if err := w.start(epoch); err != nil {
				t.Fatal(err)
			}
			samples := 0
			for {
				more, err := w.next()
				if err != nil {
					t.Fatal(err)
				}
				if !more {
					break
				}
				samples += w.batch.Len()
			}
			if samples != n || w.padding() != 0 {
				t.Fatalf("%d samples in %d mini-batches, %d missing; want %d", samples, w.count, w.padding(), n)
			}
		}
	})
}

// Zeros stand for the defaults of package settings.
func TestConfigHasTheDefaultsOfFields(t *testing.T) {
	cfg, err := Config{Model: Linear{}}.normal()
	if err != nil || cfg.Epochs != settings.Epochs.Default || cfg.Batch != settings.Batch.Default {
		t.Errorf("%+v, %v", cfg, err)
	}
	for name, r := range map[string]Recipe{"small data": SmallData, "frequent features": Frequent, "click log": ClickLog} {
		if r.Epochs < 1 || r.Batch < 1 || r.Factors < 1 || r.Staleness < 1 || r.Accumulate < 1 || r.Optimizer.LearningRate <= 0 || r.Optimizer.InitialAccumulator <= 0 || r.Scale <= 0 {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// recorder is a Client that records the samples of each mini-batch, by the one feature of each
// sample.
type recorder struct {
	Local
	pushed  [][]uint64
	flushes int
}

func (r *recorder) Push(ctx context.Context, keys []uint64, grads []float32) error {
	r.pushed = append(r.pushed, slices.Clone(keys))
	return r.Local.Push(ctx, keys, grads)
}

func (r *recorder) Flush(context.Context) error { r.flushes++; return nil }

func (r *recorder) Barrier(context.Context, uint64) error {
	return errors.New("a barrier in asynchronous training")
}

func TestEpochsShuffleAllSamples(t *testing.T) {
	log := &memory{shard: data.Shard{Index: 0, Count: 1}}
	var want []uint64
	for i := range uint64(40) {
		log.samples = append(log.samples, data.Sample{Label: 1, Keys: []uint64{i}, Values: []float32{1}})
		want = append(want, i)
	}
	train := func(seed uint64) *recorder {
		log.next = 0
		r := &recorder{Local: Local{newStore(t, Linear{}, 0)}}
		epochs := 0
		cfg := Config{Model: Linear{}, Epochs: 2, Batch: 10, Seed: seed, EpochDone: func(epoch int) error {
			if epoch != epochs || r.flushes != epoch+1 {
				t.Errorf("epoch %d ends as number %d, after %d flushes", epoch, epochs, r.flushes)
			}
			epochs++
			return nil
		}}
		result, err := Train(t.Context(), r, log, cfg)
		if err != nil {
			t.Fatal(err)
		}
		if result.Samples != 80 || result.Steps != 8 || result.Epoch != 1 || epochs != 2 {
			t.Errorf("%+v after %d epochs", result, epochs)
		}
		return r
	}
	first := train(5)
	for epoch := range 2 {
		var got []uint64
		for _, keys := range first.pushed[4*epoch:][:4] {
			got = append(got, keys[:len(keys)-1]...) // all but the bias
		}
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("epoch %d: %s", epoch, diff)
		}
	}
	if cmp.Equal(first.pushed[:4], first.pushed[4:]) {
		t.Error("both epochs have the same order")
	}
	if diff := cmp.Diff(first.pushed, train(5).pushed); diff != "" {
		t.Error(diff)
	}
	if cmp.Equal(first.pushed, train(6).pushed) {
		t.Error("the seed changes nothing")
	}
}

// failing is a Client of which only the n-th call fails: each error has to be noticed.
type failing struct {
	Local
	calls int
}

var errFailing = errors.New("the server is gone")

func (f *failing) call() error {
	if f.calls--; f.calls == -1 {
		return errFailing
	}
	return nil
}

func (f *failing) Push(context.Context, []uint64, []float32) error { return f.call() }
func (f *failing) Pull(context.Context, []uint64, []float32) error { return f.call() }
func (f *failing) Flush(context.Context) error                     { return f.call() }
func (f *failing) Barrier(context.Context, uint64) error           { return f.call() }

func TestTrainingStopsAtErrors(t *testing.T) {
	log := func() data.Source {
		return synthetic(t, data.SyntheticConfig{Rows: 10, Fields: 2, Features: 100, Hot: 10}, data.Shard{})
	}
	cfg := Config{Model: Linear{}, Epochs: 1, Batch: 5, Sync: true}
	const calls = 2*4 + 1
	for n := range calls {
		if _, err := Train(t.Context(), &failing{calls: n}, log(), cfg); !errors.Is(err, errFailing) {
			t.Errorf("call %d fails: %v", n, err)
		}
	}
	if _, err := Train(t.Context(), &failing{calls: calls}, log(), cfg); err != nil {
		t.Errorf("no call fails: %v", err)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	local := Local{newStore(t, Linear{}, 0)}
	if _, err := Train(canceled, local, log(), cfg); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	cfg.EpochDone = func(int) error { return io.ErrShortWrite }
	if _, err := Train(t.Context(), local, log(), cfg); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("end of the epoch: %v", err)
	}
	name := filepath.Join(t.TempDir(), "log.libfm")
	if err := os.WriteFile(name, []byte("1 1:1\n1 x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	broken := open(t, name)
	if _, err := Train(t.Context(), local, broken, Config{Model: Linear{}}); err == nil {
		t.Error("a malformed row is accepted")
	}
	for name, cfg := range map[string]Config{
		"no model": {}, "epochs": {Model: Linear{}, Epochs: -1},
		"batch": {Model: Linear{}, Batch: -1}, "window": {Model: Linear{}, Window: -1},
	} {
		if _, err := Train(t.Context(), local, log(), cfg); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// growing is a client whose weights grow with each pull, and whose second push fails.
type growing struct {
	failing
	pulls, pushes int
	first         float64 // largest gradient of the first push
}

func (g *growing) Pull(_ context.Context, _ []uint64, dst []float32) error {
	g.pulls++
	for i := range dst {
		dst[i] = float32(-2 * g.pulls)
	}
	return nil
}

func (g *growing) Push(_ context.Context, _ []uint64, grads []float32) error {
	if g.pushes++; g.pushes == 2 {
		return errFailing
	}
	g.first = largestMagnitude(grads)
	return nil
}

// A failure describes the first mini-batch, not the last.
func TestFailureHasTheBeginning(t *testing.T) {
	log := synthetic(t, data.SyntheticConfig{Rows: 10, Fields: 2, Features: 100, Hot: 10}, data.Shard{})
	c := &growing{failing: failing{calls: 100}}
	_, err := Train(t.Context(), c, log, Config{Model: Linear{}, Epochs: 1, Batch: 5, Sync: true})
	failure := (*Failure)(nil)
	if !errors.As(err, &failure) || c.pulls != 2 || failure.Weights != 2 || failure.Begin != c.first || c.first == 0 {
		t.Errorf("%+v after %d pulls; the first gradients were up to %g", failure, c.pulls, c.first)
	}
}

// The mini-batches of a failure have the samples that there are, whatever was configured: from more
// of them than there are, larger gradients would be expected.
func TestFailureHasTheSizeOfItsBatches(t *testing.T) {
	for batch, want := range map[int]int{5: 5, 10: 10, 1000: 10} {
		log := synthetic(t, data.SyntheticConfig{Rows: 10, Fields: 2, Features: 100, Hot: 10}, data.Shard{})
		c := &growing{failing: failing{calls: 100}}
		_, err := Train(t.Context(), c, log, Config{Model: Linear{}, Epochs: 2, Batch: batch})
		failure := (*Failure)(nil)
		if !errors.As(err, &failure) || failure.Batch != want {
			t.Errorf("batches of %d of 10 samples: %v, want batches of %d", batch, failure, want)
		}
	}
}

// restore returns a store as restored from a checkpoint of a cluster.
func restore(t *testing.T, c *cluster) *ps.Store {
	t.Helper()
	var file bytes.Buffer
	if err := c.store.WriteCheckpoint(&file, nil); err != nil {
		t.Fatal(err)
	}
	store, _, err := ps.ReadCheckpoint(&file, c.store.Config())
	if err != nil {
		t.Fatal(err)
	}
	return store
}

// The number of rows is told once, whether they fit in memory or not.
func TestRowsAreCounted(t *testing.T) {
	for _, window := range []int{0, 7, 100} {
		store := newStore(t, Linear{}, 1)
		var told []int
		src := synthetic(t, data.SyntheticConfig{Rows: 20, Fields: 2, Features: 50, Hot: 4, HotShare: 0.5, Seed: 1}, data.Shard{Index: 1, Count: 2})
		_, err := Train(t.Context(), Local{store}, src, Config{Model: Linear{}, Epochs: 3, Batch: 3, Window: window, Sync: true, Counted: func(rows int) { told = append(told, rows) }})
		if err != nil || len(told) != 1 || told[0] != 20 {
			t.Errorf("window %d: told %v, %v", window, told, err)
		}
	}
}
