// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"time"

	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/train/data"
)

// Local is the [Client] of a store in the same process, for a single worker:
// its Barrier commits.
type Local struct{ Store *ps.Store }

var _ Client = Local{}

// Pull implements [Puller].
func (l Local) Pull(_ context.Context, keys []uint64, dst []float32) error {
	l.Store.Read(keys, dst)
	return nil
}

// Push implements [Client].
func (l Local) Push(_ context.Context, keys []uint64, grads []float32) error {
	return l.Store.Push(keys, grads)
}

// Flush implements [Client].
func (Local) Flush(context.Context) error { return nil }

// Barrier implements [Client].
func (l Local) Barrier(context.Context, uint64) error {
	l.Store.Commit()
	return nil
}

// coded is a Local whose gradients are changed as by a transport with a codec.
type coded struct {
	Local

	code func(keys []uint64, grads []float32)
}

// Push implements [Client].
func (c coded) Push(ctx context.Context, keys []uint64, grads []float32) error {
	c.code(keys, grads)
	return c.Local.Push(ctx, keys, grads)
}

// Reference runs in one process the training of len(shards) synchronous workers with a transport,
// with the same mini-batches in the same steps: each step sums one mini-batch of every shard, in
// fixed point, and commits. Its weights equal theirs, bit for bit, also those of a transport with a
// codec if cfg.Code is what that does. With one shard it is plain single-process training, for
// comparison with asynchronous training.
//
// In the result, Steps counts the mini-batches of all shards and Loss is the mean over the last
// epoch of all shards.
func Reference(ctx context.Context, store *ps.Store, shards []data.Source, cfg Config) (Result, error) {
	cfg, err := cfg.normal()
	if err != nil {
		return Result{}, err
	}
	begin := time.Now()
	report := cfg.Progress
	cfg.Progress = nil
	var local Client = Local{store}
	if cfg.Code != nil {
		local = coded{Local{store}, cfg.Code}
	}
	workers := make([]*worker, len(shards))
	for i, src := range shards {
		workers[i] = &worker{src: src, cfg: cfg}
	}
	var total Progress
	for epoch := range cfg.Epochs {
		for _, w := range workers {
			if err := w.start(epoch); err != nil {
				return Result{}, err
			}
		}
		for busy := true; busy; {
			busy = false
			for _, w := range workers {
				more, err := w.next()
				if err != nil {
					return Result{}, err
				}
				if !more {
					continue
				}
				busy = true
				if err := w.run(ctx, local); err != nil {
					return Result{}, err
				}
			}
			store.Commit()
			total = merge(workers)
			if report != nil && busy {
				report(total)
			}
		}
		if cfg.EpochDone != nil {
			if err := cfg.EpochDone(epoch); err != nil {
				return Result{}, err
			}
		}
	}
	return Result{total, time.Since(begin)}, nil
}

// merge adds up the workers' progress.
func merge(workers []*worker) Progress {
	var p Progress
	var loss float64
	samples := 0
	for _, w := range workers {
		p.Epoch, p.Step = w.progress.Epoch, w.progress.Step
		p.Steps += w.progress.Steps
		p.Samples += w.progress.Samples
		loss += w.loss
		samples += w.samples
	}
	if samples > 0 {
		p.Loss = workers[0].cfg.Model.Task().MeanLoss(loss, samples)
	}
	return p
}
