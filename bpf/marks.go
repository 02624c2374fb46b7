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

// marksOf returns the marks of the senders of a place's job at the last swap, while programs process
// frames. The caller holds harvest, so that there is no further swap, and programs have stopped using
// the bank that was current before it.
func (a *Aggregator) marksOf(p *place, swaps uint32) []aggregator.Mark {
	p.mu.Lock() // a sender's entry is not given to another one meanwhile
	defer p.mu.Unlock()
	marks := make([]aggregator.Mark, 0, len(p.job.senders))
	for _, m := range p.job.senders {
		seen := a.senders.entries[m.index].frozenFilter(swaps)
		marks = append(marks, aggregator.NewMark(m.SenderConfig, func(i int) (uint32, bool) {
			return uint32(seen[i]), seen[i]&refusedBit == 0
		}))
	}
	aggregator.SortMarks(marks)
	return marks
}

// frozenFilter returns the filter of a sender that is as it was at the last swap. The program no
// longer writes to it, whether it turns the filters before, during or after this call.
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
