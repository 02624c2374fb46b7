// SPDX-License-Identifier: Apache-2.0

package train

import (
	"math"

	"github.com/libra-ina/libra/train/data"
)

// Failure is an error of a training, with what may explain gradients that no arithmetic holds.
type Failure struct {
	Err error
	// Begin and Weights are the largest absolute values of the first mini-batch's gradients and
	// weights, infinite if one is no number. In an asynchronous job other workers may have trained
	// these weights before.
	Begin, Weights float64
	// Large are the features with the largest values in memory, if values are above ten; Label is
	// the largest absolute value of the labels there.
	Large []data.Largest
	Label float32
	// Batch is the number of samples of a mini-batch.
	Batch int
	// Resumed means that earlier runs have trained the weights.
	Resumed bool
}

// Error returns the text of Err.
func (f *Failure) Error() string { return f.Err.Error() }

func (f *Failure) Unwrap() error { return f.Err }

const (
	usualValue  = 10 // of features that were scaled
	namedValues = 3  // features that a failure names
)

// failed returns an error as a Failure.
func (w *worker) failed(err error) error {
	if err == nil || w.data == nil {
		return err
	}
	return &Failure{
		Err: err, Begin: w.begin, Weights: w.beginWeights,
		Large: w.data.LargestValues(usualValue, namedValues), Label: w.data.LargestLabel(),
		Batch: min(w.cfg.Batch, w.data.Len()), Resumed: w.cfg.First > 0,
	}
}

// largestMagnitude returns the largest absolute value, infinite if one is no number.
func largestMagnitude(values []float32) float64 {
	largest := 0.0
	for _, x := range values {
		a := math.Abs(float64(x))
		if math.IsNaN(a) {
			return math.Inf(1)
		}
		largest = max(largest, a)
	}
	return largest
}
