// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"sync/atomic"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/wire"
)

// refusedBit is the bit of a filter's entry whose frame was refused, see filter.h.
const refusedBit = 1 << 63

// takeMarks ends a swap: it returns the marks of the job at that, while programs process frames.
// The caller holds harvest, so that there is no further swap, and programs have stopped using the
// bank that was current before it.
func (a *Aggregator) takeMarks(p *place, j *job) []aggregator.Mark {
	p.mu.Lock() // a sender's entry is not given to another one meanwhile
	defer p.mu.Unlock()
	j.swapping = false
	marks, swaps := j.departed[0], a.table.swapsOf(j.ID)
	for id, m := range j.senders {
		marks[id] = a.markOf(m, swaps)
	}
	sorted := aggregator.SortedMarks(marks)
	clear(marks)
	j.departed[0], j.departed[1] = j.departed[1], marks
	return sorted
}

// depart removes a sender of which the program takes no frames any more from the job, and keeps its
// mark.
func (a *Aggregator) depart(p *place, j *job, m member) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(j.senders, m.ID)
	swaps := a.table.swapsOf(j.ID)
	last := a.markOf(m, swaps+1)
	j.departed[0][m.ID] = last
	if j.swapping { // it may have frames in the bank of the swap that has begun, and in the other one
		j.departed[0][m.ID], j.departed[1][m.ID] = a.markOf(m, swaps), last
	}
}

// markOf returns the mark of a sender at a swap, by the number of swaps until then: the last one,
// or the next one as if that was now.
func (a *Aggregator) markOf(m member, swaps uint32) aggregator.Mark {
	seen := a.senders.entries[m.index].frozenFilter(swaps)
	return aggregator.NewMark(m.SenderConfig, func(i int) (uint32, bool) {
		return uint32(seen[i]), seen[i]&refusedBit == 0
	})
}

// frozenFilter returns the filter of a sender that is as it was at a swap. The program no longer
// writes to it if that is the last one, whether it turns the filters before, during or after this
// call.
func (s *aggregateSender) frozenFilter(swaps uint32) *[len(aggregateSender{}.Seen[0])]uint64 {
	turn := atomic.LoadUint32(&s.Turn)
	current := turn & 1
	if turn>>1 == swaps { // a frame came after the swap
		current ^= 1
	}
	return &s.Seen[current]
}

// HasMarks implements [aggregator.Plane].
func (a *Aggregator) HasMarks() bool { return true }

// Pages implements [aggregator.Plane].
func (a *Aggregator) Pages() int { return wire.MaxPages }
