// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"slices"

	"github.com/libra-ina/libra/train/data"
)

// evaluationBatch is the number of samples whose rows are pulled together.
const evaluationBatch = 1024

// Evaluate scores all samples of d with the current weights of c, and compares the scores with the
// labels.
func Evaluate(ctx context.Context, c Puller, m Model, d *data.Dataset) (data.Metrics, error) {
	scores, err := Scores(ctx, c, m, d)
	if err != nil {
		return data.Metrics{}, err
	}
	return m.Task().Measure(scores, d.Labels()), nil
}

// Scores returns the scores of all samples of d with the current weights of c.
func Scores(ctx context.Context, c Puller, m Model, d *data.Dataset) ([]float32, error) {
	var b data.Batch
	var weights []float32
	scores := make([]float32, d.Len())
	for begin := 0; begin < d.Len(); begin += evaluationBatch {
		end := min(begin+evaluationBatch, d.Len())
		samples := make([]int, 0, evaluationBatch)
		for i := begin; i < end; i++ {
			samples = append(samples, i)
		}
		b.Build(d, samples)
		weights = resize(weights, len(b.Keys)*m.Dim())
		if err := c.Pull(ctx, b.Keys, weights); err != nil {
			return nil, err
		}
		m.Score(&b, weights, scores[begin:end])
	}
	return scores, nil
}

// resize returns a slice of n floats, s if it is large enough.
func resize(s []float32, n int) []float32 {
	return slices.Grow(s[:0], n)[:n]
}
