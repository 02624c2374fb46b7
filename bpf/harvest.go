// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"fmt"

	"github.com/libra-ina/libra/aggregator"
)

// Swap implements [aggregator.Plane].
//
// It takes a microsecond or so, see lock.h. Exchanging the inner map instead
// would do too, but the kernel then waits for an RCU grace period: 8 to 16 ms at
// 250 ticks a second, which bounds the harvests, and with them the steps of a
// training, to some 60 a second.
//
// It fails if the job's lock was never seen free for a second: a program holds it on a
// virtual CPU that is suspended, say, or this process was suspended itself. Programs
// that take the lock meanwhile add to the other bank, so the banks stay exchanged, and
// the next Swap goes on waiting for the same one.
func (a *Aggregator) Swap(id uint16) (*aggregator.Bank, error) {
	p, err := a.place(id)
	if err != nil {
		return nil, err
	}
	p.harvest.Lock()
	defer p.harvest.Unlock()
	j, err := p.running(id)
	if err != nil {
		return nil, err
	}
	if err := j.CheckSwap(j.frozen); err != nil {
		return nil, err
	}
	if !j.swapping {
		a.table.turnBanks(id)
		j.swapping = true
	}
	a.wait(id)
	if err := a.table.awaitFree(id, a.patience); err != nil {
		return nil, fmt.Errorf("bpf: job %d: swap banks: %w", id, err)
	}
	j.swapping = false
	old := j.banks[j.current]
	j.current = 1 - j.current
	j.frozen = &aggregator.Bank{
		Job: id, Epoch: j.Epoch,
		Slots:  old.sums.slots[:j.Slots:j.Slots],
		Frames: old.sums.frames,
		Pairs:  old.sums.pairs,
	}
	return j.frozen, nil
}

// Clear implements [aggregator.Plane].
func (a *Aggregator) Clear(frozen *aggregator.Bank) error {
	p, err := a.place(frozen.Job)
	if err != nil {
		return err
	}
	p.harvest.Lock()
	defer p.harvest.Unlock()
	j, err := p.running(frozen.Job)
	if err != nil {
		return err
	}
	if err := j.CheckClear(j.frozen, frozen); err != nil {
		return err
	}
	j.banks[1-j.current].clear(j.Slots)
	j.frozen = nil
	return nil
}
