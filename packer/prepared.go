package packer

import (
	"fmt"
	"slices"
)

// Prepared is a list of keys for which [Packer.Prepare] has found out where each gradient
// goes. Batches of these keys then cost no look-up: [Packer.BeginPrepared]. It is
// immutable.
type Prepared struct {
	places
	keys   []uint64
	hotSet *HotSet
	dim    int
	layout Layout
}

// Prepare looks the keys of batches up that will come: see [Packer.BeginPrepared].
// Keys are kept, and must not be changed any more. Beside them the result takes some 6
// bytes for each hot gradient in dense frames, 136 for each stripe in lane-aligned
// ones, and 4 for each cold row.
//
// The error is [ErrShape] if there would be more than 2^32-1 gradients. Unlike the
// other methods, Prepare may be called by any goroutine at any time.
func (p *Packer) Prepare(keys []uint64) (*Prepared, error) {
	if err := p.checkShape(uint64(len(keys)), uint64(len(keys))*uint64(p.dim)); err != nil {
		return nil, err
	}
	var s scratch
	p.place(&s, keys, 0)
	where := p.placed(&s)
	// The scratch memory has room for more.
	where.masks, where.at = slices.Clone(where.masks), slices.Clone(where.at)
	where.slots, where.cold = slices.Clone(where.slots), slices.Clone(where.cold)
	return &Prepared{places: where, keys: keys, hotSet: p.hotSet, dim: p.dim, layout: p.layout}, nil
}

// BeginPrepared is [Packer.Begin] of the keys of prepared batches, one after the other,
// and makes the same frames. It returns the same errors, and [ErrConfig] if one of them was
// prepared for another hot set, dimension or layout: prepare its keys again.
func (p *Packer) BeginPrepared(grads []float32, prepared ...*Prepared) error {
	p.batch = batch{}
	for _, b := range prepared {
		if b.hotSet != p.hotSet || b.dim != p.dim || b.layout != p.layout {
			return fmt.Errorf("%w: a batch that was prepared for another hot set, dimension or layout; prepare it again", ErrConfig)
		}
	}
	if len(prepared) == 1 {
		b := prepared[0]
		if err := p.check(b.keys, grads); err != nil {
			return err
		}
		return p.start(b.places, b.keys, grads)
	}
	p.merged = p.merged[:0]
	for _, b := range prepared {
		p.merged = append(p.merged, b.keys...)
	}
	if err := p.check(p.merged, grads); err != nil {
		return err
	}
	p.scratch.reset()
	first := 0
	for _, b := range prepared {
		p.merge(&p.scratch, &b.places, first)
		first += len(b.keys)
	}
	return p.start(p.placed(&p.scratch), p.merged, grads)
}
