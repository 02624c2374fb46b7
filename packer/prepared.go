// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"fmt"
	"slices"
	"sync/atomic"
)

// Prepared is a list of keys whose places [Packer.Prepare] has looked up, so that batches of these
// keys need no look-up: [Packer.BeginPrepared]. When [Packer.Divide] has changed the places, the
// next batch looks the keys up again. Except for that and for the row numbers it is immutable.
type Prepared struct {
	keys   []uint64
	hotSet *HotSet
	dim    int
	layout Layout
	split  Split
	placed atomic.Pointer[placedKeys]
}

// placedKeys are keys with their places.
type placedKeys struct {
	slotList
	rows *ColdRows
}

// ColdRows are the cold rows of a prepared batch, with their numbers if these are known. Where the
// rows are cold changes with their places: then the batch has other ColdRows.
type ColdRows struct {
	// Keys are those of the rows in sending order, Ends the end of each server's among them, or nil
	// for one server. Both must not be changed.
	Keys    []uint64
	Ends    []int
	numbers atomic.Pointer[RowNumbers]
}

// RowNumbers are the parameter servers' numbers of the cold rows of a batch. They are
// immutable.
type RowNumbers struct {
	// Numberings holds each server's numbering. The values of servers without rows in the batch
	// are meaningless.
	Numberings []uint32
	// Numbers has a number for each of [ColdRows.Keys].
	Numbers []uint32
}

// ColdRows returns the cold rows of the batch where it is placed now.
func (b *Prepared) ColdRows() *ColdRows { return b.placed.Load().rows }

// Numbers returns the row numbers of [ColdRows.SetNumbers], or nil.
func (r *ColdRows) Numbers() *RowNumbers { return r.numbers.Load() }

// SetNumbers makes batches that begin from now on send cold rows by number, or by key if numbers is
// nil.
func (r *ColdRows) SetNumbers(numbers *RowNumbers) { r.numbers.Store(numbers) }

// ForgetNumbers makes batches send cold rows by key, unless other numbers have been set meanwhile.
func (r *ColdRows) ForgetNumbers(numbers *RowNumbers) { r.numbers.CompareAndSwap(numbers, nil) }

// Prepare looks up the keys of future batches: see [Packer.BeginPrepared]. It keeps keys,
// which must not be changed. In addition the result takes about 6 bytes for each hot
// gradient in dense frames, 136 for each stripe in lane-aligned ones, and 12 for each cold
// row.
//
// The error is [ErrShape] for more than 2^32-1 gradients. Unlike the other methods,
// Prepare is safe for concurrent use.
func (p *Packer) Prepare(keys []uint64) (*Prepared, error) {
	if err := p.checkShape(uint64(len(keys)), uint64(len(keys))*uint64(p.dim)); err != nil {
		return nil, err
	}
	b := &Prepared{keys: keys, hotSet: p.hotSet, dim: p.dim, layout: p.layout, split: p.split}
	b.placed.Store(p.lookUp(keys))
	return b, nil
}

// lookUp returns keys with their places. It is safe for concurrent use.
func (p *Packer) lookUp(keys []uint64) *placedKeys {
	var s scratch
	p.resetScratch(&s)
	p.placeKeys(&s, keys, 0, nil)
	p.groupCold(&s, keys)
	where := p.slotListOf(&s)
	// The scratch memory may be larger.
	where.masks, where.at = slices.Clone(where.masks), slices.Clone(where.at)
	where.slots, where.cold = slices.Clone(where.slots), slices.Clone(where.cold)
	rows := &ColdRows{Keys: make([]uint64, len(where.cold)), Ends: where.ends}
	for i, at := range where.cold {
		rows.Keys[i] = keys[at]
	}
	return &placedKeys{where, rows}
}

// BeginPrepared is [Packer.Begin] of the concatenated keys of prepared batches, with the same
// frames, except that stripes of several pages may be in a different order, and that cold rows are
// sent by number if all of the batches have numbers of the same numbering. It returns the same
// errors, and [ErrConfig] if a batch was prepared for a different hot set, dimension, layout or
// number of servers: prepare its keys again. A batch of which Config.Numbers excludes gradients has
// its keys looked up, and all cold rows sent by key.
func (p *Packer) BeginPrepared(grads []float32, prepared ...*Prepared) error {
	p.batch = batch{}
	for _, b := range prepared {
		if err := p.placePrepared(b); err != nil {
			return err
		}
	}
	if len(prepared) == 1 {
		b := prepared[0]
		if err := p.checkBatch(b.keys, grads); err != nil {
			return err
		}
		if p.siftable(grads) != nil {
			return p.Begin(b.keys, grads)
		}
		placed := b.placed.Load()
		return p.startAt(placed.rows.Numbers(), placed.slotList, b.keys, grads)
	}
	p.merged = p.merged[:0]
	for _, b := range prepared {
		p.merged = append(p.merged, b.keys...)
	}
	if err := p.checkBatch(p.merged, grads); err != nil {
		return err
	}
	// Cold rows of the hot set come first.
	if p.siftable(grads) != nil || p.current.Load().hasColdRows() && p.coder != nil {
		return p.Begin(p.merged, grads)
	}
	p.resetScratch(&p.scratch)
	first := 0
	for _, b := range prepared {
		p.mergeHot(&p.scratch, &b.placed.Load().slotList, first)
		first += len(b.keys)
	}
	p.mergeCold(&p.scratch, prepared)
	return p.startAt(p.mergeNumbers(prepared), p.slotListOf(&p.scratch), p.merged, grads)
}

// placePrepared looks the keys of a batch up again if it was placed for another division of the hot
// set.
func (p *Packer) placePrepared(b *Prepared) error {
	if b.hotSet != p.hotSet || b.dim != p.dim || b.layout != p.layout || b.split != p.split {
		return fmt.Errorf("%w: the batch was prepared for a different hot set, dimension, layout or number of servers; prepare it again", ErrConfig)
	}
	if before := b.placed.Load(); before.places != p.current.Load() {
		now := p.lookUp(b.keys)
		if slices.Equal(now.cold, before.cold) { // which have their numbers
			now.rows = before.rows
		}
		b.placed.Store(now)
	}
	return nil
}

// startAt is startBatch with row numbers for the cold rows, or keys if rows is nil.
func (p *Packer) startAt(rows *RowNumbers, where slotList, keys []uint64, grads []float32) error {
	if err := p.startBatch(where, keys, grads); err != nil {
		return err
	}
	p.rows = rows
	return nil
}

// mergeNumbers returns the row numbers of several batches, or nil unless all have numbers of
// the same numbering.
func (p *Packer) mergeNumbers(prepared []*Prepared) *RowNumbers {
	m := &p.mergedRows
	m.Numberings, m.Numbers = m.Numberings[:0], m.Numbers[:0]
	for server := range int(p.split) {
		m.Numberings = append(m.Numberings, 0)
		begin := len(m.Numbers)
		for _, b := range prepared {
			placed := b.placed.Load()
			n := len(placed.positionsOf(server))
			if n == 0 {
				continue
			}
			rows := placed.rows.Numbers()
			if rows == nil || len(m.Numbers) > begin && rows.Numberings[server] != m.Numberings[server] {
				return nil
			}
			m.Numberings[server], m.Numbers = rows.Numberings[server],
				append(m.Numbers, rows.Numbers[placed.endOf(server)-n:placed.endOf(server)]...)
		}
	}
	return m
}
