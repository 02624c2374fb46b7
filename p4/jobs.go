// SPDX-License-Identifier: Apache-2.0

package p4

import (
	"cmp"
	"fmt"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/wire"
)

// Sizes of the program: see program/sizes.p4.
const (
	rowsOfBank      = 8192
	numbersOfSender = 1024 // in the duplicate filter
)

// expBias is added to the exponent of a job's unit: the program shifts a significand by the sum
// minus the exponent of the number (internal/num/fixedpoint).
const expBias = 189

// AddJob implements [aggregator.Plane].
func (p *Plane) AddJob(cfg aggregator.JobConfig) error {
	cfg, err := complete(cfg)
	if err != nil {
		return err
	}
	if err := p.vacant(cfg.ID); err != nil {
		return err
	}
	if cfg.Arithmetic == aggregator.LUT {
		if err := p.loadLUT(); err != nil {
			return fmt.Errorf("job %d: %w", cfg.ID, err)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.noJob(cfg.ID); err != nil {
		return err
	}
	j := &job{JobConfig: cfg, rows: (cfg.Slots + wire.Lanes - 1) / wire.Lanes, senders: make(map[uint16]*admission),
		doubtful: make(map[uint16]*admission), participants: make(map[uint16]bool)}
	first, ok := p.rowPool.takeRows(j.rows)
	if !ok {
		return fmt.Errorf("job %d: %w: %d slots take %d rows of the switch's registers, %d of %d are free, possibly not contiguous",
			cfg.ID, aggregator.ErrTooManySlots, cfg.Slots, j.rows, p.rowPool.rowsLeft(), p.rowPool.size)
	}
	j.first = first
	if err := p.startJob(j); err != nil {
		p.rowPool.giveRows(first)
		return fmt.Errorf("job %d: %w", cfg.ID, err)
	}
	p.jobs[cfg.ID] = j
	return nil
}

// vacant is noJob for callers without the lock.
func (p *Plane) vacant(id uint16) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.noJob(id)
}

// noJob returns an error unless the id is available for a job. The caller holds the lock.
func (p *Plane) noJob(id uint16) error {
	switch {
	case p.closed:
		return aggregator.ErrClosed
	case p.jobs[id] != nil:
		return fmt.Errorf("job %d: %w", id, aggregator.ErrJobExists)
	}
	return nil
}

// complete fills in the defaults of this data plane and checks a job.
func complete(cfg aggregator.JobConfig) (aggregator.JobConfig, error) {
	cfg.MaxStripes = cmp.Or(cfg.MaxStripes, 1)
	cfg.Layouts = cmp.Or(cfg.Layouts, aggregator.Aligned)
	cfg, err := cfg.Complete()
	if err == nil {
		err = cfg.CheckPages(1)
	}
	if err != nil {
		return cfg, err
	}
	why := ""
	switch {
	case cfg.Mode == aggregator.Acked:
		why = fmt.Sprintf("%v mode: it takes %v, which has the same sums", cfg.Mode, aggregator.Sync)
	case cfg.MaxStripes != 1:
		why = fmt.Sprintf("%d stripes in a frame: it takes 1 (switch.stripes)", cfg.MaxStripes)
	case cfg.Layouts != aggregator.Aligned:
		why = "dense frames: it takes lane-aligned ones (switch.lane_aligned)"
	default:
		return cfg, nil
	}
	return cfg, fmt.Errorf("job %d: %w: the switch program has no %s", cfg.ID, aggregator.ErrUnsupported, why)
}

// startJob clears the remains of an earlier job: rows, with their rounds, and the scale. Then it
// admits the job.
func (p *Plane) startJob(j *job) (err error) {
	for bank := range 2 {
		if err := p.clear(j, bank); err != nil {
			return err
		}
		if j.cleared[bank], err = p.count("counters of a bank", bankApplied(j.ID, bank)); err != nil {
			return err
		}
	}
	if j.Workers != 0 {
		if err := p.rows(operationForget, int(j.ID), 1, func(int, *row) {}); err != nil {
			return err
		}
	}
	if j.began, err = p.count("counters of a job", jobCells(j.ID)...); err != nil {
		return err
	}
	return p.client.putEntry("admit", j.jobEntry())
}

// jobEntry returns the job's entry in table jobs.
func (j *job) jobEntry() entry {
	more := uint64(1)<<(j.Slots%wire.Lanes) - 1
	return entry{
		table: tableJobs, keys: []number{uintNumber(uint64(j.ID))}, action: actionServe,
		params: map[string]number{
			"index":      uintNumber(uint64(j.ID)),
			"mode":       uintNumber(uint64(j.Mode)),
			"arithmetic": uintNumber(uint64(j.Arithmetic)),
			"bank":       uintNumber(uint64(j.bank)),
			"base":       uintNumber(uint64(j.bank*rowsOfBank + j.first)),
			"rows":       uintNumber(uint64(j.Slots / wire.Lanes)),
			"more":       uintNumber(more),
			"slots":      uintNumber(uint64(j.Slots)),
			"bias":       uintNumber(uint64(expBias + j.Exp)),
		},
	}
}

// RemoveJob implements [aggregator.Plane].
func (p *Plane) RemoveJob(id uint16) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := p.job(id); err != nil {
		return err
	}
	return p.removeJob(id)
}

// removeJob removes a job from the switch: first the job itself, so that all its senders get the
// same answer.
func (p *Plane) removeJob(id uint16) error {
	j := p.jobs[id]
	if err := p.client.removeEntry("remove", entry{table: tableJobs, keys: j.jobEntry().keys}); err != nil {
		return fmt.Errorf("job %d: %w", id, err)
	}
	for sender := range j.senders {
		if err := p.removeSender(j, sender); err != nil {
			return err
		}
	}
	for sender := range j.doubtful {
		if err := p.removeDoubtful(j, sender); err != nil {
			return err
		}
	}
	for sender := range j.participants { // including those of failed admissions
		if err := p.removeParticipant(j, sender); err != nil {
			return err
		}
	}
	p.rowPool.giveRows(j.first)
	delete(p.jobs, id)
	return nil
}

// lastGeneration is the last of the admissions that the duplicate filter can tell apart: it has 23
// bits for them beside a number and the refusal of it.
const lastGeneration = 1<<23 - 1

// AddSender implements [aggregator.Plane].
func (p *Plane) AddSender(id uint16, s aggregator.SenderConfig) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	j, err := p.job(id)
	if err != nil {
		return err
	}
	s.IP = s.IP.Unmap()
	if err := j.CheckSender(s, j.senders[s.ID] != nil, j.places); err != nil {
		return err
	}
	if !s.IP.Is4() {
		return fmt.Errorf("job %d: %w: sender %d: the switch program aggregates over IPv4, and %v is none", id,
			aggregator.ErrUnsupported, s.ID, s.IP)
	}
	s.Port = cmp.Or(s.Port, p.port)
	if err := p.removeDoubtful(j, s.ID); err != nil {
		return err
	}
	if p.generations == lastGeneration {
		return fmt.Errorf("job %d: sender %d: %w: the switch has had %d admissions since its program was loaded: restart libra switch",
			id, s.ID, aggregator.ErrTooManySenders, p.generations)
	}
	index, ok := p.senders.takeIndex()
	if !ok {
		return fmt.Errorf("job %d: sender %d: %w: the switch has room for %d", id, s.ID, aggregator.ErrTooManySenders,
			p.senders.size)
	}
	a := &admission{index: index, keys: senderKeys(id, s)}
	a.began, err = p.count("counters of a sender", senderEvents(index), senderApplied(index))
	if err == nil && j.Workers != 0 {
		j.participants[s.ID] = true // if this fails, the entry may still exist
		err = p.client.putEntry("admit", j.nextParticipant(s.ID))
	}
	if err == nil {
		// No two admissions have the same generation, so the filter's entries of other admissions
		// count as empty.
		p.generations++
		j.doubtful[s.ID] = a // until the switch has answered
		err = p.client.putEntry("admit", entry{
			table: tableSenders, keys: a.keys, action: actionAdmit,
			params: map[string]number{
				"index":      uintNumber(uint64(index)),
				"generation": uintNumber(uint64(p.generations)),
				"epoch":      uintNumber(uint64(s.Epoch)),
			},
		})
	}
	if err != nil {
		if j.doubtful[s.ID] == nil {
			p.senders.giveIndex(index)
		}
		return fmt.Errorf("job %d: sender %d: %w", id, s.ID, err)
	}
	delete(j.doubtful, s.ID)
	j.senders[s.ID] = a
	if j.Workers != 0 {
		j.places++
	}
	return nil
}

// nextParticipant returns the entry of the next sender in table participants.
func (j *job) nextParticipant(sender uint16) entry {
	return entry{
		table: tableParticipants, keys: []number{uintNumber(uint64(j.ID)), uintNumber(uint64(sender))},
		action: actionTakePart,
		params: map[string]number{
			"place":    uintNumber(1 << j.places),
			"everyone": uintNumber(1<<j.Workers - 1),
		},
	}
}

// senderKeys returns the keys that identify a sender in each of its frames.
func senderKeys(job uint16, s aggregator.SenderConfig) []number {
	return []number{
		uintNumber(uint64(job)), uintNumber(uint64(s.ID)), macNumber(s.MAC), addrNumber(s.IP), uintNumber(uint64(s.Port)),
	}
}

// RemoveSender implements [aggregator.Plane].
func (p *Plane) RemoveSender(id, sender uint16) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	j, _, err := p.sender(id, sender)
	if err != nil {
		return err
	}
	return p.removeSender(j, sender)
}

func (p *Plane) removeSender(j *job, sender uint16) error {
	a := j.senders[sender]
	if err := p.client.removeEntry("withdraw", entry{table: tableSenders, keys: a.keys}); err != nil {
		return fmt.Errorf("job %d: sender %d: %w", j.ID, sender, err)
	}
	if err := p.removeParticipant(j, sender); err != nil {
		return err
	}
	p.senders.giveIndex(a.index)
	delete(j.senders, sender)
	return nil
}

// removeDoubtful removes the possible remains of a failed admission from the switch: its entry
// would serve a sender that is not admitted, with a filter that another one gets.
func (p *Plane) removeDoubtful(j *job, sender uint16) error {
	a := j.doubtful[sender]
	if a == nil {
		return nil
	}
	if err := p.client.removeEntry("withdraw", entry{table: tableSenders, keys: a.keys}); err != nil {
		return fmt.Errorf("job %d: sender %d: %w", j.ID, sender, err)
	}
	p.senders.giveIndex(a.index)
	delete(j.doubtful, sender)
	return nil
}

// removeParticipant removes a sender's place in the rounds from the switch, if it has one.
func (p *Plane) removeParticipant(j *job, sender uint16) error {
	if !j.participants[sender] {
		return nil
	}
	if err := p.client.removeEntry("withdraw", entry{table: tableParticipants, keys: j.nextParticipant(sender).keys}); err != nil {
		return fmt.Errorf("job %d: sender %d: %w", j.ID, sender, err)
	}
	delete(j.participants, sender)
	return nil
}

// indexPool allocates the numbers from 0 to size-1.
type indexPool struct {
	size  int
	next  int
	freed []int
}

func (p *indexPool) takeIndex() (int, bool) {
	if n := len(p.freed); n > 0 {
		i := p.freed[n-1]
		p.freed = p.freed[:n-1]
		return i, true
	}
	if p.next == p.size {
		return 0, false
	}
	p.next++
	return p.next - 1, true
}

func (p *indexPool) giveIndex(i int) { p.freed = append(p.freed, i) }
