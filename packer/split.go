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
	if l.n >= len(l.pairs) {
		l.pairs = append(l.pairs, make([]pair, max(64, l.n))...)
	}
	l.pairs[l.n] = p
	l.n++
}

// scratch holds a batch taken apart: where each gradient goes, but no
// gradient. It grows to the largest batch seen and is then reused.
type scratch struct {
	found []uint32 // for each key its row rank + 1, or 0
	hot   []uint32 // positions of hot keys in the batch
	cold  []uint32 // positions of cold keys
	nCold int
	lanes [wire.Lanes]lane // LaneAligned
	dense lane             // Dense
}

// split checks that a batch is finite and sorts its gradients into scratch.
func (p *Packer) split(keys []uint64, grads []float32) error {
	if at := notFinite(grads); at >= 0 {
		return &NotFiniteError{Index: at, Key: keys[at/p.dim], Value: grads[at]}
	}
	for j := range p.lanes {
		p.lanes[j].n = 0
	}
	p.dense.n = 0
	if len(p.found) < len(keys) {
		p.found = make([]uint32, len(keys))
		p.hot = make([]uint32, len(keys))
		p.cold = make([]uint32, len(keys))
	}
	found := p.found[:len(keys)]
	if p.hotSet != nil {
		p.hotSet.index.findAll(found, keys)
	} // else every rank + 1 stays 0
	if p.layout == Dense && p.dim == 1 {
		p.splitDensePairs(found)
		return nil
	}
	hot, cold := separate(found, p.hot, p.cold)
	p.nCold = len(cold)
	switch {
	case p.layout == Dense:
		p.splitDense(hot)
	case p.dim == 1:
		p.splitPairs(hot)
	default:
		p.splitRows(hot)
	}
	return nil
}

// separate lists the positions of non-zero entries in hot and of zero entries
// in cold, both as long as found. It writes every position to both lists and
// advances one of them, because a branch would be mispredicted at every other
// cold key.
func separate(found, hot, cold []uint32) (h, c []uint32) {
	nHot := 0
	for i, f := range found {
		hot[nHot] = uint32(i)
		cold[i-nHot] = uint32(i)
		if f != 0 {
			nHot++
		}
	}
	return hot[:nHot], cold[:len(found)-nHot]
}

// notFinite returns the position of the first NaN or infinity, or -1.
func notFinite(grads []float32) int {
	const (
		magnitude = 0x7fffffff
		carry     = 0x00800000 // lifts an exponent of all ones into bit 31
	)
	var seen uint32
	for _, g := range grads {
		seen |= math.Float32bits(g)&magnitude + carry
	}
	if seen>>31 == 0 {
		return -1
	}
	for i, g := range grads {
		if (math.Float32bits(g)&magnitude+carry)>>31 != 0 {
			return i
		}
	}
	return -1
}

func (p *Packer) splitDense(hot []uint32) {
	dim := uint32(p.dim)
	for _, i := range hot {
		rank := (p.found[i] - 1) * dim
		for j := range dim {
			p.dense.add(pair{grad: i*dim + j, slot: rank + j})
		}
	}
}

// splitDensePairs is separate and splitDense in one pass, for rows of one
// gradient.
func (p *Packer) splitDensePairs(found []uint32) {
	if len(p.dense.pairs) < len(found) {
		p.dense.pairs = make([]pair, len(found))
	}
	pairs, cold := p.dense.pairs[:len(found)], p.cold[:len(found)]
	n := 0
	for i, f := range found {
		pairs[n] = pair{grad: uint32(i), slot: f - 1}
		cold[i-n] = uint32(i)
		if f != 0 {
			n++
		}
	}
	p.dense.n, p.nCold = n, len(found)-n
}

// splitPairs is splitRows for rows of one gradient.
func (p *Packer) splitPairs(hot []uint32) {
	for _, i := range hot {
		rank := p.found[i] - 1
		p.lanes[rank%wire.Lanes].add(pair{grad: i, slot: rank / wire.Lanes})
	}
}

func (p *Packer) splitRows(hot []uint32) {
	dim := uint32(p.dim)
	for _, i := range hot {
		rank := (p.found[i] - 1) * dim
		register, slot := rank%wire.Lanes, rank/wire.Lanes
		for j := range dim {
			p.lanes[register].add(pair{grad: i*dim + j, slot: slot})
			if register++; register == wire.Lanes {
				register, slot = 0, slot+1
			}
		}
	}
}
