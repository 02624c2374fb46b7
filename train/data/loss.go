// SPDX-License-Identifier: Apache-2.0

package data

import (
	"math"

	"github.com/libra-ina/libra/internal/num/portable"
)

// logLoss returns the derivative of a sample's log-loss by its score, and the
// log-loss.
func logLoss(score float32, label bool) (derivative float32, loss float64) {
	z := float64(score)
	// Neither exp nor log gets an argument out of its range: the exponential is of -|z|.
	e := portable.Exp(-math.Abs(z))
	loss = math.Log1p(e)
	p := 1 / (1 + e)
	if z < 0 {
		p = e / (1 + e)
	}
	if label {
		return float32(p - 1), loss + math.Max(-z, 0)
	}
	return float32(p), loss + math.Max(z, 0)
}

// sigmoid returns 1 / (1 + e^-z) without overflow.
func sigmoid(z float64) float64 {
	e := portable.Exp(-math.Abs(z))
	if z < 0 {
		return e / (1 + e)
	}
	return 1 / (1 + e)
}
