// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/libra-ina/libra/internal/test/realdata"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/train/data"
	"github.com/libra-ina/libra/train/settings"
)

// asynchronous is a Client that treats gradients like several asynchronous workers and a harvest
// period: they are late by some mini-batches, and one step merges several of them. Weights are
// those of the last step.
type asynchronous struct {
	Local
	late, merged int
	queue        []gradient
	pushes       int
}

type gradient struct {
	keys  []uint64
	grads []float32
}

func (a *asynchronous) Push(ctx context.Context, keys []uint64, grads []float32) error {
	a.queue = append(a.queue, gradient{slices.Clone(keys), slices.Clone(grads)})
	if len(a.queue) > a.late {
		if err := a.Local.Push(ctx, a.queue[0].keys, a.queue[0].grads); err != nil {
			return err
		}
		a.queue = a.queue[1:]
	}
	if a.pushes++; a.pushes%a.merged == 0 {
		a.Store.Commit()
	}
	return nil
}

func (a *asynchronous) Flush(ctx context.Context) error {
	for _, g := range a.queue {
		if err := a.Local.Push(ctx, g.keys, g.grads); err != nil {
			return err
		}
	}
	a.queue = nil
	a.Store.Commit()
	return nil
}

// frappe returns the training set and the held-out samples.
func frappe(tb testing.TB) (train func() data.Source, test *data.Dataset) {
	tb.Helper()
	test, err := data.Load(open(tb, realdata.Path(tb, "frappe-test.libfm.gz")))
	if err != nil {
		tb.Fatal(err)
	}
	return func() data.Source { return open(tb, realdata.Path(tb, "frappe-train.libfm.gz")) }, test
}

// auc trains with a client of a new store and returns the AUC on held-out samples
// after each epoch.
func auc(cfg Config, recipe Recipe, client func(*ps.Store) Client, train data.Source, test *data.Dataset) ([]float64, error) {
	store, err := ps.New(recipe.Store(cfg.Model, 1))
	if err != nil {
		return nil, err
	}
	var aucs []float64
	cfg.EpochDone = func(int) error {
		m, err := Evaluate(context.Background(), Local{store}, cfg.Model, test)
		aucs = append(aucs, *m.AUC)
		return err
	}
	_, err = Train(context.Background(), client(store), train, cfg)
	return aucs, err
}

// local commits after each mini-batch, if the training is synchronous.
func local(s *ps.Store) Client { return Local{s} }

// TestFactorisationMachineLearnsFrappe also shows that four workers and a harvest period hardly
// change the training's result.
func TestFactorisationMachineLearnsFrappe(t *testing.T) {
	train, test := frappe(t)
	const epochs = 5
	model := FM{Factors: settings.Factors.Default}
	clients := map[string]func(*ps.Store) Client{
		"reference":         local,
		"2 late, 4 merged":  func(s *ps.Store) Client { return &asynchronous{Local: Local{s}, late: 2, merged: 4} },
		"4 late, 16 merged": func(s *ps.Store) Client { return &asynchronous{Local: Local{s}, late: 4, merged: 16} },
	}
	final := make(map[string]float64)
	var group errgroup.Group
	var mu sync.Mutex
	for name, client := range clients {
		src := train()
		group.Go(func() error {
			got, err := auc(Config{Model: model, Epochs: epochs, Sync: name == "reference"}, Frequent, client, src, test)
			if err != nil {
				return err
			}
			t.Logf("%s: AUC by epoch %.4f", name, got)
			mu.Lock()
			defer mu.Unlock()
			final[name] = got[epochs-1]
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if final["reference"] < 0.94 {
		t.Errorf("AUC %.4f, want 0.94", final["reference"])
	}
	for name, got := range final {
		if math.Abs(got-final["reference"]) > 0.005 {
			t.Errorf("%s: AUC %.4f, the reference has %.4f", name, got, final["reference"])
		}
	}
}

func TestLogisticRegressionLearnsFrappe(t *testing.T) {
	train, test := frappe(t)
	got, err := auc(Config{Model: Linear{}, Epochs: 3, Sync: true}, Frequent, local, train(), test)
	if err != nil {
		t.Fatal(err)
	}
	if got[2] < 0.92 {
		t.Errorf("AUC by epoch %.4f, want 0.92 at the end", got)
	}
}

// heldOut returns rows of a synthetic log that follow the rows of cfg.
func heldOut(tb testing.TB, cfg data.SyntheticConfig, rows int) *data.Dataset {
	tb.Helper()
	cfg.First, cfg.Rows = cfg.Rows, rows
	d, err := data.Load(synthetic(tb, cfg, data.Shard{}))
	if err != nil {
		tb.Fatal(err)
	}
	return d
}

func TestSyntheticLogCanBeLearned(t *testing.T) {
	log := data.SyntheticConfig{Rows: 40_000, Fields: 10, Features: 100_000, Hot: 3000, HotShare: 0.7, Seed: 1}
	test := heldOut(t, log, 10_000)
	for name, model := range map[string]Model{"lr": Linear{}, "fm": FM{Factors: 8}} {
		cfg := Config{Model: model, Epochs: ClickLog.Epochs, Batch: ClickLog.Batch, Sync: true}
		got, err := auc(cfg, ClickLog, local, synthetic(t, log, data.Shard{}), test)
		if err != nil {
			t.Fatal(err)
		}
		if got[len(got)-1] < 0.7 {
			t.Errorf("%s: AUC by epoch %.4f, want 0.7 at the end", name, got)
		}
	}
}

// Regression leaves less than half of the labels' variance; a variance of 1 is noise.
func TestRegressionLearnsTheSyntheticLog(t *testing.T) {
	log := data.SyntheticConfig{Rows: 40_000, Fields: 10, Features: 100_000, Hot: 3000, HotShare: 0.7, Seed: 1, Task: data.Regression}
	test := heldOut(t, log, 10_000)
	mean := 0.0
	for _, label := range test.Labels() {
		mean += float64(label) / float64(test.Len())
	}
	constant := *data.Regression.Measure(slices.Repeat([]float32{float32(mean)}, test.Len()), test.Labels()).RMSE
	for name, model := range map[string]Model{"lr": Linear{For: data.Regression}, "fm": FM{For: data.Regression, Factors: 8}} {
		store, err := ps.New(ClickLog.Store(model, 1))
		if err != nil {
			t.Fatal(err)
		}
		cfg := Config{Model: model, Epochs: 2, Batch: ClickLog.Batch, Sync: true}
		result, err := Train(t.Context(), Local{store}, synthetic(t, log, data.Shard{}), cfg)
		if err != nil {
			t.Fatal(err)
		}
		if result.LogLoss != nil || result.RMSE == nil {
			t.Errorf("%s: training tells %v", name, result.All())
		}
		m, err := Evaluate(t.Context(), Local{store}, model, test)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: RMSE %.4f, MAE %.4f; of the mean %.4f", name, *m.RMSE, *m.MAE, constant)
		if *m.RMSE > 1.4 || constant < 1.7 || *m.MAE > *m.RMSE {
			t.Errorf("%s: RMSE %.4f, MAE %.4f; of the mean %.4f", name, *m.RMSE, *m.MAE, constant)
		}
	}
}

// BenchmarkTraining trains in one process, with a commit after each mini-batch,
// and reports samples/s of training alone and the AUC on held-out samples after the
// first and the last epoch.
func BenchmarkTraining(b *testing.B) {
	type experiment struct {
		train  func() data.Source
		test   *data.Dataset
		recipe Recipe
	}
	logs := map[string]func(testing.TB) experiment{
		"frappe": func(tb testing.TB) experiment {
			train, test := frappe(tb)
			return experiment{train, test, Frequent}
		},
	}
	for _, share := range []float64{0.5, 0.7} {
		logs[fmt.Sprintf("synthetic%g", 100*share)] = func(tb testing.TB) experiment {
			log := data.SyntheticConfig{Rows: data.DefaultRows, HotShare: share, Seed: 1}
			return experiment{func() data.Source { return synthetic(tb, log, data.Shard{}) }, heldOut(tb, log, 30_000), ClickLog}
		}
	}
	models := map[string]Model{"lr": Linear{}, "fm8": FM{Factors: 8}, "fm24": FM{Factors: 24}}
	for _, log := range slices.Sorted(maps.Keys(logs)) {
		for _, model := range slices.Sorted(maps.Keys(models)) {
			b.Run(log+"/"+model, func(b *testing.B) {
				d := logs[log](b)
				cfg := Config{Model: models[model], Epochs: d.recipe.Epochs, Batch: d.recipe.Batch, Sync: true}
				var aucs []float64
				samples, elapsed := 0.0, time.Duration(0)
				for b.Loop() {
					store, err := ps.New(d.recipe.Store(cfg.Model, 1))
					if err != nil {
						b.Fatal(err)
					}
					begin := time.Now()
					aucs = aucs[:0]
					cfg.EpochDone = func(int) error {
						elapsed += time.Since(begin)
						m, err := Evaluate(context.Background(), Local{store}, cfg.Model, d.test)
						aucs = append(aucs, *m.AUC)
						begin = time.Now()
						return err
					}
					r, err := Train(context.Background(), Local{store}, d.train(), cfg)
					if err != nil {
						b.Fatal(err)
					}
					samples += float64(r.Samples)
				}
				b.ReportMetric(samples/elapsed.Seconds(), "samples/s")
				b.ReportMetric(aucs[0], "AUC-first")
				b.ReportMetric(aucs[len(aucs)-1], "AUC-last")
				b.ReportMetric(float64(len(aucs)), "epochs")
				b.Logf("AUC by epoch: %.4f", aucs)
			})
		}
	}
}
