// SPDX-License-Identifier: Apache-2.0

package glm

import (
	"github.com/libra-ina/libra/train/data"
	"github.com/libra-ina/libra/train/glm"
)

// floats is a linear model in float32, which is trained as package train/glm does in integers: on
// features divided by the largest magnitude of their column.
type floats struct {
	glm.Config
	rows     []data.Sample // divided
	weights  []float32
	gradient []float32
	order    []uint32
}

func newFloats(cfg glm.Config, rows []data.Sample, columns int) *floats {
	f := &floats{
		Config: cfg, rows: make([]data.Sample, len(rows)), weights: make([]float32, columns),
		gradient: make([]float32, columns), order: make([]uint32, len(rows)),
	}
	largest := make([]float32, columns)
	for i, row := range rows {
		f.order[i] = uint32(i)
		for k, c := range row.Keys {
			largest[c] = max(largest[c], row.Values[k], -row.Values[k])
		}
	}
	for i, row := range rows {
		divided := data.Sample{Label: row.Label, Keys: row.Keys, Values: make([]float32, len(row.Values))}
		for k, c := range row.Keys {
			if row.Values[k] != 0 {
				divided.Values[k] = row.Values[k] / largest[c]
			}
		}
		f.rows[i] = divided
	}
	return f
}

// train trains an epoch, and returns the sum of the losses of the rows that are this worker's: in
// each mini-batch, those whose number modulo workers is index. reduce adds the gradients of all
// workers.
func (f *floats) train(epoch, index, workers int, reduce func(gradient []float32) error) (loss float64, err error) {
	f.Shuffle(f.order, epoch)
	for at := 0; at < len(f.order); at += f.Batch {
		batch := f.order[at:min(at+f.Batch, len(f.order))]
		for i := index; i < len(batch); i += workers {
			loss += f.backward(&f.rows[batch[i]])
		}
		if err := reduce(f.gradient); err != nil {
			return 0, err
		}
		for c, g := range f.gradient {
			f.weights[c] -= g
		}
		clear(f.gradient)
	}
	return loss, nil
}

// backward adds a row's gradient, times the learning rate, and returns its loss.
func (f *floats) backward(row *data.Sample) float64 {
	var z float32
	for k, c := range row.Keys {
		z += row.Values[k] * f.weights[c]
	}
	derivative, loss := f.Objective.Loss(float64(z), float64(row.Label))
	step := float32(f.LearningRate * derivative / float64(f.Batch))
	for k, c := range row.Keys {
		f.gradient[c] += step * row.Values[k]
	}
	return loss
}
