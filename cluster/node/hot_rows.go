// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"slices"
	"sync/atomic"

	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/train"
)

// hotRows makes an asynchronous worker pull and push a hot row once for several mini-batches, most
// of which have the same ones. It keeps their weights, and adds up their gradients, for the
// configured number of mini-batches; but weights only until a report is acknowledged, and gradients
// only until Flush, which precedes each report. Kept weights lack no more of the worker's own
// mini-batches than newly pulled ones may lack: until a report is acknowledged, no more of them are
// known to be part of any weights. So [train.Config.Staleness] bounds both.
type hotRows struct {
	earlyClient
	set   *packer.HotSet
	every int // mini-batches; useful if more than one

	periods atomic.Uint64 // of kept weights, from 1
	since   []uint64      // by row rank: the period in which the row was pulled
	weights []float32     // by scalar rank

	batches int       // whose gradients were added and not pushed
	order   []uint32  // all row ranks, in ascending order of their keys
	waits   []bool    // by row rank: the row has gradients that were not pushed
	grads   []float32 // by scalar rank: their sums
	added   uint64    // gradients that were added to earlier ones before they were pushed

	pulls [2]*hotPull // the last one, and the one before
	keys  []uint64    // of one push: the rows for the server
	rows  []float32   // and their gradients
}

// earlyClient is the client that hotRows wraps.
type earlyClient interface {
	train.Client
	train.EarlyPuller
}

// hotPull is a pull of a mini-batch's rows.
type hotPull struct {
	of    *hotRows
	batch []uint64 // keys
	ranks []uint32 // of the keys

	period    uint64
	dst       []float32
	keys      []uint64 // that are not kept
	positions []int    // of them in the batch
	rows      []float32
	pulling   train.Pulling
}

func newHotRows(c earlyClient, set *packer.HotSet, every int) *hotRows {
	h := &hotRows{
		earlyClient: c, set: set, every: every,
		since: make([]uint64, set.Len()), weights: make([]float32, set.Slots()),
		order: make([]uint32, set.Len()), waits: make([]bool, set.Len()), grads: make([]float32, set.Slots()),
	}
	for i := range h.order {
		h.order[i] = uint32(i)
	}
	slices.SortFunc(h.order, func(a, b uint32) int { return cmp.Compare(set.Key(a), set.Key(b)) })
	h.pulls = [2]*hotPull{{of: h}, {of: h}}
	h.periods.Store(1)
	return h
}

// expireWeights makes the rows expire, so that they are pulled again. It may be called during a
// pull.
func (h *hotRows) expireWeights() { h.periods.Add(1) }

// findPull returns the ranks of a mini-batch's keys. A push has the keys of the last pull or of the
// one before.
func (h *hotRows) findPull(keys []uint64) *hotPull {
	for _, p := range h.pulls {
		if slices.Equal(p.batch, keys) {
			return p
		}
	}
	h.pulls[0], h.pulls[1] = h.pulls[1], h.pulls[0]
	p := h.pulls[0]
	p.batch = append(p.batch[:0], keys...)
	p.ranks = slices.Grow(p.ranks[:0], len(keys))[:len(keys)]
	h.set.Ranks(p.ranks, keys)
	return p
}

// Pull implements [train.Puller].
func (h *hotRows) Pull(ctx context.Context, keys []uint64, dst []float32) error {
	p, err := h.BeginPull(ctx, keys, dst)
	if err != nil {
		return err
	}
	return p.Wait(ctx)
}

// BeginPull implements [train.EarlyPuller], for one pull at a time.
func (h *hotRows) BeginPull(ctx context.Context, keys []uint64, dst []float32) (_ train.Pulling, err error) {
	d, p := h.set.Dim(), h.findPull(keys)
	// Some of the pulled rows may lack updates that a report completes during the pull.
	p.period, p.dst = h.periods.Load(), dst
	p.keys, p.positions = p.keys[:0], p.positions[:0]
	for i, rank := range p.ranks {
		if rank != packer.Cold && h.since[rank] == p.period {
			copy(dst[i*d:][:d], h.weights[int(rank)*d:])
			continue
		}
		p.keys, p.positions = append(p.keys, keys[i]), append(p.positions, i)
	}
	n := len(p.keys) * d
	p.rows = slices.Grow(p.rows[:0], n)[:n]
	p.pulling, err = h.earlyClient.BeginPull(ctx, p.keys, p.rows)
	return p, err
}

// Wait implements [train.Pulling].
func (p *hotPull) Wait(ctx context.Context) error {
	if err := p.pulling.Wait(ctx); err != nil {
		return err
	}
	h, d := p.of, p.of.set.Dim()
	for i, at := range p.positions {
		row := p.rows[i*d:][:d]
		copy(p.dst[at*d:], row)
		if rank := p.ranks[at]; rank != packer.Cold {
			copy(h.weights[int(rank)*d:], row)
			h.since[rank] = p.period
		}
	}
	return nil
}

// Push implements [train.Client].
func (h *hotRows) Push(ctx context.Context, keys []uint64, grads []float32) error {
	d := h.set.Dim()
	h.keys, h.rows = h.keys[:0], h.rows[:0]
	for i, rank := range h.findPull(keys).ranks {
		row := grads[i*d:][:d]
		if rank == packer.Cold {
			h.keys, h.rows = append(h.keys, keys[i]), append(h.rows, row...)
			continue
		}
		sums := h.grads[int(rank)*d:][:d]
		for j, g := range row {
			sums[j] += g
		}
		if h.waits[rank] {
			h.added += uint64(d)
		}
		h.waits[rank] = true
	}
	if err := h.earlyClient.Push(ctx, h.keys, h.rows); err != nil {
		return err
	}
	if h.batches++; h.batches < h.every {
		return nil
	}
	h.periods.Add(1)
	return h.pushSums(ctx)
}

// Flush implements [train.Client].
func (h *hotRows) Flush(ctx context.Context) error {
	if h.batches > 0 {
		if err := h.pushSums(ctx); err != nil {
			return err
		}
	}
	return h.earlyClient.Flush(ctx)
}

// pushSums pushes the added gradients.
func (h *hotRows) pushSums(ctx context.Context) error {
	d := h.set.Dim()
	h.keys, h.rows = h.keys[:0], h.rows[:0]
	for _, rank := range h.order {
		if h.waits[rank] {
			sums := h.grads[int(rank)*d:][:d]
			h.keys, h.rows = append(h.keys, h.set.Key(rank)), append(h.rows, sums...)
			clear(sums)
			h.waits[rank] = false
		}
	}
	h.batches = 0
	return h.earlyClient.Push(ctx, h.keys, h.rows)
}
