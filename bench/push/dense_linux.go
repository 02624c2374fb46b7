// SPDX-License-Identifier: Apache-2.0

package push

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/transport"
	"github.com/libra-ina/libra/wire"
)

// denseConfig configures a worker of SwitchML, or the process in place of its server, which does
// nothing.
type denseConfig struct {
	Workers int // 0: the process does nothing
	Number  int // from 0 on
	Slots   int // values of a vector
}

// runDense adds up vectors of Slots floats with the other workers, one after the other, each at a
// scale that they agree on.
func (c *childConfig) runDense(ctx context.Context) (err error) {
	if c.Dense.Workers == 0 {
		none := func(context.Context, *mark) error { return nil }
		return answer(ctx, func() uint64 { return 0 }, map[string]func(context.Context, *mark) error{opStop: none})
	}
	job := aggregator.JobConfig{
		ID: job, Mode: aggregator.Sync, Arithmetic: aggregator.Fixed, Exp: aggregator.DefaultExp(aggregator.Fixed),
		Workers: c.Dense.Workers, Slots: c.Dense.Slots, MaxStripes: wire.MaxStripes,
	}
	rounds, err := c.JoinRounds(ctx, job, c.Dense.Number, fmt.Sprintf("%d workers of %s", c.Dense.Workers, SwitchML))
	if err != nil {
		return err
	}
	defer rounds.Leave()
	w, err := c.StartReducing(ctx, rounds, job, c.Dense.Number)
	if err != nil {
		return err
	}
	return errors.Join(c.Dense.driveSums(ctx, w), w.Close())
}

// driveSums makes sums as the requests ask for. All workers have to make as many: the first value
// of a vector is 1 of those that have been told to stop, and whoever sees a sum that is not 0
// stops.
func (c *denseConfig) driveSums(ctx context.Context, w *transport.Worker) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		made     atomic.Uint64
		stopped  atomic.Bool
		finished = make(chan struct{})
	)
	begin := sync.OnceFunc(func() {
		go func() {
			if err := c.reduceAll(ctx, w, &made, stopped.Load); err != nil {
				cancel(err)
				return
			}
			close(finished)
		}()
	})
	return answer(ctx, made.Load, map[string]func(context.Context, *mark) error{
		opMark:  frames(w),
		opStart: func(context.Context, *mark) error { begin(); return nil },
		opStop: func(ctx context.Context, _ *mark) error {
			stopped.Store(true)
			begin()
			select {
			case <-finished:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		},
	})
}

func (c *denseConfig) reduceAll(ctx context.Context, w *transport.Worker, made *atomic.Uint64, stop func() bool) error {
	grads := slices.Repeat([]float32{float32(c.Number+1) / 1024}, c.Slots)
	sums := make([]float32, c.Slots)
	want := float64(c.Workers*(c.Workers+1)) / 2 / 1024
	for {
		grads[0] = 0
		if stop() {
			grads[0] = 1
		}
		if err := w.Reduce(ctx, grads, sums); err != nil {
			return err
		}
		made.Add(1)
		for i, sum := range sums[1:] {
			if math.Abs(float64(sum)-want) > 0x1p-16 {
				return fmt.Errorf("%w: value %d of a dense vector sums to %v, but %v was pushed", ErrSums, i+1, sum, want)
			}
		}
		if sums[0] != 0 {
			return nil
		}
	}
}
