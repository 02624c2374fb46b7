// SPDX-License-Identifier: Apache-2.0

package glm

import (
	"context"
	"time"

	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/train/data"
	"github.com/libra-ina/libra/train/glm"
)

// alone is the network of a worker without others: a sum is what it has contributed. With room for
// all operations of a mini-batch, a worker makes all forward passes before it waits for the first
// sum, so it also tells how long they take.
type alone struct {
	values  [][]int32 // by operation, modulo their number
	next    uint64
	begun   time.Time
	waiting time.Time // since when the worker waits in this mini-batch; zero: it does not
	forward []float64 // seconds of all forward passes of a mini-batch
	rest    []float64 // seconds of its backward passes, and of the update
}

func newAlone(cfg glm.Config) *alone {
	a := &alone{begun: time.Now()}
	for range cfg.Batch / cfg.MicroBatch {
		a.values = append(a.values, make([]int32, cfg.MicroBatch))
	}
	return a
}

func (a *alone) Start(values []int32) (uint64, error) {
	op := a.next
	copy(a.values[op%uint64(len(a.values))], values)
	a.next++
	return op, nil
}

func (a *alone) Wait(op uint64, sums []int32) error {
	if a.waiting.IsZero() {
		a.waiting = time.Now()
		a.forward = append(a.forward, a.waiting.Sub(a.begun).Seconds())
	}
	copy(sums, a.values[op%uint64(len(a.values))])
	return nil
}

func (a *alone) Poll() error { return nil }

// endBatch is called after each mini-batch.
func (a *alone) endBatch(glm.Progress) {
	now := time.Now()
	a.rest = append(a.rest, now.Sub(a.waiting).Seconds())
	a.begun, a.waiting = now, time.Time{}
}

// trainAlone trains the columns of the first of some workers.
func trainAlone(ctx context.Context, cfg glm.Config, rows []data.Sample, workers int) (*glm.Trained, *alone, error) {
	own, err := glm.Load(ctx, &source{rows: rows}, packer.Split(workers), 0, cfg.Bits)
	if err != nil {
		return nil, nil, err
	}
	a := newAlone(cfg)
	trained, err := glm.Worker{
		Config: cfg, Rows: own, Workers: workers, Sums: a, Width: cfg.MicroBatch, InFlight: len(a.values),
		Progress: a.endBatch,
	}.Train(ctx)
	return trained, a, err
}

// measureParts returns how long the forward passes of a mini-batch take the first of some workers,
// and its backward passes with the update.
func measureParts(ctx context.Context, cfg glm.Config, rows []data.Sample, workers int) (Parts, error) {
	_, a, err := trainAlone(ctx, cfg, rows[:len(rows)/cfg.Batch*cfg.Batch], workers)
	if err != nil {
		return Parts{}, err
	}
	return Parts{Forward: experiment.Median(a.forward), Backward: experiment.Median(a.rest)}, nil
}

// measureLosses trains with each number of bits, and in float32, for which there are 0.
func measureLosses(ctx context.Context, cfg glm.Config, rows []data.Sample, columns int) (all []Losses, err error) {
	f := newFloats(cfg, rows, columns)
	exact := Losses{}
	for e := range cfg.Epochs {
		loss, err := f.train(e, 0, 1, func([]float32) error { return ctx.Err() })
		if err != nil {
			return nil, err
		}
		exact.Losses = append(exact.Losses, loss/float64(len(rows)))
	}
	all = append(all, exact)
	for _, bits := range []int{3, 4, 8} {
		cfg.Bits = bits
		trained, _, err := trainAlone(ctx, cfg, rows, 1)
		if err != nil {
			return nil, err
		}
		l := Losses{Bits: bits}
		for e, epoch := range trained.Epochs {
			l.Losses = append(l.Losses, epoch.Loss)
			l.Off = max(l.Off, epoch.Loss/exact.Losses[e]-1, 1-epoch.Loss/exact.Losses[e])
		}
		all = append(all, l)
	}
	return all, nil
}
