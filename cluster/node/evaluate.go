// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/train"
	"github.com/libra-ina/libra/train/data"
)

// Evaluation is the quality of the weights on held-out rows after an epoch of all workers:
// asynchronous ones may be in the next one.
type Evaluation struct {
	Epoch int `json:"epoch"` // from 1
	data.Metrics
}

// evaluator evaluates a server's weights after each epoch. It copies only the rows that the
// held-out data use, and training waits only for that.
type evaluator struct {
	model   train.Model
	test    *data.Dataset // nil without held-out rows
	workers []uint16
	// progress keeps the evaluations.
	progress *progress
	store    *ps.Store
	// turn runs a function in the goroutine that owns the store.
	turn func(context.Context, func()) error
	// done, if not nil, is called with each evaluation.
	done func(Evaluation)
	log  *slog.Logger

	mu     sync.Mutex     // held while weights are copied, too
	epochs map[uint16]int // completed by each worker, as far as known
	last   int            // epoch whose weights were copied

	busy sync.WaitGroup
}

// startWith attaches the evaluator to the server's training.
func (e *evaluator) startWith(s *server) {
	e.progress, e.store, e.turn = s.progress, s.store, s.loop.Do
	for _, earlier := range s.progress.allEvaluations() {
		e.last = max(e.last, earlier.Epoch)
	}
}

// newEvaluator reads the held-out rows, if there are any.
func newEvaluator(env Env) (e *evaluator, err error) {
	c := env.Config
	e = &evaluator{workers: c.WorkerIDs(), done: env.Evaluated, log: env.Log, epochs: map[uint16]int{}}
	if !c.Data.HasTest() {
		return e, nil
	}
	if e.model, err = Model(c.Model); err == nil {
		e.test, err = LoadTest(c)
	}
	return e, err
}

// epochReached records a worker's progress. If the worker is the last to complete an epoch, the
// weights are copied, and evaluated after it has continued. The reports of a worker that resumes in
// the middle of an epoch give that epoch's number.
func (e *evaluator) epochReached(ctx context.Context, worker uint16, epochs int, ends bool) error {
	if e.test == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.epochs[worker] = max(e.epochs[worker], epochs)
	if !ends || epochs <= e.last || slices.ContainsFunc(e.workers, func(w uint16) bool { return e.epochs[w] < epochs }) {
		return nil
	}
	w, err := e.copyWeights(ctx)
	if err != nil {
		return err
	}
	e.last = epochs
	e.busy.Go(func() { e.evaluateCopy(w, epochs) })
	return nil
}

// copyRows is the number of rows that are copied in a turn of the store's goroutine.
const copyRows = 4096

// copyWeights returns the weights that the held-out rows use.
func (e *evaluator) copyWeights(ctx context.Context) (copiedRows, error) {
	dim := e.model.Dim()
	w := copiedRows{keys: append(slices.Clone(e.test.Keys()), data.BiasKey), dim: dim}
	w.rows = make([]float32, len(w.keys)*dim)
	for first := 0; first < len(w.keys); first += copyRows {
		end := min(first+copyRows, len(w.keys))
		if err := e.turn(ctx, func() { e.store.Read(w.keys[first:end], w.rows[first*dim:end*dim]) }); err != nil {
			return w, err
		}
	}
	return w, nil
}

func (e *evaluator) evaluateCopy(w copiedRows, epoch int) {
	begin := time.Now()
	m, err := train.Evaluate(context.Background(), w, e.model, e.test)
	if err != nil || !m.Finite() {
		e.log.Error("the weights predict no numbers: training diverged; a lower model.learning_rate may help", "epoch", epoch)
		return
	}
	r := Evaluation{epoch, m}
	line := []any{"epoch", epoch}
	for _, metric := range m.All() {
		line = append(line, metric.Key, metric.Value)
	}
	e.log.Info("evaluated", append(line, "rows", e.test.Len(), "took", time.Since(begin).Round(time.Millisecond))...)
	e.progress.addEvaluation(r)
	if e.done != nil {
		e.done(r)
	}
}

// copiedRows are copies of rows; keys ascend.
type copiedRows struct {
	keys []uint64
	rows []float32
	dim  int
}

// Pull implements [train.Puller] for keys that were copied.
func (w copiedRows) Pull(_ context.Context, keys []uint64, dst []float32) error {
	for i, key := range keys {
		at, _ := slices.BinarySearch(w.keys, key)
		copy(dst[i*w.dim:][:w.dim], w.rows[at*w.dim:])
	}
	return nil
}
