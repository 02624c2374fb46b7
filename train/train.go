// SPDX-License-Identifier: Apache-2.0

package train

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/libra-ina/libra/train/data"
	"github.com/libra-ina/libra/train/settings"
)

// Puller reads weights.
type Puller interface {
	// Pull stores the rows of keys in dst, row after row. Keys ascend and do
	// not repeat.
	Pull(ctx context.Context, keys []uint64, dst []float32) error
}

// EarlyPuller is a [Client] whose pulls can run concurrently with other calls.
type EarlyPuller interface {
	// BeginPull starts a Pull. The client owns keys and dst until Wait returns.
	BeginPull(ctx context.Context, keys []uint64, dst []float32) (Pulling, error)
}

// Pulling is a started pull.
type Pulling interface {
	// Wait returns when the rows are in dst, or the pull has failed. It is called once.
	Wait(ctx context.Context) error
}

// Client is a worker's access to the parameter server. Train uses it from one
// goroutine.
type Client interface {
	Puller
	// Push passes the gradients of the rows of keys, row after row. It copies both slices. Keys
	// ascend and do not repeat.
	Push(ctx context.Context, keys []uint64, grads []float32) error
	// Flush returns when all pushes are acknowledged.
	Flush(ctx context.Context) error
	// Barrier returns when every worker of the job has called it for this step and the server has
	// committed their earlier pushes. Steps count from 0.
	Barrier(ctx context.Context, step uint64) error
}

// Config describes a training.
type Config struct {
	// Model is the trained model.
	Model Model
	// Epochs is [settings.Epochs], and 0 its default.
	Epochs int
	// Batch is [settings.Batch], and 0 its default.
	Batch int
	// Sync makes each mini-batch a step of the whole job, with a barrier at its end. Otherwise
	// workers run independently.
	Sync bool
	// Seed selects the order of the samples, which differs from epoch to
	// epoch.
	Seed uint64
	// First is the number of steps of earlier runs: Train skips them. A step is a barrier in
	// synchronous training, else a mini-batch of this worker. In synchronous training an epoch that
	// ends with them is reported again, since the run may have ended before its report.
	First uint64
	// Report, if set, is called with the training's progress after its gradients are acknowledged:
	// at the end of each epoch, and in asynchronous training about every ReportEvery, and as often
	// as Staleness requires. It returns when they are in the weights. Within an epoch, training
	// continues meanwhile. An error ends the training.
	Report      func(ctx context.Context, r Reached) error
	ReportEvery time.Duration
	// Staleness is [settings.Staleness], in asynchronous training with Report; 0 means no limit.
	Staleness int
	// Window is [settings.Window].
	Window int
	// Counted, if set, is called once with the number of rows of all shards, when the first pass
	// through them is in memory or at its end.
	Counted func(rows int)
	// Code, if set, changes the gradients of a mini-batch as frames of a job with a codec do
	// (packer.CodeCold). [Reference] calls it before it adds them, which has no frames.
	Code func(keys []uint64, grads []float32)
	// Progress, if set, is called after each mini-batch.
	Progress func(Progress)
	// EpochDone, if set, is called at the end of each epoch, when all pushes are acknowledged. An
	// error ends the training.
	EpochDone func(epoch int) error
}

// Progress is the progress of a training.
type Progress struct {
	Epoch     int    `json:"epoch"`   // from 0
	Step      uint64 `json:"step"`    // that has been pushed, from 0, with those of earlier runs
	Steps     uint64 `json:"steps"`   // mini-batches that this run has trained
	Samples   uint64 `json:"samples"` // samples that this run has trained
	data.Loss        // mean over this epoch's samples, each before its update
}

// Reached is the progress of a worker over all its runs.
type Reached struct {
	Steps  uint64
	Epochs int  // complete ones
	Ends   bool // the last of these steps ends an epoch
}

// Result is the outcome of a training.
type Result struct {
	Progress
	Elapsed time.Duration
}

func (c Config) normal() (Config, error) {
	if c.Model == nil {
		return c, fmt.Errorf("train: no model to train")
	}
	for _, f := range []struct {
		name     string
		value    *int
		fallback int
	}{
		{"epochs", &c.Epochs, settings.Epochs.Default},
		{"samples a batch", &c.Batch, settings.Batch.Default},
		{"samples in memory", &c.Window, math.MaxInt},
		{"mini-batches of staleness", &c.Staleness, math.MaxInt},
	} {
		*f.value = cmp.Or(*f.value, f.fallback)
		if *f.value < 0 {
			return c, fmt.Errorf("train: %d %s", *f.value, f.name)
		}
	}
	return c, nil
}

// Train runs one worker: epochs of mini-batches of src, each of which pulls its rows and pushes its
// gradients. An [EarlyPuller] pulls the rows of the next mini-batch while the gradients of one are
// computed, if the training is asynchronous and Staleness above 1. In synchronous training all
// workers of a job must have the same Config; a worker whose shard has fewer mini-batches than
// others' takes part in their barriers without pushes. An error of the client is a [*Failure].
func Train(ctx context.Context, c Client, src data.Source, cfg Config) (Result, error) {
	cfg, err := cfg.normal()
	if err != nil {
		return Result{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	begin := time.Now()
	w := &worker{src: src, cfg: cfg}
	if !cfg.Sync && cfg.Staleness > 1 {
		w.early, _ = c.(EarlyPuller)
	}
	w.reports = reporter{cfg: &cfg, at: begin, last: cfg.First, interval: interval(cfg.Staleness, w.early != nil)}
	defer func() {
		cancel()
		_ = w.reports.wait() // after an error, for a running report
	}()
	for epoch := range cfg.Epochs {
		if err := w.start(epoch); err != nil {
			return Result{}, err
		}
		if err := w.epoch(ctx, c); err != nil {
			return Result{}, w.failed(err)
		}
		// An earlier run has trained this epoch. In synchronous training it may not have reported the
		// last one.
		if w.step < cfg.First || !cfg.Sync && cfg.First > 0 && w.step == cfg.First {
			continue
		}
		if err := w.report(ctx, c, Reached{w.step, epoch + 1, true}); err != nil {
			return Result{}, w.failed(err)
		}
		if err := w.reports.wait(); err != nil {
			return Result{}, w.failed(err)
		}
		if cfg.EpochDone != nil {
			if err := cfg.EpochDone(epoch); err != nil {
				return Result{}, err
			}
		}
	}
	if w.step < cfg.First {
		return Result{}, fmt.Errorf("train: %d steps have been trained already, but %d epochs have only %d: raise the number of epochs", cfg.First, cfg.Epochs, w.step)
	}
	return Result{w.progress, time.Since(begin)}, nil
}

// epoch trains the steps of one epoch except those of an earlier run.
func (w *worker) epoch(ctx context.Context, c Client) error {
	for w.step < w.cfg.First {
		if more, err := w.more(); err != nil {
			return err
		} else if !more {
			break
		}
		w.skip()
		w.step++
	}
	for {
		more, err := w.next()
		if err != nil {
			return err
		}
		if !more {
			break
		}
		if err := w.run(ctx, c); err != nil {
			return err
		}
		if err := w.endStep(ctx, c); err != nil {
			return err
		}
	}
	if !w.cfg.Sync {
		return nil
	}
	for range w.padding() {
		if w.step < w.cfg.First {
			w.step++
		} else if err := w.endStep(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// endStep waits for the other workers, or reports from time to time.
func (w *worker) endStep(ctx context.Context, c Client) error {
	step := w.step
	w.step++
	if w.reports.due(w.step) {
		return w.report(ctx, c, Reached{w.step, w.progress.Epoch, false})
	}
	if !w.cfg.Sync {
		return nil
	}
	if err := c.Flush(ctx); err != nil {
		return err
	}
	return c.Barrier(ctx, step)
}

// report starts a report of all pushes, when the previous one has ended.
func (w *worker) report(ctx context.Context, c Client, r Reached) error {
	if err := w.reports.wait(); err != nil {
		return err
	}
	if err := c.Flush(ctx); err != nil {
		return err
	}
	w.reports.begin(ctx, r)
	return nil
}

// miniBatch is a mini-batch and the weights of its rows.
type miniBatch struct {
	data.Batch
	weights []float32
	pulling Pulling // a started pull, or nil
}

// worker turns a source into mini-batches and runs them.
type worker struct {
	src   data.Source
	cfg   Config
	early EarlyPuller // nil: rows are pulled when they are needed

	step    uint64 // number of the next step, in all epochs and runs
	reports reporter

	data  *data.Dataset
	rest  bool  // src has samples after data
	block int   // number of data within the epoch
	order []int // of the samples of data
	at    int   // position in order of the next mini-batch
	count int   // mini-batches of this epoch

	batch, coming miniBatch // the trained mini-batch, and the next one if it is already pulled
	grads         []float32
	begin         float64 // see [Failure]
	beginWeights  float64
	progress      Progress
	loss          float64 // sum over this epoch
	samples       int     // of this epoch
}

// start begins an epoch.
func (w *worker) start(epoch int) error {
	w.progress.Epoch = epoch
	w.block, w.count, w.loss, w.samples = 0, 0, 0, 0
	if w.data == nil {
		return w.load()
	}
	if w.cfg.Window == math.MaxInt {
		w.shuffle()
		return nil
	}
	if err := w.src.Rewind(); err != nil {
		return err
	}
	return w.load()
}

func (w *worker) load() (err error) {
	w.data, w.rest, err = data.LoadPart(w.src, w.cfg.Window)
	if err != nil {
		return err
	}
	if !w.rest && w.cfg.Counted != nil {
		w.cfg.Counted(w.src.Rows())
		w.cfg.Counted = nil
	}
	w.shuffle()
	return nil
}

func (w *worker) shuffle() {
	w.order, w.at = w.order[:0], 0
	for i := range w.data.Len() {
		w.order = append(w.order, i)
	}
	// 2^32 epochs and blocks apart, so that no two orders share a stream.
	stream := uint64(w.progress.Epoch)<<32 + uint64(w.block)
	seed := w.cfg.Seed + uint64(w.src.Shard().Index)*0x9e3779b97f4a7c15
	rng := rand.New(rand.NewPCG(seed, stream))
	rng.Shuffle(len(w.order), func(i, j int) { w.order[i], w.order[j] = w.order[j], w.order[i] })
}

// more reports whether the epoch has another mini-batch.
func (w *worker) more() (bool, error) {
	for w.at == len(w.order) {
		if !w.rest {
			return false, nil
		}
		w.block++
		if err := w.load(); err != nil {
			return false, err
		}
	}
	return true, nil
}

// skip skips the next mini-batch and returns its samples.
func (w *worker) skip() (samples []int) {
	end := min(w.at+w.cfg.Batch, len(w.order))
	samples = w.order[w.at:end]
	w.at = end
	w.count++
	return samples
}

// build builds the next mini-batch.
func (w *worker) build() { w.batch.Build(w.data, w.skip()) }

// next makes batch the next mini-batch of the epoch. It returns false at the epoch's end.
func (w *worker) next() (bool, error) {
	if w.coming.pulling != nil {
		w.batch, w.coming = w.coming, w.batch
		return true, nil
	}
	more, err := w.more()
	if more {
		w.build()
	}
	return more, err
}

// run pulls the weights of the mini-batch and pushes its gradients.
func (w *worker) run(ctx context.Context, c Client) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := w.pull(ctx, c); err != nil {
		return err
	}
	if err := w.pullNext(ctx); err != nil {
		return err
	}
	w.grads = resize(w.grads, len(w.batch.weights))
	w.loss += w.cfg.Model.Gradient(&w.batch.Batch, w.batch.weights, w.grads)
	if w.progress.Steps == 0 {
		w.begin, w.beginWeights = largestMagnitude(w.grads), largestMagnitude(w.batch.weights)
	}
	if err := c.Push(ctx, w.batch.Keys, w.grads); err != nil {
		return err
	}
	w.samples += w.batch.Len()
	w.progress.Step = w.step
	w.progress.Steps++
	w.progress.Samples += uint64(w.batch.Len())
	w.progress.Loss = w.cfg.Model.Task().MeanLoss(w.loss, w.samples)
	if w.cfg.Progress != nil {
		w.cfg.Progress(w.progress)
	}
	return nil
}

// pull waits for the pull of the mini-batch, if it has begun, or pulls.
func (w *worker) pull(ctx context.Context, c Client) error {
	b := &w.batch
	if p := b.pulling; p != nil {
		b.pulling = nil
		return p.Wait(ctx)
	}
	b.weights = resize(b.weights, len(b.Keys)*w.cfg.Model.Dim())
	return c.Pull(ctx, b.Keys, b.weights)
}

// pullNext builds the next mini-batch of the epoch, if there is one, and starts to pull its rows.
func (w *worker) pullNext(ctx context.Context) error {
	if w.early == nil {
		return nil
	}
	more, err := w.more()
	if err != nil || !more {
		return err
	}
	b := &w.coming
	b.Build(w.data, w.skip())
	b.weights = resize(b.weights, len(b.Keys)*w.cfg.Model.Dim())
	b.pulling, err = w.early.BeginPull(ctx, b.Keys, b.weights)
	return err
}

// padding returns how many more mini-batches the largest shard, shard 0, has than this one. It is
// known at the end of an epoch.
func (w *worker) padding() int {
	largest := data.Shard{Index: 0, Count: w.src.Shard().Count}.Size(w.src.Rows())
	return batches(largest, w.cfg.Window, w.cfg.Batch) - w.count
}

// batches returns the number of mini-batches of n samples, taken window by window.
func batches(n, window, batch int) int {
	ceil := func(a int) int { return a/batch + min(1, a%batch) }
	return n/window*ceil(window) + ceil(n%window)
}
