package workload

import (
	"cmp"
	"context"
	"slices"
)

// Metrics measures how well scores fit the labels.
type Metrics struct {
	Samples int
	// AUC is the area under the ROC curve: the probability that a random
	// click gets a higher score than a random non-click. NaN if the data
	// has only one kind of label.
	AUC float64
	// LogLoss is the mean log-loss.
	LogLoss float64
}

// evaluationBatch is the number of samples whose rows are pulled at once.
const evaluationBatch = 1024

// Evaluate scores all samples of d with the weights that c has now, and holds the
// scores against the labels.
func Evaluate(ctx context.Context, c Puller, m Model, d *Dataset) (Metrics, error) {
	scores, err := Scores(ctx, c, m, d)
	if err != nil {
		return Metrics{}, err
	}
	return Metrics{d.Len(), AUC(scores, d.labels), LogLoss(scores, d.labels)}, nil
}

// Scores returns the scores of all samples of d with the weights that c has now.
func Scores(ctx context.Context, c Puller, m Model, d *Dataset) ([]float32, error) {
	var b Batch
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

// AUC returns the area under the ROC curve, exactly: concordant pairs are counted
// in integers, and ties count one half (Mann–Whitney statistic).
func AUC(scores []float32, labels []bool) float64 {
	order := make([]int, len(scores))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(scores[a], scores[b]) })
	var twice, below, positives uint64 // twice the concordant pairs
	for i := 0; i < len(order); {
		var clicks, others uint64
		tie := scores[order[i]]
		for ; i < len(order) && cmp.Compare(scores[order[i]], tie) == 0; i++ {
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

// LogLoss returns the mean log-loss.
func LogLoss(scores []float32, labels []bool) float64 {
	var sum float64
	for i, score := range scores {
		_, loss := residual(score, labels[i])
		sum += loss
	}
	return sum / float64(len(scores))
}

// resize returns a slice of n floats, s if it is large enough.
func resize(s []float32, n int) []float32 {
	return slices.Grow(s[:0], n)[:n]
}
