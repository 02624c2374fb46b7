package packer

import (
	"math"

	"github.com/libra-ina/libra/wire"
)

// pair is a hot gradient that waits to be written into a frame.
type pair struct {
	grad uint32 // position in the batch
	slot uint32 // the uint16 of the frame: slot (lane-aligned) or rank (dense)
}

// lane lists the pairs of one register, in batch order. Only the first n
// entries are of the current batch; the slice keeps its length, so that an
// append is one comparison.
type lane struct {
	pairs []pair
	n     int
}

func (l *lane) add(p pair) {
	if l.n == len(l.pairs) {
		l.pairs = append(l.pairs, make([]pair, max(64, l.n))...)
	}
	l.pairs[l.n] = p
	l.n++
}

// scratch holds a batch taken apart: where each gradient goes, but no
// gradient. It grows to the largest batch seen and is then reused.
type scratch struct {
	lanes [wire.Lanes]lane // LaneAligned
	dense lane             // Dense
	cold  []uint32         // rows
}

// exponent bits of a float32, all ones in NaN and infinities.
const exponent = 0x7f800000

// split checks that a batch is finite and sorts its gradients into scratch.
func (p *Packer) split(keys []uint64, grads []float32) error {
	if at := notFinite(grads); at >= 0 {
		return &NotFiniteError{Index: at, Key: keys[at/p.dim], Value: grads[at]}
	}
	for j := range p.lanes {
		p.lanes[j].n = 0
	}
	p.dense.n = 0
	p.cold = p.cold[:0]
	if cap(p.cold) < len(keys) {
		p.cold = make([]uint32, 0, len(keys))
	}
	switch {
	case p.hot == nil:
		for i := range keys {
			p.cold = append(p.cold, uint32(i))
		}
	case p.layout == Dense:
		p.splitDense(keys)
	case p.dim == 1:
		p.splitPairs(keys)
	default:
		p.splitRows(keys)
	}
	return nil
}

// notFinite returns the position of the first NaN or infinity, or -1.
func notFinite(grads []float32) int {
	for i, g := range grads {
		if math.Float32bits(g)&exponent == exponent {
			return i
		}
	}
	return -1
}

func (p *Packer) splitDense(keys []uint64) {
	for i, key := range keys {
		rank, ok := p.hot.index.find(key)
		if !ok {
			p.cold = append(p.cold, uint32(i))
			continue
		}
		for j := range p.dim {
			p.dense.add(pair{grad: uint32(i*p.dim + j), slot: rank*uint32(p.dim) + uint32(j)})
		}
	}
}

// splitPairs is splitRows for rows of one gradient.
func (p *Packer) splitPairs(keys []uint64) {
	for i, key := range keys {
		rank, ok := p.hot.index.find(key)
		if !ok {
			p.cold = append(p.cold, uint32(i))
			continue
		}
		p.lanes[rank%wire.Lanes].add(pair{grad: uint32(i), slot: rank / wire.Lanes})
	}
}

func (p *Packer) splitRows(keys []uint64) {
	for i, key := range keys {
		row, ok := p.hot.index.find(key)
		if !ok {
			p.cold = append(p.cold, uint32(i))
			continue
		}
		rank := row * uint32(p.dim)
		register, slot := rank%wire.Lanes, rank/wire.Lanes
		for j := range p.dim {
			p.lanes[register].add(pair{grad: uint32(i*p.dim + j), slot: slot})
			if register++; register == wire.Lanes {
				register, slot = 0, slot+1
			}
		}
	}
}
