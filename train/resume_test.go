// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"

	"github.com/libra-ina/libra/train/data"
)

// errStop ends a run at a step.
var errStop = errors.New("the run is stopped")

// stopping is a Client whose barrier of one step fails for all workers.
type stopping struct {
	*cluster
	at uint64
}

func (s stopping) Barrier(ctx context.Context, step uint64) error {
	if step == s.at {
		return errStop
	}
	return s.cluster.Barrier(ctx, step)
}

// A synchronous training that stops at any step and continues from there, in the middle of an
// epoch, in its padding or at its end, has the weights of one without a stop.
func TestResumedTrainingMatchesReference(t *testing.T) {
	for _, test := range []struct{ rows, workers, batch, window int }{
		{61, 3, 5, 0},  // shard 0 has one mini-batch more than the others
		{61, 3, 5, 12}, // windows of two and a half mini-batches
		{3, 5, 2, 0},   // two shards are empty
	} {
		t.Run(fmt.Sprintf("%+v", test), func(t *testing.T) {
			cfg := Config{Model: FM{Factors: 2}, Epochs: 3, Batch: test.batch, Sync: true, Seed: 11, Window: test.window}
			sources := func() []data.Source { return shards(t, test.rows, test.workers) }
			reference := newStore(t, cfg.Model, 1)
			want, err := Reference(t.Context(), reference, sources(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			for stop := uint64(0); ; stop++ {
				c := newCluster(newStore(t, cfg.Model, 1), test.workers)
				run := func(client Client, first uint64) (trained uint64, err error) {
					var group errgroup.Group
					results := make([]Result, test.workers)
					for i, src := range sources() {
						cfg := cfg
						cfg.First = first
						cfg.Report = func(_ context.Context, r Reached) error {
							if !r.Ends || r.Steps == 0 {
								return fmt.Errorf("%+v is reported in synchronous training", r)
							}
							return nil
						}
						group.Go(func() (err error) {
							results[i], err = Train(t.Context(), client, src, cfg)
							return err
						})
					}
					err = group.Wait()
					for _, r := range results {
						trained += r.Samples
					}
					return trained, err
				}
				_, err := run(stopping{c, stop}, 0)
				if err == nil {
					if stop == 0 || c.store.Hash() != reference.Hash() {
						t.Fatalf("stopped nowhere, at step %d", stop)
					}
					// Nothing is left to do, and one step more is too many.
					if trained, err := run(c, c.step); err != nil || trained != 0 {
						t.Errorf("a finished training: %d samples, %v", trained, err)
					}
					if _, err := run(c, c.step+1); err == nil || !strings.Contains(err.Error(), "raise the number of epochs") {
						t.Errorf("a step that there is not: %v", err)
					}
					return
				}
				if !errors.Is(err, errStop) {
					t.Fatal(err)
				}
				// The pushes of the stopped step were not committed.
				resumed := newCluster(restore(t, c), test.workers)
				resumed.step = stop
				c = resumed
				trained, err := run(c, stop)
				if err != nil {
					t.Fatalf("from step %d: %v", stop, err)
				}
				if c.store.Hash() != reference.Hash() {
					t.Fatalf("from step %d: the weights differ from the reference's", stop)
				}
				if trained > want.Samples || stop == 0 && trained != want.Samples {
					t.Errorf("from step %d: %d samples of %d", stop, trained, want.Samples)
				}
			}
		})
	}
}

// An asynchronous worker continues with the mini-batch at which it stopped, and reports at the end
// of an epoch what is acknowledged.
func TestResumedWorkerGoesOn(t *testing.T) {
	log := &memory{shard: data.Shard{Index: 0, Count: 1}}
	for i := range uint64(43) {
		log.samples = append(log.samples, data.Sample{Label: 1, Keys: []uint64{i}, Values: []float32{1}})
	}
	train := func(first uint64) (pushed [][]uint64, reports []uint64, epochs []int) {
		log.next = 0
		r := &recorder{Local: Local{newStore(t, Linear{}, 0)}}
		_, err := Train(t.Context(), r, log, Config{
			Model: Linear{}, Epochs: 3, Batch: 10, Seed: 1, First: first,
			Report: func(_ context.Context, at Reached) error {
				if int(at.Steps-first) != len(r.pushed) || r.flushes == 0 {
					t.Errorf("from %d: %d steps are reported, %d taken, %d flushes", first, at.Steps, len(r.pushed), r.flushes)
				}
				reports = append(reports, at.Steps)
				return nil
			},
			ReportEvery: time.Hour,
			EpochDone:   func(epoch int) error { epochs = append(epochs, epoch); return nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		return r.pushed, reports, epochs
	}
	all, reports, epochs := train(0)
	if len(all) != 15 || !slices.Equal(reports, []uint64{5, 10, 15}) || !slices.Equal(epochs, []int{0, 1, 2}) {
		t.Fatalf("%d mini-batches, reports %v, epochs %v", len(all), reports, epochs)
	}
	for first := range uint64(16) {
		pushed, reports, epochs := train(first)
		if diff := cmp.Diff(all[first:], pushed); diff != "" && first < 15 {
			t.Errorf("from %d: %s", first, diff)
		}
		var want []uint64
		var wantEpochs []int
		for e := range 3 {
			if end := uint64(5 * (e + 1)); end > first {
				want, wantEpochs = append(want, end), append(wantEpochs, e)
			}
		}
		if !slices.Equal(reports, want) || !slices.Equal(epochs, wantEpochs) {
			t.Errorf("from %d: reports %v, epochs %v", first, reports, epochs)
		}
	}
}

// flushing records how many mini-batches it has flushed.
type flushing struct {
	recorder
	flushed atomic.Uint64
}

func (f *flushing) Flush(ctx context.Context) error {
	f.flushed.Store(uint64(len(f.pushed)))
	return f.recorder.Flush(ctx)
}

// Without a pause between reports, every mini-batch is reported, acknowledged.
func TestReportsFollowFlushes(t *testing.T) {
	log := synthetic(t, data.SyntheticConfig{Rows: 20, Fields: 2, Features: 100, Hot: 10}, data.Shard{})
	r := &flushing{recorder: recorder{Local: Local{newStore(t, Linear{}, 0)}}}
	var reports []uint64
	cfg := Config{Model: Linear{}, Epochs: 1, Batch: 5, Report: func(_ context.Context, at Reached) error {
		if n := r.flushed.Load(); n < at.Steps {
			t.Errorf("%d steps are reported, %d flushed", at.Steps, n)
		}
		reports = append(reports, at.Steps)
		return nil
	}}
	if _, err := Train(t.Context(), r, log, cfg); err != nil || !slices.Equal(reports, []uint64{1, 2, 3, 4, 4}) {
		t.Errorf("reports %v, %v", reports, err)
	}
	for n := range len(reports) {
		calls := 0
		cfg.Report = func(context.Context, Reached) error {
			if calls++; calls > n {
				return errStop
			}
			return nil
		}
		if _, err := Train(t.Context(), r, log, cfg); !errors.Is(err, errStop) {
			t.Errorf("report %d fails: %v", n, err)
		}
		if err := log.Rewind(); err != nil {
			t.Fatal(err)
		}
	}
}
