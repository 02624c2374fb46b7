package workload

import (
	"cmp"
	"context"
	"math"
	"slices"
)

// Metrics measures how well predictions fit the labels.
type Metrics struct {
	Samples int
	// AUC is the area under the ROC curve: the probability that a random
	// click gets a higher prediction than a random non-click. NaN if the data
	// has only one kind of label.
	AUC float64
	// LogLoss is the mean log-loss.
	LogLoss float64
}

// evaluationBatch is the number of samples whose rows are pulled at once.
const evaluationBatch = 1024

// Evaluate predicts all samples of d with the weights that c has now.
func Evaluate(ctx context.Context, c Puller, m Model, d *Dataset) (Metrics, error) {
	var b Batch
	var weights []float32
	predictions := make([]float32, d.Len())
	for begin := 0; begin < d.Len(); begin += evaluationBatch {
		end := min(begin+evaluationBatch, d.Len())
		samples := make([]int, 0, evaluationBatch)
		for i := begin; i < end; i++ {
			samples = append(samples, i)
		}
		b.Build(d, samples)
		weights = resize(weights, len(b.Keys)*m.Dim())
		if err := c.Pull(ctx, b.Keys, weights); err != nil {
			return Metrics{}, err
		}
		m.Predict(&b, weights, predictions[begin:end])
	}
	return Metrics{d.Len(), AUC(predictions, d.labels), LogLoss(predictions, d.labels)}, nil
}

// AUC returns the area under the ROC curve, exactly: concordant pairs are counted
// in integers, and ties count one half (Mann–Whitney statistic).
func AUC(predictions []float32, labels []bool) float64 {
	order := make([]int, len(predictions))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(predictions[a], predictions[b]) })
	var twice, below, positives uint64 // twice the concordant pairs
	for i := 0; i < len(order); {
		var clicks, others uint64
		tie := predictions[order[i]]
		for ; i < len(order) && cmp.Compare(predictions[order[i]], tie) == 0; i++ {
			if labels[order[i]] {
				clicks++
			} else {
				others++
			}
		}
		twice += clicks * (2*below + others)
		below += others
		positives += clicks
	}
	return float64(twice) / (2 * float64(below) * float64(positives))
}

// LogLoss returns the mean log-loss. Predictions are kept 1e-7 away from 0 and 1,
// so that a float32 that was rounded to one of them costs a finite amount.
func LogLoss(predictions []float32, labels []bool) float64 {
	var sum float64
	for i, p := range predictions {
		q := min(max(float64(p), 1e-7), 1-1e-7)
		if !labels[i] {
			q = 1 - q
		}
		sum -= math.Log(q)
	}
	return sum / float64(len(predictions))
}

// resize returns a slice of n floats, s if it is large enough.
func resize(s []float32, n int) []float32 {
	return slices.Grow(s[:0], n)[:n]
}
