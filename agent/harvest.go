// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/aggregator"
)

// ownership is the part of a session that owns its job: it answers HARVESTs, one after the other.
type ownership struct {
	of    *rangeJob
	owner Owner
	hurry chan struct{} // has a token when a HARVEST that does not wait was queued

	ending atomic.Bool
	gone   chan struct{} // closed when the job is removed

	mu    sync.Mutex
	queue []*work
	busy  bool // a goroutine answers the queue

	// The fields below belong to that goroutine.
	order []uint32  // row ranks in the order of their keys
	asked time.Time // for the newest harvest
	sums  sumsPair
}

// queueHarvest answers a HARVEST after those before it. It is called in the worker's goroutine.
func (o *ownership) queueHarvest(w *work) {
	j := w.s.job
	w.s.mem.SQHead.Store(w.s.head) // before the answer: to a client, a completed entry is a read one
	j.yield = true
	o.mu.Lock()
	defer o.mu.Unlock()
	o.queue = append(o.queue, w)
	if w.step == agentproto.Now {
		select {
		case o.hurry <- struct{}{}:
		default:
		}
	}
	if !o.busy {
		o.busy = true
		j.goroutines.Go(o.answerHarvests)
	}
}

// answerHarvests answers the queue until it is empty.
func (o *ownership) answerHarvests() {
	for {
		o.mu.Lock()
		if len(o.queue) == 0 {
			o.busy = false
			o.mu.Unlock()
			return
		}
		w := o.queue[0]
		o.queue = slices.Delete(o.queue, 0, 1)
		o.mu.Unlock()
		err := o.writeHarvest(w)
		w.s.job.awaitTurn("answers entry %d of client %d", w.c.Ticket, w.s.number)
		w.setError(err)
		w.answerEntry()
	}
}

// writeHarvest writes the next harvest to the client's memory. Unless the client wants one now, it
// is due a period after the one before, and has sums.
func (o *ownership) writeHarvest(w *work) error {
	for {
		now, err := o.awaitDue(w)
		if err != nil {
			return err
		}
		o.asked = time.Now()
		sums, err := o.owner.Take(w.s.ctx)
		if err != nil {
			if w.s.ctx.Err() == nil {
				w.s.job.log.Error("the job cannot be harvested any more", "error", err)
			}
			if lost := o.owner.Lost(); lost != nil {
				return lost
			}
			return fmt.Errorf("%w: %w", agentproto.JobEnded, err)
		}
		kept := o.rowsOf(&w.s.job.cfg, sums)
		if len(kept.Keys) == 0 && !now {
			continue
		}
		w.s.keepSums(kept)
		w.c.Detail = uint64(len(kept.Keys))
		n := copy(w.sumKeys, kept.Keys)
		copy(w.sumRows, kept.Rows[:n*w.s.job.cfg.Dim])
		return nil
	}
}

// awaitDue waits for the end of the period. now means that this entry, or one behind it, does not
// wait for that.
func (o *ownership) awaitDue(w *work) (now bool, err error) {
	due := time.NewTimer(time.Until(o.asked.Add(o.of.of.Period)))
	defer due.Stop()
	for w.step != agentproto.Now && !o.isHurried() {
		select {
		case <-due.C:
			return false, w.s.ctx.Err()
		case <-o.hurry:
		case <-w.s.ctx.Done():
			return false, w.s.ctx.Err()
		}
	}
	return true, nil
}

// isHurried reports whether an entry in the queue does not wait.
func (o *ownership) isHurried() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.ContainsFunc(o.queue, func(w *work) bool { return w.step == agentproto.Now })
}

// rowsOf returns the rows with sums, in the order of their keys.
func (o *ownership) rowsOf(cfg *Job, sums []int64) *stepSums {
	hot, dim := cfg.HotSet, cfg.Dim
	if o.order == nil {
		o.order = make([]uint32, hot.Len())
		for i := range o.order {
			o.order[i] = uint32(i)
		}
		slices.SortFunc(o.order, func(a, b uint32) int {
			if hot.Key(a) < hot.Key(b) {
				return -1
			}
			return 1
		})
	}
	kept := o.sums.unusedSums()
	kept.Keys, kept.Rows = kept.Keys[:0], kept.Rows[:0]
	unit := aggregator.JobConfig{Arithmetic: cfg.Arithmetic, Exp: cfg.Exp}
	for _, rank := range o.order {
		row := sums[int(rank)*dim:][:dim]
		if !slices.ContainsFunc(row, func(sum int64) bool { return sum != 0 }) {
			continue
		}
		kept.Keys = append(kept.Keys, hot.Key(rank))
		for _, sum := range row {
			kept.Rows = append(kept.Rows, unit.Float32(sum))
		}
	}
	return kept
}

// sessionEnded is called in the worker's goroutine when the owner's session has ended: the job ends
// with it.
func (o *ownership) sessionEnded() {
	o.ending.Store(true)
	o.of.agent.watching.Go(func() {
		if err := o.releaseJob(); err != nil {
			o.of.agent.cfg.Log.Warn("a job was not removed; it ends with its lease", "job", o.of.name, "error", err)
		}
	})
}

// releaseJob ends the job: on this host when the pushes that were accepted are settled, then
// everywhere.
func (o *ownership) releaseJob() error {
	o.ending.Store(true)
	o.of.mu.Lock()
	run := o.of.run
	o.of.mu.Unlock()
	var err error
	if run != nil {
		why := o.owner.Lost()
		if why == nil {
			why = fmt.Errorf("%w: its owner has ended", agentproto.JobEnded)
		}
		err = run.endRun(why)
	}
	if removed := o.owner.Remove(); err == nil {
		err = removed
	}
	o.giveUp()
	return err
}
