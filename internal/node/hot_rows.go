// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"slices"
	"sync/atomic"

	"github.com/libra-ina/libra/internal/workload"
	"github.com/libra-ina/libra/packer"
)

// hotRows has an asynchronous worker pull and push a hot row once for several mini-batches, most of which have the same ones. It keeps
// their weights, and adds up their gradients, for as many mini-batches as it is told; but weights until a report comes back at most, and
// gradients until Flush, with which a report begins. Weights that it keeps lack no more of the worker's own mini-batches than those that
// it would pull may lack: until a report comes back, no more of them are known to be part of any weights. So
// [workload.Config.Staleness] bounds both.
type hotRows struct {
	workload.Client
	set   *packer.HotSet
	every int // mini-batches, of which more than one are worth it

	periods atomic.Uint64 // of kept weights, from 1
	since   []uint64      // by row rank: the period in which the row was pulled
	weights []float32     // by scalar rank

	batches int       // whose gradients were added and not pushed
	order   []uint32  // all row ranks, in ascending order of their keys
	waits   []bool    // by row rank: the row has gradients that were not pushed
	grads   []float32 // by scalar rank: their sums
	added   uint64    // gradients that were added to others before they were pushed

	// Of the last mini-batch.
	batch []uint64 // keys
	ranks []uint32 // of the keys

	// Of one call: the rows of which the server is told, and where they are in the call.
	keys      []uint64
	positions []int
	rows      []float32
}

func newHotRows(c workload.Client, set *packer.HotSet, every int) *hotRows {
	h := &hotRows{
		Client: c, set: set, every: every,
		since: make([]uint64, set.Len()), weights: make([]float32, set.Slots()),
		order: make([]uint32, set.Len()), waits: make([]bool, set.Len()), grads: make([]float32, set.Slots()),
	}
	for i := range h.order {
		h.order[i] = uint32(i)
	}
	slices.SortFunc(h.order, func(a, b uint32) int { return cmp.Compare(set.Key(a), set.Key(b)) })
	h.periods.Store(1)
	return h
}

// reported has the rows pulled anew. It may be called beside a pull.
func (h *hotRows) reported() { h.periods.Add(1) }

// find makes ranks those of keys. A push has the keys of the pull before it.
func (h *hotRows) find(keys []uint64) {
	if slices.Equal(h.batch, keys) {
		return
	}
	h.batch = append(h.batch[:0], keys...)
	h.ranks = slices.Grow(h.ranks[:0], len(keys))[:len(keys)]
	h.set.Ranks(h.ranks, keys)
}

// Pull implements [workload.Puller].
func (h *hotRows) Pull(ctx context.Context, keys []uint64, dst []float32) error {
	// What a report makes part of the weights during the pull may be missing in some of its rows.
	now, d := h.periods.Load(), h.set.Dim()
	h.find(keys)
	h.keys, h.positions = h.keys[:0], h.positions[:0]
	for i, rank := range h.ranks {
		if rank != packer.Cold && h.since[rank] == now {
			copy(dst[i*d:][:d], h.weights[int(rank)*d:])
			continue
		}
		h.keys, h.positions = append(h.keys, keys[i]), append(h.positions, i)
	}
	n := len(h.keys) * d
	h.rows = slices.Grow(h.rows[:0], n)[:n]
	if err := h.Client.Pull(ctx, h.keys, h.rows); err != nil {
		return err
	}
	for i, at := range h.positions {
		row := h.rows[i*d:][:d]
		copy(dst[at*d:], row)
		if rank := h.ranks[at]; rank != packer.Cold {
			copy(h.weights[int(rank)*d:], row)
			h.since[rank] = now
		}
	}
	return nil
}

// Push implements [workload.Client].
func (h *hotRows) Push(ctx context.Context, keys []uint64, grads []float32) error {
	d := h.set.Dim()
	h.find(keys)
	h.keys, h.rows = h.keys[:0], h.rows[:0]
	for i, rank := range h.ranks {
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
	if err := h.Client.Push(ctx, h.keys, h.rows); err != nil {
		return err
	}
	if h.batches++; h.batches < h.every {
		return nil
	}
	h.periods.Add(1)
	return h.pushSums(ctx)
}

// Flush implements [workload.Client].
func (h *hotRows) Flush(ctx context.Context) error {
	if h.batches > 0 {
		if err := h.pushSums(ctx); err != nil {
			return err
		}
	}
	return h.Client.Flush(ctx)
}

// pushSums pushes the gradients that were added up.
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
	return h.Client.Push(ctx, h.keys, h.rows)
}
