// SPDX-License-Identifier: Apache-2.0

package train

import "github.com/libra-ina/libra/train/data"

// MaxFactors bounds [FM.Factors].
const MaxFactors = 64

// FM is a factorisation machine (Rendle, 2010): the score of a sample is its
// linear part plus <v_i, v_j> x_i x_j over all pairs of its features. A row is the
// feature's linear weight, then its Factors latent weights.
type FM struct {
	// For is the task.
	For data.Task
	// Factors is the length of a latent vector, 1 to [MaxFactors].
	Factors int
	// L2 is the weight of the ridge penalty on the rows of each batch.
	L2 float32
}

// Dim is Factors + 1.
func (m FM) Dim() int { return m.Factors + 1 }

// Task implements [Model].
func (m FM) Task() data.Task { return m.For }

// score returns a sample's score and stores in sums, for each factor, the sum of v x over the
// features.
func (m FM) score(features []uint32, values, weights, sums []float32, bias int) float32 {
	d := len(sums) + 1
	clear(sums)
	z := weights[bias*d]
	var squares float32
	for j, f := range features {
		x := float32(1)
		if values != nil {
			x = values[j]
		}
		row := weights[int(f)*d:][:d]
		z += float32(row[0] * x)
		latent := row[1:][:len(sums)]
		for c, v := range latent {
			vx := float32(v * x)
			sums[c] += vx
			squares += float32(vx * vx)
		}
	}
	var pairs float32
	for _, s := range sums {
		pairs += float32(s * s)
	}
	return z + float32((pairs-squares)*0.5)
}

// Gradient implements [Model].
func (m FM) Gradient(b *data.Batch, weights, grads []float32) (loss float64) {
	d := m.Dim()
	penalty(weights, grads, m.L2, d)
	bias := len(b.Keys) - 1
	scale := 1 / float32(b.Len())
	var buf [MaxFactors]float32
	sums := buf[:m.Factors]
	for i, label := range b.Labels {
		features, values := b.Sample(i)
		derivative, l := m.For.SampleLoss(m.score(features, values, weights, sums, bias), label)
		loss += l
		g := float32(derivative * scale)
		grads[bias*d] += g
		for j, f := range features {
			x := float32(1)
			if values != nil {
				x = values[j]
			}
			gx := float32(g * x)
			row, out := weights[int(f)*d:][:d], grads[int(f)*d:][:d]
			out[0] += gx
			latent, grad := row[1:][:len(sums)], out[1:][:len(sums)]
			for c, s := range sums {
				grad[c] += float32(gx * (s - float32(latent[c]*x)))
			}
		}
	}
	return loss
}

// Score implements [Model].
func (m FM) Score(b *data.Batch, weights, dst []float32) {
	var buf [MaxFactors]float32
	for i := range b.Labels {
		features, values := b.Sample(i)
		dst[i] = m.score(features, values, weights, buf[:m.Factors], len(b.Keys)-1)
	}
}
