// SPDX-License-Identifier: Apache-2.0

package train

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/train/data"
)

// TestReferenceReports checks the reports of a training in one process: progress after each step
// and at the end of each epoch, where an error ends it.
func TestReferenceReports(t *testing.T) {
	const rows, workers, batch = 210, 2, 25 // 105 samples per shard: five mini-batches
	sources := func() []data.Source {
		var s []data.Source
		for i := range workers {
			log := data.SyntheticConfig{Rows: rows, Fields: 3, Features: 100, Hot: 10, Seed: 2}
			s = append(s, synthetic(t, log, data.Shard{Index: i, Count: workers}))
		}
		return s
	}
	model, err := NewModel("lr", data.Classification, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	var seen []Progress
	var epochs []int
	cfg := Config{
		Model: model, Epochs: 2, Batch: batch, Sync: true, Seed: 3,
		Progress:  func(p Progress) { seen = append(seen, p) },
		EpochDone: func(epoch int) error { epochs = append(epochs, epoch); return nil },
	}
	got, err := Reference(t.Context(), newStore(t, cfg.Model, 1), sources(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(epochs, []int{0, 1}) {
		t.Errorf("epochs %v ended", epochs)
	}
	if len(seen) != 10 {
		t.Fatalf("%d reports, want one a step: %+v", len(seen), seen)
	}
	for i, p := range seen {
		samples := i/5*rows + min((i%5+1)*workers*batch, rows)
		if p.Steps != uint64(i+1)*workers || p.Samples != uint64(samples) || p.Epoch != i/5 || !(*p.LogLoss > 0.1 && *p.LogLoss < 2) {
			t.Errorf("report %d: %+v, want %d mini-batches and %d samples of epoch %d", i, p, (i+1)*workers, samples, i/5)
		}
	}
	if last := seen[len(seen)-1]; cmp.Diff(last, got.Progress) != "" || got.Elapsed <= 0 {
		t.Errorf("result %+v, want %+v", got, last)
	}

	stop := errors.New("stop")
	epochs = nil
	cfg.EpochDone = func(epoch int) error { epochs = append(epochs, epoch); return stop }
	if _, err := Reference(t.Context(), newStore(t, cfg.Model, 1), sources(), cfg); !errors.Is(err, stop) || len(epochs) != 1 {
		t.Errorf("after %v: %v", epochs, err)
	}
}
