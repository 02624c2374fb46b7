// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/libra-ina/libra/internal/workload"
	"github.com/libra-ina/libra/packer"
)

// hotWeights keeps the weights of hot rows that an asynchronous worker has pulled until its next report comes back. Most
// mini-batches have the same hot rows, whose weights change with harvests only. Those that it keeps lack no more of
// the worker's own mini-batches than those that it would pull may lack: until a report comes back, no more of them are known to be
// part of any weights. So [workload.Config.Staleness] bounds both.
type hotWeights struct {
	workload.Client
	set *packer.HotSet

	reports atomic.Uint64 // one more than have come back
	since   []uint64      // by row rank: the value of reports when the row was pulled
	weights []float32     // by scalar rank

	// Of a pull: the keys of the rows that are not kept, their positions in it and their weights.
	keys      []uint64
	positions []int
	rows      []float32
}

func newHotWeights(c workload.Client, set *packer.HotSet) *hotWeights {
	h := &hotWeights{Client: c, set: set, since: make([]uint64, set.Len()), weights: make([]float32, set.Slots())}
	h.reports.Store(1)
	return h
}

// reported has the rows pulled anew. It may be called beside a pull.
func (h *hotWeights) reported() { h.reports.Add(1) }

// Pull implements [workload.Puller].
func (h *hotWeights) Pull(ctx context.Context, keys []uint64, dst []float32) error {
	// What a report makes part of the weights during the pull may be missing in some of its rows.
	now, d := h.reports.Load(), h.set.Dim()
	h.keys, h.positions = h.keys[:0], h.positions[:0]
	for i, key := range keys {
		if rank, hot := h.set.Rank(key); hot && h.since[rank] == now {
			copy(dst[i*d:][:d], h.weights[int(rank)*d:])
			continue
		}
		h.keys, h.positions = append(h.keys, key), append(h.positions, i)
	}
	n := len(h.keys) * d
	h.rows = slices.Grow(h.rows[:0], n)[:n]
	if err := h.Client.Pull(ctx, h.keys, h.rows); err != nil {
		return err
	}
	for i, at := range h.positions {
		row := h.rows[i*d:][:d]
		copy(dst[at*d:], row)
		if rank, hot := h.set.Rank(h.keys[i]); hot {
			copy(h.weights[int(rank)*d:], row)
			h.since[rank] = now
		}
	}
	return nil
}
