// SPDX-License-Identifier: Apache-2.0

package p4

import (
	"fmt"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/wire"
)

// Swap implements [aggregator.Plane]. One write to the job's entry changes the bank; then the rows
// of the other one are read. If that fails, the bank stays frozen and the next Swap reads it.
func (p *Plane) Swap(id uint16) (*aggregator.Bank, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	j, err := p.job(id)
	if err != nil {
		return nil, err
	}
	if err := j.CheckSwap(j.frozen); err != nil {
		return nil, err
	}
	if !j.swapped {
		j.bank ^= 1
		if err := p.client.modifyEntry("swap", j.jobEntry()); err != nil {
			j.bank ^= 1
			return nil, fmt.Errorf("job %d: %w", id, err)
		}
		j.swapped = true
	}
	b := &aggregator.Bank{Job: id, Epoch: j.Epoch, Slots: make([]int64, j.Slots)}
	if err := p.rows(operationRead, p.row(j, j.bank^1), j.rows, func(i int, r *row) {
		copy(b.Slots[i*wire.Lanes:], r[:])
	}); err != nil {
		return nil, fmt.Errorf("job %d: %w", id, err)
	}
	n, err := p.count("counters of a bank", bankApplied(id, j.bank^1))
	if err != nil {
		return nil, fmt.Errorf("job %d: %w", id, err)
	}
	b.Frames, b.Pairs = n.countsSince(j.cleared[j.bank^1]).frameCounts()
	j.frozen = b
	return b, nil
}

// Clear implements [aggregator.Plane].
func (p *Plane) Clear(frozen *aggregator.Bank) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	j, err := p.job(frozen.Job)
	if err != nil {
		return err
	}
	if err := j.CheckClear(j.frozen, frozen); err != nil {
		return err
	}
	bank := j.bank ^ 1
	if err := p.clear(j, bank); err != nil {
		return fmt.Errorf("job %d: %w", j.ID, err)
	}
	n, err := p.count("counters of a bank", bankApplied(j.ID, bank))
	if err != nil {
		return fmt.Errorf("job %d: %w", j.ID, err)
	}
	j.cleared[bank], j.frozen, j.swapped = n, nil, false
	return nil
}

func (p *Plane) clear(j *job, bank int) error {
	return p.rows(operationClear, p.row(j, bank), j.rows, func(int, *row) {})
}

// row returns the index of the first row of a job's bank among the rows of all banks.
func (p *Plane) row(j *job, bank int) int { return bank*rowsOfBank + j.first }

// HasMarks implements [aggregator.Plane]: reading the filters of all senders would take too long.
func (p *Plane) HasMarks() bool { return false }

// Pages implements [aggregator.Plane]: a lane is wired to one register, whose slots the 16 bits of
// a pair name.
func (p *Plane) Pages() int { return 1 }
