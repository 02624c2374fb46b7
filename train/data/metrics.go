// SPDX-License-Identifier: Apache-2.0

package data

import (
	"cmp"
	"math"
	"slices"
)

// Loss is the distance between predictions and labels; the task decides its measure.
type Loss struct {
	// LogLoss is the mean log-loss, of [Classification].
	LogLoss *float64 `json:"log_loss,omitempty"`
	// RMSE is the root of the mean squared error, of [Regression].
	RMSE *float64 `json:"rmse,omitempty"`
}

// Metrics measures how well predictions fit the labels. Metrics of other tasks are nil.
type Metrics struct {
	// AUC is the area under the ROC curve: the probability that a random click gets a higher score
	// than a random non-click. It is also nil if the data have only one kind of label.
	AUC *float64 `json:"auc,omitempty"`
	Loss
	// MAE is the mean absolute error, of [Regression].
	MAE *float64 `json:"mae,omitempty"`
}

// Metric is one value of a [Loss] or of [Metrics].
type Metric struct {
	Name  string // for people
	Key   string // in JSON
	Value float64
}

// All lists the known values.
func (l Loss) All() []Metric {
	return known(named{"log-loss", "log_loss", l.LogLoss}, named{"RMSE", "rmse", l.RMSE})
}

// All lists the known values.
func (m Metrics) All() []Metric {
	return slices.Concat(known(named{"AUC", "auc", m.AUC}), m.Loss.All(), known(named{"MAE", "mae", m.MAE}))
}

// Finite reports whether all metrics are numbers; those of diverged weights are not.
func (m Metrics) Finite() bool {
	return !slices.ContainsFunc(m.All(), func(m Metric) bool { return math.IsNaN(m.Value) || math.IsInf(m.Value, 0) })
}

type named struct {
	name, key string
	value     *float64
}

func known(all ...named) (list []Metric) {
	for _, m := range all {
		if m.value != nil {
			list = append(list, Metric{m.name, m.key, *m.value})
		}
	}
	return list
}

// Measure compares scores with labels; there is at least one.
func (t Task) Measure(scores, labels []float32) Metrics {
	var sum, absolute float64
	for i, score := range scores {
		derivative, loss := t.SampleLoss(score, labels[i])
		sum += loss
		absolute += math.Abs(float64(derivative))
	}
	m := Metrics{Loss: t.MeanLoss(sum, len(scores))}
	if t == Regression {
		absolute /= float64(len(scores))
		m.MAE = &absolute
	} else if area := areaUnderROC(scores, labels); !math.IsNaN(area) {
		m.AUC = &area
	}
	return m
}

// areaUnderROC returns the area under the ROC curve, exactly: concordant pairs are counted
// in integers, and ties count one half (Mann–Whitney statistic). It is NaN if all labels
// are the same.
func areaUnderROC(scores, labels []float32) float64 {
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
			if labels[order[i]] > 0 {
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
