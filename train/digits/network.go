// SPDX-License-Identifier: Apache-2.0

package digits

import (
	"math"
	"math/rand/v2"
	"slices"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas32"
)

// Network is a multilayer perceptron.
type Network struct {
	widths []int // of inputs, hidden layers and outputs
	// Weights are, layer by layer, float32[outputs, inputs] by rows and then float32[outputs], what is
	// added to the outputs.
	Weights []float32
}

// New returns a network with layers of widths, of which there are at least two, the first that of
// the inputs. Weights are drawn as K. He et al. do ("Delving Deep into Rectifiers", ICCV 2015,
// §2.2), what is added to outputs is 0.
func New(widths []int, seed uint64) *Network {
	n := &Network{widths: slices.Clone(widths)}
	n.Weights = make([]float32, n.size())
	rng := rand.New(rand.NewPCG(seed, 0))
	for layer := range n.layers() {
		matrix, _ := n.of(n.Weights, layer)
		deviation := math.Sqrt(2 / float64(n.widths[layer]))
		for i := range matrix.Data {
			matrix.Data[i] = float32(rng.NormFloat64() * deviation)
		}
	}
	return n
}

func (n *Network) layers() int { return len(n.widths) - 1 }

func (n *Network) size() (size int) {
	for layer := range n.layers() {
		size += (n.widths[layer] + 1) * n.widths[layer+1]
	}
	return size
}

// of returns views of a layer's part of weights or gradients.
func (n *Network) of(all []float32, layer int) (matrix blas32.General, added []float32) {
	for l := range layer {
		all = all[(n.widths[l]+1)*n.widths[l+1]:]
	}
	inputs, outputs := n.widths[layer], n.widths[layer+1]
	matrix = blas32.General{Rows: outputs, Cols: inputs, Stride: inputs, Data: all[:outputs*inputs]}
	return matrix, all[outputs*inputs:][:outputs]
}

// Pass computes losses and gradients of a network. It keeps its memory for the next batch; each
// goroutine needs its own.
type Pass struct {
	network *Network
	outputs []blas32.General // of the inputs, and of each layer
	errors  blas32.General   // by how much the loss grows with the outputs of a layer
	before  blas32.General   // the same of the layer before
}

// NewPass returns a Pass for batches of at most rows rows.
func (n *Network) NewPass(rows int) *Pass {
	p := &Pass{network: n, errors: batchOf(rows, slices.Max(n.widths)), before: batchOf(rows, slices.Max(n.widths))}
	for _, width := range n.widths {
		p.outputs = append(p.outputs, batchOf(rows, width))
	}
	return p
}

func batchOf(rows, width int) blas32.General {
	return blas32.General{Rows: rows, Cols: width, Stride: width, Data: make([]float32, rows*width)}
}

func resize(batch *blas32.General, rows, width int) {
	batch.Rows, batch.Cols, batch.Stride, batch.Data = rows, width, width, batch.Data[:rows*width]
}

// forward computes the outputs of all layers.
func (p *Pass) forward(images []float32) {
	rows := len(images) / p.network.widths[0]
	resize(&p.outputs[0], rows, p.network.widths[0])
	copy(p.outputs[0].Data, images)
	for layer := range p.network.layers() {
		matrix, added := p.network.of(p.network.Weights, layer)
		in, out := p.outputs[layer], &p.outputs[layer+1]
		resize(out, rows, matrix.Rows)
		for row := range rows {
			copy(out.Data[row*matrix.Rows:], added)
		}
		blas32.Gemm(blas.NoTrans, blas.Trans, 1, in, matrix, 1, *out)
		if layer < p.network.layers()-1 {
			for i, v := range out.Data {
				out.Data[i] = max(v, 0)
			}
		}
	}
}

// Gradient stores the gradient of a batch's mean loss in gradient, which has the length of the
// weights, and returns that loss. labels has a label, below the last width, for each image.
func (p *Pass) Gradient(gradient, images []float32, labels []uint8) (loss float64) {
	p.forward(images)
	loss = p.lossErrors(labels)
	for layer := p.network.layers() - 1; layer >= 0; layer-- {
		matrix, added := p.network.of(gradient, layer)
		blas32.Gemm(blas.Trans, blas.NoTrans, 1, p.errors, p.outputs[layer], 0, matrix)
		clear(added)
		for row := range p.errors.Rows {
			for i, e := range p.errors.Data[row*matrix.Rows:][:matrix.Rows] {
				added[i] += e
			}
		}
		if layer > 0 {
			p.stepBack(layer)
		}
	}
	return loss
}

// lossErrors returns the mean loss, and sets the errors of the last layer.
func (p *Pass) lossErrors(labels []uint8) (loss float64) {
	out := p.outputs[len(p.outputs)-1]
	resize(&p.errors, out.Rows, out.Cols)
	for row := range out.Rows {
		scores, errors := out.Data[row*out.Cols:][:out.Cols], p.errors.Data[row*out.Cols:][:out.Cols]
		top, sum := float64(slices.Max(scores)), 0.0
		for _, s := range scores {
			sum += math.Exp(float64(s) - top)
		}
		for i, s := range scores {
			errors[i] = float32(math.Exp(float64(s)-top) / sum / float64(out.Rows))
		}
		right := labels[row]
		loss += math.Log(sum) + top - float64(scores[right])
		errors[right] -= 1 / float32(out.Rows)
	}
	return loss / float64(out.Rows)
}

// stepBack computes the errors of the outputs of the layer before from those of a layer.
func (p *Pass) stepBack(layer int) {
	matrix, _ := p.network.of(p.network.Weights, layer)
	resize(&p.before, p.errors.Rows, matrix.Cols)
	blas32.Gemm(blas.NoTrans, blas.NoTrans, 1, p.errors, matrix, 0, p.before)
	for i, v := range p.outputs[layer].Data {
		if v <= 0 { // cut by the rectifier
			p.before.Data[i] = 0
		}
	}
	p.errors, p.before = p.before, p.errors
}

// Accuracy returns the share of images whose label has the largest output.
func (p *Pass) Accuracy(images []float32, labels []uint8) float64 {
	width, right := p.network.widths[0], 0
	most := cap(p.outputs[0].Data) / width
	for first := 0; first < len(labels); first += most {
		part := labels[first:min(first+most, len(labels))]
		p.forward(images[first*width:][:len(part)*width])
		out := p.outputs[len(p.outputs)-1]
		for row, label := range part {
			scores := out.Data[row*out.Cols:][:out.Cols]
			if scores[label] == slices.Max(scores) {
				right++
			}
		}
	}
	return float64(right) / float64(len(labels))
}
