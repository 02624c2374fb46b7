// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"fmt"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/internal/num/scaled"
	"github.com/libra-ina/libra/packer"
)

// Reduce is the all-reduce of a job in sync mode: it contributes the gradients of
// the whole hot vector, in rank order, and returns when all workers of the job
// have contributed. sums then holds the total, the same for each worker. Both slices
// have HotSet.Slots() floats and may be the same slice. Concurrent calls take turns.
//
// It waits for the slowest worker, at most WorkerConfig.RoundLimit without any
// result. Gradients that are not finite or out of the job's range are refused
// with a [*packer.NotFiniteError] or a [*packer.RangeError] before anything is
// sent. A later error is a [*RoundError]; the contents of sums are then undefined,
// and the worker is out of step with the others.
func (w *Worker) Reduce(ctx context.Context, grads, sums []float32) error {
	r := w.rounds
	if w.cfg.Mode != aggregator.Sync {
		return fmt.Errorf("%w: Reduce needs %v, the mode is %v", ErrMode, aggregator.Sync, w.cfg.Mode)
	}
	if len(grads) != r.slots || len(sums) != r.slots {
		return fmt.Errorf("transport: reduce of %d gradients into %d sums, the hot set has %d slots", len(grads), len(sums),
			r.slots)
	}
	if err := r.acquireTurn(ctx); err != nil {
		return err
	}
	defer r.releaseTurn()
	numbers := r.numbers
	if w.cfg.Negotiate {
		exp, err := r.negotiateScale(ctx, grads)
		if err != nil {
			return err
		}
		numbers = packer.Integers(exp)
	}
	if at := numbers.Check(grads); at >= 0 {
		return w.badGradient(at, grads[at])
	}
	return r.doCall(ctx, roundCall{end: r.groups, grads: grads, sums: sums, numbers: numbers})
}

// badGradient returns the error for a gradient of the hot vector that cannot be sent.
func (w *Worker) badGradient(at int, g float32) error {
	var key uint64
	if row := at / w.cfg.Dim; row < w.cfg.HotSet.Len() { // NegotiateScale accepts longer vectors
		key = w.cfg.HotSet.Key(uint32(row))
	}
	if (packer.Numbers{}).Check([]float32{g}) >= 0 {
		return &packer.NotFiniteError{Index: at, Key: key, Value: g}
	}
	return &packer.RangeError{Index: at, Key: key, Value: g}
}

// NegotiateScale agrees with the other workers of a job with fixed arithmetic on
// the scale of the next iteration, whose integers count units of 2^exp: the
// finest at which the sum of all workers' gradients cannot overflow. To find it, the
// workers compare their largest exponents (SwitchML, NSDI 2021, §3.7). It returns
// when all workers have called it. Errors are those of Reduce. With
// WorkerConfig.Negotiate, Reduce calls it.
func (w *Worker) NegotiateScale(ctx context.Context, grads []float32) (exp int, err error) {
	r := w.rounds
	if r == nil || w.cfg.Arithmetic != aggregator.Fixed {
		return 0, fmt.Errorf("%w: a negotiation needs %v arithmetic and the number of workers", ErrMode, aggregator.Fixed)
	}
	if err := r.acquireTurn(ctx); err != nil {
		return 0, err
	}
	defer r.releaseTurn()
	return r.negotiateScale(ctx, grads)
}

// negotiateScale is NegotiateScale for a caller that has the turn.
func (r *rounds) negotiateScale(ctx context.Context, grads []float32) (exp int, err error) {
	if at := (packer.Numbers{}).Check(grads); at >= 0 {
		return 0, r.w.badGradient(at, grads[at])
	}
	largest, err := scaled.LargestExponent(grads)
	if err != nil {
		return 0, err
	}
	if err := r.doCall(ctx, roundCall{first: r.groups, end: r.groups + 1, exponent: largest}); err != nil {
		return 0, err
	}
	scale, err := scaled.ScaleFor(r.decided, r.w.cfg.Workers)
	return -scale.Exp, err
}
