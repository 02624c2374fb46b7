// SPDX-License-Identifier: Apache-2.0

package data

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Task is what a model predicts, which determines the labels, the loss of training and the metrics.
type Task int

const (
	// Classification predicts the probability of a click. Labels are 0 and 1, the loss
	// is the log-loss, and a score is the log-odds of a click.
	Classification Task = iota
	// Regression predicts a number. Labels are finite numbers, the loss is half of the
	// squared error, and a score is the prediction.
	Regression
)

var tasks = []string{"classification", "regression"}

// Tasks lists the names of all tasks.
func Tasks() []string { return slices.Clone(tasks) }

// ParseTask returns the task of a name; no name means [Classification].
func ParseTask(name string) (Task, error) {
	if name == "" {
		return Classification, nil
	}
	if i := slices.Index(tasks, name); i >= 0 {
		return Task(i), nil
	}
	return 0, fmt.Errorf("data: task %q is none of %s", name, strings.Join(tasks, ", "))
}

// String returns the task's name.
func (t Task) String() string { return tasks[t] }

// Prediction returns the prediction for a sample's score: the probability of a click, or a number.
func (t Task) Prediction(score float32) float64 {
	if t == Regression {
		return float64(score)
	}
	return sigmoid(float64(score))
}

// SampleLoss returns the derivative of a sample's loss by its score, and the loss.
func (t Task) SampleLoss(score, label float32) (derivative float32, loss float64) {
	if t == Regression {
		derivative = score - label
		return derivative, float64(derivative) * float64(derivative) / 2
	}
	return logLoss(score, label > 0)
}

// MeanLoss returns the mean of n samples' losses in the form for users.
func (t Task) MeanLoss(sum float64, n int) Loss {
	mean := sum / float64(n)
	if t == Regression {
		root := math.Sqrt(2 * mean)
		return Loss{RMSE: &root}
	}
	return Loss{LogLoss: &mean}
}
