// SPDX-License-Identifier: Apache-2.0

package glm

import (
	"context"
	"fmt"
	"math"
)

// Sums adds vectors of all workers, which start the same operations in the same order. The reducer
// of package transport/reducer does so, behind a type of its own for the numbers of operations.
type Sums interface {
	// Start contributes the worker's values to the next operation and returns its number.
	Start(values []int32) (op uint64, err error)
	// Wait stores the sums of all workers' values.
	Wait(op uint64, sums []int32) error
	// Poll does what is due, without waiting.
	Poll() error
}

// Worker is a worker's part in a training.
type Worker struct {
	Config Config
	Rows   *Rows
	// Index is the worker's among Workers, counted from 0.
	Index, Workers int
	// Sums has operations of Width values, at least Config.MicroBatch, and InFlight of them in flight.
	Sums            Sums
	Width, InFlight int
	// Progress, if not nil, is called after each mini-batch.
	Progress func(Progress)
}

// Progress is how far a training is.
type Progress struct {
	// Epoch is the current one, from 0 on.
	Epoch int `json:"epoch"`
	// Samples is the number of rows trained so far, in all epochs.
	Samples uint64 `json:"samples"`
	// Total is what Samples will be at the end.
	Total uint64 `json:"total"`
	// Loss is the mean loss of the epoch's rows so far, each before its update.
	Loss float64 `json:"loss"`
}

// Epoch is the result of an epoch.
type Epoch struct {
	// Loss is the mean loss of the rows, each before its update.
	Loss float64 `json:"loss"`
}

// RangeError ends a training in which a value has left its range.
type RangeError struct {
	Problem string
	// Row is the number of a row in the data, from 1 on, or 0: it is the value of a column.
	Row int
	// Column is the index of a feature, if Row is 0.
	Column uint64
}

func (e *RangeError) Error() string {
	where := fmt.Sprintf("the weight of feature %d", e.Column)
	if e.Row > 0 {
		where = fmt.Sprintf("row %d", e.Row)
	}
	return where + ": " + e.Problem
}

const (
	weightUnit     = 40      // weights are in 2^-40
	activationUnit = 24      // activations are in 2^-24
	weightLimit    = 1 << 50 // 2^10
	scaleLimit     = 1 << 44

	// pollEvery is the number of features after which a pass looks for frames: some hundred
	// microseconds.
	pollEvery = 1 << 16
)

// trainer is a running training.
type trainer struct {
	Worker
	weights  []int64
	gradient []int64  // of the mini-batch
	touched  []uint32 // columns whose gradients may not be 0
	order    []uint32 // of rows in the epoch

	partial, sums []int32
	ops           []uint64 // in flight, by their number modulo their count
	most          int64    // magnitude of a partial activation
	polled        int      // features since the last poll
	progress      Progress
	lossSum       float64
}

// Trained is a worker's part of a model after the last epoch.
type Trained struct {
	Epochs  []Epoch
	trainer *trainer
}

// Train trains. ctx is looked at between mini-batches.
func (w Worker) Train(ctx context.Context) (*Trained, error) {
	if err := w.check(); err != nil {
		return nil, err
	}
	t := &trainer{
		Worker: w, weights: make([]int64, w.Rows.Columns()), gradient: make([]int64, w.Rows.Columns()),
		order: make([]uint32, w.Rows.Len()), partial: make([]int32, w.Width), sums: make([]int32, w.Width),
		ops: make([]uint64, w.InFlight), most: math.MaxInt32 / int64(w.Workers),
	}
	for i := range t.order {
		t.order[i] = uint32(i)
	}
	t.progress.Total = uint64(w.Rows.Len()) * uint64(w.Config.Epochs)
	done := &Trained{trainer: t}
	for e := range w.Config.Epochs {
		t.progress.Epoch, t.lossSum = e, 0
		if err := t.trainEpoch(ctx); err != nil {
			return nil, err
		}
		done.Epochs = append(done.Epochs, Epoch{Loss: t.progress.Loss})
	}
	return done, nil
}

// check refuses what its user has to get right.
func (w *Worker) check() error {
	if err := w.Config.Validate(); err != nil {
		return fmt.Errorf("glm: %w", err)
	}
	switch {
	case w.Rows.Len() == 0 || w.Rows.Len() > math.MaxUint32:
		return fmt.Errorf("glm: %d rows: from 1 to %d can be trained", w.Rows.Len(), math.MaxUint32)
	case w.Rows.bits != w.Config.Bits:
		return fmt.Errorf("glm: rows of %d bits, the configuration has %d", w.Rows.bits, w.Config.Bits)
	case w.Index < 0 || w.Index >= w.Workers:
		return fmt.Errorf("glm: worker %d of %d", w.Index, w.Workers)
	case w.Width < w.Config.MicroBatch || w.InFlight < 1:
		return fmt.Errorf("glm: %d operations of %d values in flight, for micro-batches of %d", w.InFlight, w.Width,
			w.Config.MicroBatch)
	}
	return nil
}

// trainEpoch trains all rows once.
func (t *trainer) trainEpoch(ctx context.Context) error {
	t.Config.Shuffle(t.order, t.progress.Epoch)
	for at := 0; at < len(t.order); {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		samples := t.order[at:min(at+t.Config.Batch, len(t.order))]
		if err := t.trainBatch(samples); err != nil {
			return err
		}
		at += len(samples)
		t.progress.Samples += uint64(len(samples))
		t.progress.Loss = t.lossSum / float64(at)
		if t.Progress != nil {
			t.Progress(t.progress)
		}
	}
	return nil
}

// trainBatch trains a mini-batch: micro-batch after micro-batch, of which those ahead are in
// flight.
func (t *trainer) trainBatch(samples []uint32) error {
	micro := func(k int) []uint32 {
		return samples[k*t.Config.MicroBatch : min((k+1)*t.Config.MicroBatch, len(samples))]
	}
	count := (len(samples) + t.Config.MicroBatch - 1) / t.Config.MicroBatch
	err := t.pipeline(count,
		func(k int) error { return t.forward(micro(k)) },
		func(k int) error { return t.backward(micro(k)) })
	if err != nil {
		return err
	}
	return t.update()
}

// pipeline makes n operations. before fills partial for an operation, and after uses its sums, both
// in the order of operations.
func (t *trainer) pipeline(n int, before, after func(k int) error) error {
	for started, done := 0, 0; done < n; done++ {
		for ; started < n && started-done < len(t.ops); started++ {
			clear(t.partial)
			if err := before(started); err != nil {
				return err
			}
			var err error
			if t.ops[started%len(t.ops)], err = t.Sums.Start(t.partial); err != nil {
				return err
			}
		}
		if err := t.Sums.Wait(t.ops[done%len(t.ops)], t.sums); err != nil {
			return err
		}
		if err := after(done); err != nil {
			return err
		}
	}
	return nil
}

// forward computes the worker's partial activations. A row's q·v are below 2^34, so sums of them
// fit 64 bits for all rows that fit memory.
func (t *trainer) forward(samples []uint32) error {
	shift := 16 + t.Config.Bits
	half := int64(1) << (shift - 1)
	for k, i := range samples {
		columns, features := t.Rows.row(i)
		var a int64
		for f, c := range columns {
			a += int64(features[f]) * ((t.weights[c] + half) >> shift)
		}
		if a > t.most || a < -t.most {
			return &RangeError{Row: int(i) + 1, Problem: fmt.Sprintf(
				"its activation %.4g is beyond %.4g, the most that each of %d workers may add: lower the learning rate, or divide the labels if they are large numbers",
				math.Ldexp(float64(a), -activationUnit), math.Ldexp(float64(t.most), -activationUnit), t.Workers)}
		}
		t.partial[k] = int32(a)
		if err := t.poll(len(columns)); err != nil {
			return err
		}
	}
	return nil
}

// backward adds the gradients of rows whose full activations are in sums.
func (t *trainer) backward(samples []uint32) error {
	for k, i := range samples {
		z := math.Ldexp(float64(t.sums[k]), -activationUnit)
		derivative, loss := t.Config.Objective.Loss(z, float64(t.Rows.labels[i]))
		t.lossSum += loss
		step := float64(t.Config.LearningRate*derivative) / float64(t.Config.Batch)
		scaled := math.RoundToEven(math.Ldexp(step, weightUnit-t.Config.Bits))
		if !(math.Abs(scaled) < scaleLimit) {
			return &RangeError{Row: int(i) + 1, Problem: fmt.Sprintf(
				"its step %.4g is not below %.4g: lower the learning rate, or divide the labels if they are large numbers",
				math.Abs(step), math.Ldexp(scaleLimit, t.Config.Bits-weightUnit))}
		}
		scale := int64(scaled)
		if scale == 0 {
			continue
		}
		columns, features := t.Rows.row(i)
		for f, c := range columns {
			if t.gradient[c] == 0 {
				t.touched = append(t.touched, c)
			}
			t.gradient[c] += scale * int64(features[f])
		}
		if err := t.poll(len(columns)); err != nil {
			return err
		}
	}
	return nil
}

// update subtracts the gradients from the weights.
func (t *trainer) update() error {
	for _, c := range t.touched {
		w := t.weights[c] - t.gradient[c]
		if w >= weightLimit || w <= -weightLimit {
			return &RangeError{Column: t.Rows.keys[c], Problem: fmt.Sprintf(
				"%.4g (of values divided by their largest, %g) is not below %d: lower the learning rate, or divide the labels if they are large numbers",
				math.Ldexp(float64(w), -weightUnit), t.Rows.magnitudes[c], weightLimit>>weightUnit)}
		}
		t.weights[c], t.gradient[c] = w, 0
	}
	t.touched = t.touched[:0]
	return nil
}

// poll looks for frames now and then, as other workers may wait for a repetition of this one's.
func (t *trainer) poll(features int) error {
	if t.polled += features; t.polled < pollEvery {
		return nil
	}
	t.polled = 0
	return t.Sums.Poll()
}
