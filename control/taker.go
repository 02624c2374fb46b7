// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
)

// Taker takes the harvests of a job one by one, each when its owner asks for it: until then the
// sums stay in the aggregator's banks. The job's specification must have neither a harvest period
// nor a number of frames, which would make harvests that nobody has asked for.
type Taker struct {
	ctx       context.Context
	harvester *Harvester
	offered   chan *Harvest // by the harvester, which waits until it is applied
	applied   chan struct{}
	done      chan struct{} // closed when the harvester has ended, with the reason in why
	why       error

	mu      sync.Mutex // of Take
	taken   bool       // the newest harvest is not acknowledged
	partial bool       // sums has harvests that are acknowledged and not returned
	sums    []int64    // by rank
}

// NewTaker returns the taker of a job with a number of hot scalars. It ends with ctx, or when the
// aggregator refuses the harvests.
func NewTaker(ctx context.Context, job *Owned, slots int, log *slog.Logger) *Taker {
	t := &Taker{ctx: ctx, offered: make(chan *Harvest), applied: make(chan struct{}), done: make(chan struct{}),
		sums: make([]int64, slots)}
	t.harvester = NewHarvester(job, t.offer, log)
	go func() {
		t.why = job.Lost("harvest", t.harvester.Run(ctx))
		close(t.done)
	}()
	return t
}

// Done is closed when the taker has ended.
func (t *Taker) Done() <-chan struct{} { return t.done }

// offer passes a harvest to Take. It returns when the harvest may be acknowledged.
func (t *Taker) offer(h *Harvest) error {
	select {
	case t.offered <- h:
	case <-t.ctx.Done():
		return context.Cause(t.ctx)
	}
	select {
	case <-t.applied:
		return nil
	case <-t.ctx.Done():
		return context.Cause(t.ctx)
	}
}

// Take acknowledges the harvest that the call before has returned, so that the aggregator clears
// its bank, and returns the next one, which is frozen after this call began: the sums by rank, in
// units of the job, or zeros. They are valid until the next call.
func (t *Taker) Take(ctx context.Context) ([]int64, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.taken {
		t.taken = false
		if err := t.acknowledge(); err != nil {
			return nil, err
		}
	}
	request := t.harvester.Ask()
	if !t.partial {
		clear(t.sums)
	}
	for {
		select {
		case h := <-t.offered:
			if err := t.add(h); err != nil {
				return nil, err
			}
			if h.Request >= request {
				t.taken, t.partial = true, false
				return t.sums, nil
			}
			// It was sent again on a new connection, and may have been frozen before this call.
			t.partial = true
			if err := t.acknowledge(); err != nil {
				return nil, err
			}
		case <-t.done:
			return nil, t.why
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// acknowledge lets the harvester acknowledge the harvest that it has offered.
func (t *Taker) acknowledge() error {
	select {
	case t.applied <- struct{}{}:
		return nil
	case <-t.done:
		return t.why
	}
}

// add adds a harvest to the sums.
func (t *Taker) add(h *Harvest) error {
	for i, rank := range h.Ranks {
		if int(rank) >= len(t.sums) {
			return fmt.Errorf("harvest %d: a sum of rank %d, but the job has %d slots: run the same version of Libra on all hosts",
				h.Number, rank, len(t.sums))
		}
		before, sum := t.sums[rank], h.Sums[i]
		t.sums[rank] = before + sum
		if (sum > 0) != (t.sums[rank] > before) {
			return fmt.Errorf("harvest %d: the sum of rank %d exceeds 64 bits: give the job a larger exponent", h.Number, rank)
		}
	}
	return nil
}
