package transport

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// NegotiationTimes lets all workers of a job negotiate the scale of so many
// iterations, each with its own gradients, and returns how long each call of
// [Worker.NegotiateScale] took, from the search for the largest exponent to the
// scale: the delay that scaled integers add to an iteration. The times are in the order of workers,
// then of iterations.
func NegotiationTimes(ctx context.Context, workers []*Worker, grads [][]float32, iterations int) ([]time.Duration, error) {
	if len(grads) != len(workers) {
		return nil, fmt.Errorf("transport: gradients of %d workers for %d", len(grads), len(workers))
	}
	ctx, cancel := context.WithCancelCause(ctx) // nobody shall wait for one that has failed
	defer cancel(nil)
	times := make([]time.Duration, len(workers)*iterations)
	errs := make([]error, len(workers))
	var wg sync.WaitGroup
	for i, w := range workers {
		wg.Go(func() {
			for n := range iterations {
				start := time.Now()
				_, err := w.NegotiateScale(ctx, grads[i])
				times[i*iterations+n] = time.Since(start)
				if err != nil {
					errs[i] = fmt.Errorf("worker %d, iteration %d: %w", i, n, err)
					cancel(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return times, nil
}
