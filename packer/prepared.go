// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"fmt"
	"slices"
	"sync/atomic"
)

// Prepared is a list of keys for which [Packer.Prepare] has found out where each gradient
// goes. Batches of these keys then cost no look-up: [Packer.BeginPrepared]. It is
// immutable, but for the row numbers.
type Prepared struct {
	places
	keys   []uint64
	hotSet *HotSet
	dim    int
	layout Layout
	split  Split
	rows   atomic.Pointer[RowNumbers]
}

// RowNumbers are the numbers under which parameter servers keep the cold rows of a
// batch. They are immutable.
type RowNumbers struct {
	// Numberings tell each server's numbers from those of others. Those of servers without
	// rows in the batch mean nothing.
	Numberings []uint32
	// Numbers has one for each of [Prepared.ColdKeys].
	Numbers []uint32
}

// ColdKeys returns the keys of the cold rows, in the order in which they are sent.
func (b *Prepared) ColdKeys() []uint64 {
	keys := make([]uint64, len(b.cold))
	for i, at := range b.cold {
		keys[i] = b.keys[at]
	}
	return keys
}

// ColdEnds returns where the rows of each server end among the cold rows, or nil if there is one server.
func (b *Prepared) ColdEnds() []int { return b.ends }

// ColdRows returns the number of cold rows.
func (b *Prepared) ColdRows() int { return len(b.cold) }

// RowNumbers returns what [Prepared.SetRowNumbers] has set, or nil.
func (b *Prepared) RowNumbers() *RowNumbers { return b.rows.Load() }

// SetRowNumbers has batches that begin from now on name their cold rows by numbers, or by
// keys again if it is nil.
func (b *Prepared) SetRowNumbers(rows *RowNumbers) { b.rows.Store(rows) }

// ForgetRowNumbers names cold rows by keys again, unless others than these numbers have
// been set meanwhile.
func (b *Prepared) ForgetRowNumbers(rows *RowNumbers) { b.rows.CompareAndSwap(rows, nil) }

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
	p.deal(&s, keys)
	where := p.placed(&s)
	// The scratch memory has room for more.
	where.masks, where.at = slices.Clone(where.masks), slices.Clone(where.at)
	where.slots, where.cold = slices.Clone(where.slots), slices.Clone(where.cold)
	return &Prepared{places: where, keys: keys, hotSet: p.hotSet, dim: p.dim, layout: p.layout, split: p.split}, nil
}

// BeginPrepared is [Packer.Begin] of the keys of prepared batches, one after the other,
// and makes the same frames, but that cold rows are named by their numbers if all of the
// batches have some of the same numbering. It returns the same errors, and [ErrConfig] if one of them was
// prepared for another hot set, dimension, layout or number of servers: prepare its keys again.
func (p *Packer) BeginPrepared(grads []float32, prepared ...*Prepared) error {
	p.batch = batch{}
	for _, b := range prepared {
		if err := p.suits(b); err != nil {
			return err
		}
	}
	if len(prepared) == 1 {
		b := prepared[0]
		if err := p.check(b.keys, grads); err != nil {
			return err
		}
		return p.startAt(b.rows.Load(), b.places, b.keys, grads)
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
		p.mergeHot(&p.scratch, &b.places, first)
		first += len(b.keys)
	}
	p.mergeCold(&p.scratch, prepared)
	return p.startAt(p.mergeNumbers(prepared), p.placed(&p.scratch), p.merged, grads)
}

// suits returns an error if a batch was prepared for other frames.
func (p *Packer) suits(b *Prepared) error {
	if b.hotSet != p.hotSet || b.dim != p.dim || b.layout != p.layout || b.split != p.split {
		return fmt.Errorf("%w: a batch that was prepared for another hot set, dimension, layout or number of servers; prepare it again", ErrConfig)
	}
	return nil
}

// startAt is start of a batch whose cold rows have numbers, or none if rows is nil.
func (p *Packer) startAt(rows *RowNumbers, where places, keys []uint64, grads []float32) error {
	if err := p.start(where, keys, grads); err != nil {
		return err
	}
	p.rows = rows
	return nil
}

// mergeNumbers returns the numbers of the cold rows of several batches, or nil if they have
// not all got some of the same numbering.
func (p *Packer) mergeNumbers(prepared []*Prepared) *RowNumbers {
	m := &p.mergedRows
	m.Numberings, m.Numbers = m.Numberings[:0], m.Numbers[:0]
	for server := range int(p.split) {
		m.Numberings = append(m.Numberings, 0)
		begin := len(m.Numbers)
		for _, b := range prepared {
			n := len(b.of(server))
			if n == 0 {
				continue
			}
			rows := b.rows.Load()
			if rows == nil || len(m.Numbers) > begin && rows.Numberings[server] != m.Numberings[server] {
				return nil
			}
			m.Numberings[server], m.Numbers = rows.Numberings[server], append(m.Numbers, rows.Numbers[b.end(server)-n:b.end(server)]...)
		}
	}
	return m
}
