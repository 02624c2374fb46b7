// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/train"
	"github.com/libra-ina/libra/train/data"
)

// byEpoch trains a synchronous configuration in this process, and evaluates it.
func byEpoch(t *testing.T, c *cluster.Config) (all []Evaluation) {
	t.Helper()
	test, err := LoadTest(c)
	if err != nil {
		t.Fatal(err)
	}
	for epoch := 1; epoch <= c.Model.Epochs; epoch++ {
		until := *c
		until.Model.Epochs = epoch
		model, _ := Model(c.Model)
		m, err := train.Evaluate(t.Context(), train.Local{Store: reference(t, &until)}, model, test)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, Evaluation{epoch, m})
	}
	return all
}

// A server that is ended while it evaluates weights returns when that is over, too.
func TestServerAwaitsItsEvaluations(t *testing.T) {
	c := newCluster(t, 1)
	c.Data.Synthetic.Test, c.Model.Epochs = 200, 1000
	startSwitch(t, c)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var begun, over atomic.Int32
	ended := make(chan error, 1)
	go func() {
		_, err := RunServer(ctx, Env{Config: c, Log: testLog(t).With("process", "ps"), Evaluated: func(Evaluation) {
			begun.Add(1)
			cancel()
			time.Sleep(100 * time.Millisecond) // the rest of the server's end takes less
			over.Add(1)
		}})
		ended <- err
	}()
	if _, err := RunWorker(ctx, Env{Config: c, Log: testLog(t).With("process", "worker 1")}, WorkerOptions{ID: 1}); err == nil {
		t.Error("a worker whose server has ended ends well")
	}
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the server ended with %v", err)
	}
	if done, n := over.Load(), begun.Load(); done != n || n == 0 {
		t.Errorf("%d evaluations are over of %d", done, n)
	}
}

// What a synchronous job's server evaluates are the weights at the end of each epoch, bit for
// bit, in one run as in one that was interrupted, or that has more epochs later.
func TestEvaluationsByEpoch(t *testing.T) {
	c := newCluster(t, 2)
	c.Data.Synthetic.Test, c.Model.Epochs = 200, 4
	want := byEpoch(t, c)
	startSwitch(t, c)
	c.Model.Epochs = 3
	out := trainCluster(t.Context(), t, c, hooks{step: func(id uint16, p train.Progress, _, endServer func()) {
		if id == 2 && p.Steps == 15 { // of 11 in an epoch
			endServer()
		}
	}})
	if out.serverErr == nil {
		t.Fatal("the server was not interrupted")
	}
	if diff := cmp.Diff(want[:3], mustTrain(t, c).server.Evaluations); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	c.Model.Epochs = 4
	if diff := cmp.Diff(want, mustTrain(t, c).server.Evaluations); diff != "" {
		t.Errorf("one epoch more (-want +got):\n%s", diff)
	}
	if _, p := saved(t, c); cmp.Diff(want, p.Evaluations) != "" {
		t.Errorf("the checkpoint has %v", p.Evaluations)
	}
}

// Asynchronous workers are in different epochs, of which the last one counts.
func TestAsynchronousEvaluations(t *testing.T) {
	c := newCluster(t, 2)
	c.Job.Sync, c.Job.Harvest, c.Job.Staleness, c.Model.Epochs = false, time.Millisecond, 8, 3
	rows := filepath.Join(t.TempDir(), "test.libfm")
	if err := os.WriteFile(rows, []byte("1 3:1 5:1\n0 7:1\n1 9:1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.Data.Test = rows
	startSwitch(t, c)
	out := mustTrain(t, c)
	if len(out.server.Evaluations) != 3 {
		t.Fatalf("%v", out.server.Evaluations)
	}
	// Nothing changes the weights after the last epoch.
	store, _ := saved(t, c)
	model, _ := Model(c.Model)
	test, _ := LoadTest(c)
	m, err := train.Evaluate(t.Context(), train.Local{Store: store}, model, test)
	if diff := cmp.Diff(Evaluation{3, m}, out.server.Evaluations[2]); err != nil || diff != "" {
		t.Errorf("%v; the final weights (-want +got):\n%s", err, diff)
	}
}

// The last worker to end an epoch has it evaluated, whatever a restarted server knows of
// the others.
func TestLastWorkerEndsEpoch(t *testing.T) {
	store, err := ps.New(ps.Config{Dim: 1, Exp: ps.DefaultExp})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		reports []string // worker, epochs, and whether one ends
		earlier []Evaluation
		want    []int
	}{
		"in turn":              {[]string{"10", "20", "11!", "21!", "12!", "22!"}, nil, []int{1, 2}},
		"one is ahead":         {[]string{"11!", "12!", "21!", "22!"}, nil, []int{1, 2}},
		"asked again":          {[]string{"11!", "21!", "21!"}, nil, []int{1}},
		"resumed in an epoch":  {[]string{"11", "21", "12!", "22!"}, nil, []int{2}},
		"one had ended before": {[]string{"11", "21!", "12!", "22!"}, nil, []int{1, 2}},
		"evaluated before":     {[]string{"11", "21!", "12!", "22!"}, []Evaluation{{Epoch: 1}}, []int{1, 2}},
		"unknown":              {[]string{"21!", "11", "12!", "22!"}, nil, []int{2}},
		"the first has ended":  {[]string{"12!", "21", "22!"}, nil, []int{2}},
	} {
		t.Run(name, func(t *testing.T) {
			test, err := LoadTest(&cluster.Config{Data: cluster.Data{Synthetic: &cluster.Synthetic{Rows: 1, Test: 50, Hot: 1000, HotShare: 0.6}}})
			if err != nil {
				t.Fatal(err)
			}
			copies := 0
			e := &evaluator{
				model: train.Linear{}, test: test, workers: []uint16{1, 2}, epochs: map[uint16]int{},
				progress: newProgress(false, 0), store: store, log: testLog(t),
				turn: func(_ context.Context, f func()) error { copies++; f(); return nil },
			}
			for _, r := range c.earlier {
				e.progress.addEvaluation(r)
				e.last = r.Epoch
			}
			for _, r := range c.reports {
				if err := e.epochReached(t.Context(), uint16(r[0]-'0'), int(r[1]-'0'), strings.HasSuffix(r, "!")); err != nil {
					t.Fatal(err)
				}
				e.busy.Wait()
			}
			var got []int
			for _, r := range e.progress.allEvaluations() {
				got = append(got, r.Epoch)
			}
			if diff := cmp.Diff(c.want, got); diff != "" || copies != len(c.want)-len(c.earlier) {
				t.Errorf("%d copies; epochs (-want +got):\n%s", copies, diff)
			}
		})
	}
}

// Of many rows, too, the weights that are evaluated are those of the store. They are copied in
// several turns, each of a bounded number of rows.
func TestManyRowsAreCopied(t *testing.T) {
	model, err := Model(cluster.Model{Kind: "fm", Factors: 2})
	if err != nil {
		t.Fatal(err)
	}
	store, err := ps.New(ps.Config{Dim: model.Dim(), Exp: ps.DefaultExp, Init: ps.Init{Seed: 3, Scale: 0.1}})
	if err != nil {
		t.Fatal(err)
	}
	test, err := LoadTest(&cluster.Config{Data: cluster.Data{Synthetic: &cluster.Synthetic{Rows: 1, Test: 500, Hot: 1000, HotShare: 0.1}}})
	if err != nil {
		t.Fatal(err)
	}
	turns := 0
	e := &evaluator{model: model, test: test, store: store, turn: func(_ context.Context, f func()) error { turns++; f(); return nil }}
	got, err := e.copyWeights(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	keys := append(test.Keys(), data.BiasKey)
	if want := (len(keys) + copyRows - 1) / copyRows; want < 3 || turns != want {
		t.Errorf("%d rows are copied in %d turns, want %d, and 3 or more", len(keys), turns, want)
	}
	pulled, want := make([]float32, len(keys)*model.Dim()), make([]float32, len(keys)*model.Dim())
	if err := got.Pull(t.Context(), keys, pulled); err != nil {
		t.Fatal(err)
	}
	store.Read(keys, want)
	if !slices.Equal(pulled, want) {
		t.Error("the copied weights differ from the store's")
	}
}

// Weights that are no numbers are no evaluation, and an error reports them.
func TestDivergedTrainingIsNotEvaluated(t *testing.T) {
	var text strings.Builder
	test, err := LoadTest(&cluster.Config{Data: cluster.Data{Synthetic: &cluster.Synthetic{Rows: 1, Test: 50, Hot: 1000, HotShare: 0.6}}})
	if err != nil {
		t.Fatal(err)
	}
	e := &evaluator{model: train.Linear{}, test: test, progress: newProgress(false, 0), log: slog.New(slog.NewTextHandler(&text, nil))}
	rows := make([]float32, len(test.Keys())+1)
	rows[len(rows)-1] = float32(math.NaN())
	e.evaluateCopy(copiedRows{append(test.Keys(), data.BiasKey), rows, 1}, 1)
	if all := e.progress.allEvaluations(); all != nil || !strings.Contains(text.String(), "model.learning_rate") {
		t.Errorf("%v, log %q", all, &text)
	}
}

// Held-out rows that cannot be used end the server at once.
func TestTestFileIsRefused(t *testing.T) {
	dir := t.TempDir()
	for name, want := range map[string]string{"absent": "no such file", "empty": "holds no rows", "1 3:1\n1 4:1\n": "the same label"} {
		c := newCluster(t, 1)
		c.Data.Test = filepath.Join(dir, "absent")
		if name != "absent" {
			c.Data.Test = filepath.Join(dir, "rows")
			if err := os.WriteFile(c.Data.Test, []byte(strings.TrimPrefix(name, "empty")), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		_, err := RunServer(soon(t), Env{Config: c, Log: testLog(t)})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "data.test") || !strings.Contains(err.Error(), c.Data.Test) {
			t.Errorf("%s: %v", name, err)
		}
	}
	failed := errors.New("the loop has ended")
	e := &evaluator{model: train.Linear{}, test: &data.Dataset{}, workers: []uint16{1}, epochs: map[uint16]int{}, turn: func(context.Context, func()) error { return failed }}
	if err := e.epochReached(t.Context(), 1, 1, true); !errors.Is(err, failed) {
		t.Errorf("%v", err)
	}
}
