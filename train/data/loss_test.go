// SPDX-License-Identifier: Apache-2.0

package data

import (
	"math"
	"testing"
)

func TestExtremeScores(t *testing.T) {
	for _, test := range []struct {
		score      float32
		label      bool
		derivative float32
		loss       float64
	}{
		{0, true, -0.5, math.Ln2},
		{0, false, 0.5, math.Ln2},
		{1e30, true, 0, 0},
		{1e30, false, 1, float64(float32(1e30))},
		{-1e30, true, -1, float64(float32(1e30))},
		{-1e30, false, 0, 0},
	} {
		derivative, loss := logLoss(test.score, test.label)
		if derivative != test.derivative || math.Abs(loss-test.loss) > 1e-15*test.loss {
			t.Errorf("score %g, label %v: %g, %g; want %g, %g", test.score, test.label, derivative, loss, test.derivative, test.loss)
		}
	}
	// Diverged weights must be visible, so that a push refuses the gradient.
	if d, _ := logLoss(float32(math.NaN()), true); d == d {
		t.Errorf("derivative %g of a NaN score", d)
	}
}
