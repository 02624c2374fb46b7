// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/libra-ina/libra/packer/share"
)

// Prepared is a list of keys whose places [Packer.Prepare] has looked up, so that batches of
// these keys need no look-up: [Packer.BeginPrepared]. It is immutable except for the row
// numbers.
type Prepared struct {
	slotList
	keys   []uint64
	hotSet *HotSet
	shares *share.Division
	dim    int
	layout Layout
	split  Split
	rows   atomic.Pointer[RowNumbers]
}

// RowNumbers are the parameter servers' numbers of the cold rows of a batch. They are
// immutable.
type RowNumbers struct {
	// Numberings holds each server's numbering. The values of servers without rows in the batch
	// are meaningless.
	Numberings []uint32
	// Numbers has a number for each of [Prepared.ColdKeys].
	Numbers []uint32
}

// ColdKeys returns the keys of the cold rows in sending order.
func (b *Prepared) ColdKeys() []uint64 {
	keys := make([]uint64, len(b.cold))
	for i, at := range b.cold {
		keys[i] = b.keys[at]
	}
	return keys
}

// ColdEnds returns the end of each server's rows among the cold rows, or nil for one server.
func (b *Prepared) ColdEnds() []int { return b.ends }

// ColdRows returns the number of cold rows.
func (b *Prepared) ColdRows() int { return len(b.cold) }

// RowNumbers returns the row numbers of [Prepared.SetRowNumbers], or nil.
func (b *Prepared) RowNumbers() *RowNumbers { return b.rows.Load() }

// SetRowNumbers makes batches that begin from now on send cold rows by number, or by key if
// rows is nil.
func (b *Prepared) SetRowNumbers(rows *RowNumbers) { b.rows.Store(rows) }

// ForgetRowNumbers makes batches send cold rows by key, unless other numbers have been set
// meanwhile.
func (b *Prepared) ForgetRowNumbers(rows *RowNumbers) { b.rows.CompareAndSwap(rows, nil) }

// Prepare looks up the keys of future batches: see [Packer.BeginPrepared]. It keeps keys,
// which must not be changed. In addition the result takes about 6 bytes for each hot
// gradient in dense frames, 136 for each stripe in lane-aligned ones, and 4 for each cold
// row.
//
// The error is [ErrShape] for more than 2^32-1 gradients. Unlike the other methods,
// Prepare is safe for concurrent use.
func (p *Packer) Prepare(keys []uint64) (*Prepared, error) {
	if err := p.checkShape(uint64(len(keys)), uint64(len(keys))*uint64(p.dim)); err != nil {
		return nil, err
	}
	var s scratch
	p.resetScratch(&s)
	p.placeKeys(&s, keys, 0, nil)
	p.groupCold(&s, keys)
	where := p.slotListOf(&s)
	// The scratch memory may be larger.
	where.masks, where.at = slices.Clone(where.masks), slices.Clone(where.at)
	where.slots, where.cold = slices.Clone(where.slots), slices.Clone(where.cold)
	return &Prepared{slotList: where, keys: keys, hotSet: p.hotSet, shares: p.shares, dim: p.dim, layout: p.layout,
		split: p.split}, nil
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
		if err := p.checkPrepared(b); err != nil {
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
		return p.startAt(b.rows.Load(), b.slotList, b.keys, grads)
	}
	p.merged = p.merged[:0]
	for _, b := range prepared {
		p.merged = append(p.merged, b.keys...)
	}
	if err := p.checkBatch(p.merged, grads); err != nil {
		return err
	}
	if p.siftable(grads) != nil || p.chills() && p.coder != nil { // cold rows of the hot set come first
		return p.Begin(p.merged, grads)
	}
	p.resetScratch(&p.scratch)
	first := 0
	for _, b := range prepared {
		p.mergeHot(&p.scratch, &b.slotList, first)
		first += len(b.keys)
	}
	p.mergeCold(&p.scratch, prepared)
	return p.startAt(p.mergeNumbers(prepared), p.slotListOf(&p.scratch), p.merged, grads)
}

func (p *Packer) checkPrepared(b *Prepared) error {
	if b.hotSet != p.hotSet || b.shares != p.shares || b.dim != p.dim || b.layout != p.layout || b.split != p.split {
		return fmt.Errorf("%w: the batch was prepared for a different hot set, division into shares, dimension, layout or number of servers; prepare it again", ErrConfig)
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
			n := len(b.positionsOf(server))
			if n == 0 {
				continue
			}
			rows := b.rows.Load()
			if rows == nil || len(m.Numbers) > begin && rows.Numberings[server] != m.Numberings[server] {
				return nil
			}
			m.Numberings[server], m.Numbers = rows.Numberings[server],
				append(m.Numbers, rows.Numbers[b.endOf(server)-n:b.endOf(server)]...)
		}
	}
	return m
}
