// SPDX-License-Identifier: Apache-2.0

package glm

import (
	"math"

	"github.com/libra-ina/libra/internal/num/portable"
)

// Loss returns the derivative of a row's loss by its activation, the same bits on all
// architectures, and the loss. Labels of classification are 0 and 1.
func (o Objective) Loss(z, label float64) (derivative, loss float64) {
	switch o {
	case Hinge:
		y := -1.0
		if label > 0 {
			y = 1
		}
		margin := float64(y * z)
		if margin < 1 {
			return -y, 1 - margin
		}
		return 0, 0
	case Square:
		derivative = z - label
		return derivative, float64(derivative*derivative) / 2
	}
	// Neither exp nor log gets an argument out of its range: the exponential is of -|z|.
	e := portable.Exp(-math.Abs(z))
	p := 1 / (1 + e)
	if z < 0 {
		p = e / (1 + e)
	}
	wrong := z // the activation for the other label
	if label > 0 {
		wrong = -z
	}
	return p - label, portable.Log(1+e) + math.Max(wrong, 0)
}
