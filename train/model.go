// SPDX-License-Identifier: Apache-2.0

package train

import (
	"cmp"
	"fmt"
	"math"

	"github.com/libra-ina/libra/train/data"
	"github.com/libra-ina/libra/train/settings"
)

// Model turns mini-batches into gradients and predictions. Weights and gradients are row after row
// in the order of the batch's Keys, Dim floats each.
//
// The results are the same bits on every machine: sums have a fixed order, and conversions prevent
// fused multiply-add (Go specification, "Floating-point operators").
type Model interface {
	// Dim is the number of floats in a row.
	Dim() int
	// Task is what the model predicts.
	Task() data.Task
	// Gradient overwrites grads with the gradient of the batch's mean loss and returns the sum of
	// the samples' losses, as the task defines them.
	Gradient(b *data.Batch, weights, grads []float32) (loss float64)
	// Score stores the score of each sample in dst, which [Task.Prediction] converts to a
	// prediction.
	Score(b *data.Batch, weights, dst []float32)
}

// NewModel returns the model of a name, "lr" or "fm", for a task. Factors is the number of
// latent factors of a factorisation machine; 0 means the default of
// [settings.Factors]. The weight of the ridge penalty, l2, is not negative.
func NewModel(name string, task data.Task, factors int, l2 float32) (Model, error) {
	if !(l2 >= 0) || math.IsInf(float64(l2), 0) {
		return nil, fmt.Errorf("train: L2 weight %g is not a number from 0 on", l2)
	}
	switch name {
	case "lr":
		return Linear{For: task, L2: l2}, nil
	case "fm":
		factors = cmp.Or(factors, settings.Factors.Default)
		if factors < 1 || factors > MaxFactors {
			return nil, fmt.Errorf("train: %d factors are not in [1, %d]", factors, MaxFactors)
		}
		return FM{For: task, Factors: factors, L2: l2}, nil
	}
	return nil, fmt.Errorf("train: unknown model %q; choose lr or fm", name)
}

// Linear is logistic or linear regression, depending on the task: a row is one weight.
type Linear struct {
	// For is the task.
	For data.Task
	// L2 is the weight of the ridge penalty on the rows of each batch.
	L2 float32
}

// Dim is 1.
func (Linear) Dim() int { return 1 }

// Task implements [Model].
func (m Linear) Task() data.Task { return m.For }

// Gradient implements [Model].
func (m Linear) Gradient(b *data.Batch, weights, grads []float32) (loss float64) {
	penalty(weights, grads, m.L2, 1)
	bias := len(b.Keys) - 1
	scale := 1 / float32(b.Len())
	for i, label := range b.Labels {
		features, values := b.Sample(i)
		residual, l := m.For.SampleLoss(m.score(features, values, weights, bias), label)
		loss += l
		g := float32(residual * scale)
		grads[bias] += g
		if values == nil {
			for _, f := range features {
				grads[f] += g
			}
		} else {
			for j, f := range features {
				grads[f] += float32(g * values[j])
			}
		}
	}
	return loss
}

func (Linear) score(features []uint32, values, weights []float32, bias int) float32 {
	z := weights[bias]
	if values == nil {
		for _, f := range features {
			z += weights[f]
		}
	} else {
		for j, f := range features {
			z += float32(weights[f] * values[j])
		}
	}
	return z
}

// Score implements [Model].
func (m Linear) Score(b *data.Batch, weights, dst []float32) {
	for i := range b.Labels {
		features, values := b.Sample(i)
		dst[i] = m.score(features, values, weights, len(b.Keys)-1)
	}
}

// penalty starts the gradients with those of the ridge penalty on all rows but
// the last, which is the bias.
func penalty(weights, grads []float32, l2 float32, dim int) {
	if l2 == 0 {
		clear(grads)
		return
	}
	n := len(grads) - dim
	for i, w := range weights[:n] {
		grads[i] = float32(l2 * w)
	}
	clear(grads[n:])
}
