// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"fmt"

	"github.com/libra-ina/libra/aggregator"
)

// Swap implements [aggregator.Plane].
//
// It takes about a microsecond, see lock.h. Replacing the inner map would also work, but then the
// kernel waits for an RCU grace period: 8 to 16 ms at 250 ticks per second, which limits harvests,
// and so the steps of a training, to about 60 per second.
//
// It fails if it does not see the job's lock free for a second: for example, a program holds it on
// a suspended virtual CPU, or this process was suspended. Programs that take the lock in the
// meantime add to the other bank, so the banks remain swapped, and the next Swap waits for the same
// bank.
func (a *Aggregator) Swap(id uint16) (*aggregator.Bank, error) {
	p, err := a.placeOf(id)
	if err != nil {
		return nil, err
	}
	p.harvest.Lock()
	defer p.harvest.Unlock()
	j, err := p.runningJob(id)
	if err != nil {
		return nil, err
	}
	if err := j.CheckSwap(j.frozen); err != nil {
		return nil, err
	}
	if !j.swapping {
		a.turnBanks(p, j)
	}
	a.awaitPrograms(id)
	if err := a.table.awaitFree(id, a.patience); err != nil {
		return nil, fmt.Errorf("bpf: job %d: swap banks: %w", id, err)
	}
	old, tally := j.banks[j.current], a.table.jobs[id].Tallies[j.current]
	j.current = 1 - j.current
	j.frozen = &aggregator.Bank{
		Job: id, Epoch: j.Epoch,
		Slots:  old.slots[:j.Slots:j.Slots],
		Frames: tally.Frames,
		Pairs:  tally.Pairs,
		Marks:  a.takeMarks(p, j),
	}
	if n := j.Blocks(); n > 0 {
		j.frozen.Touched = old.touched[:n:n]
	}
	return j.frozen, nil
}

// turnBanks begins a swap. The caller holds harvest.
func (a *Aggregator) turnBanks(p *place, j *job) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a.table.turnBanks(j.ID)
	j.swapping = true
}

// Clear implements [aggregator.Plane].
func (a *Aggregator) Clear(frozen *aggregator.Bank) error {
	p, err := a.placeOf(frozen.Job)
	if err != nil {
		return err
	}
	p.harvest.Lock()
	defer p.harvest.Unlock()
	j, err := p.runningJob(frozen.Job)
	if err != nil {
		return err
	}
	if err := j.CheckClear(j.frozen, frozen); err != nil {
		return err
	}
	frozen.Wipe()
	clear(a.table.jobs[frozen.Job].Tallies[1-j.current:][:1])
	j.frozen = nil
	return nil
}
