// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/wire"
)

// AddJob implements [aggregator.Plane]. A job takes 1 MiB of kernel memory for each page of its
// slots, half of it in mode acked, 2 KiB more for each of several, and at most 70 KiB more with
// rounds.
func (a *Aggregator) AddJob(cfg aggregator.JobConfig) (err error) {
	cfg, err = cfg.Complete()
	if err != nil {
		return err
	}
	p, err := a.placeOf(cfg.ID)
	if err != nil {
		return err
	}
	p.admission.Lock()
	defer p.admission.Unlock()
	if _, err := p.runningJob(cfg.ID); !errors.Is(err, aggregator.ErrNoJob) {
		if err == nil {
			err = fmt.Errorf("job %d: %w", cfg.ID, aggregator.ErrJobExists)
		}
		return err
	}
	j := &job{JobConfig: cfg, senders: make(map[uint16]member), departed: [2]map[uint16]aggregator.Mark{{}, {}}}
	err = a.createMaps(j)
	if err == nil {
		err = a.startJob(j)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("bpf: job %d: %w", cfg.ID, explain(err)), j.closeMaps())
	}
	p.setJob(j)
	a.mu.Lock()
	defer a.mu.Unlock()
	if j.ports != nil {
		a.sets[cfg.ID] = j.ports
	}
	return nil
}

// createMaps creates the job's own maps.
func (a *Aggregator) createMaps(j *job) (err error) {
	if j.Arithmetic == aggregator.LUT {
		if err := a.lut.fillTables(a.objects.Tables); err != nil {
			return err
		}
	}
	for i := range j.Banks() {
		if j.banks[i], err = newBank(a.inner.bank, a.inner.blocks, j.Pages()); err != nil {
			return err
		}
	}
	if j.Mode.HasRounds() {
		spec := a.inner.groups.Copy()
		group := j.MaxStripes * wire.Lanes
		spec.MaxEntries = uint32((j.Slots + group - 1) / group)
		if j.groups, err = ebpf.NewMap(spec); err != nil {
			return fmt.Errorf("create groups: %w", err)
		}
	}
	j.ports, err = newPortSet(a.inner.ports, j.JobConfig)
	return err
}

// startJob makes a job visible to the program. The job's entry comes last: the program drops the
// frames of a job without banks.
func (a *Aggregator) startJob(j *job) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, a.removeMaps(j.ID, j.Blocks()))
		}
	}()
	a.awaitPrograms(j.ID)
	a.times.forgetJob(j.ID)
	for i, b := range j.banks[:j.Banks()] {
		if err := a.objects.Banks.Put(bankKey(j.ID, i), b.m); err != nil {
			return fmt.Errorf("install bank: %w", err)
		}
		if b.blocks == nil {
			continue
		}
		if err := a.objects.BankBlocks.Put(bankKey(j.ID, i), b.blocks); err != nil {
			return fmt.Errorf("install the record of a bank's blocks: %w", err)
		}
	}
	if j.groups != nil {
		if err := a.objects.Groups.Put(uint32(j.ID), j.groups); err != nil {
			return fmt.Errorf("install groups: %w", err)
		}
	}
	if j.ports != nil {
		if err := a.objects.PortSets.Put(uint32(j.ID), j.ports.m); err != nil {
			return fmt.Errorf("install set of ports: %w", err)
		}
	}
	a.table.startJob(j.ID, aggregateJob{
		Slots:      uint32(j.Slots),
		MaxStripes: uint32(j.MaxStripes),
		Exp:        int32(j.Exp),
		Mode:       uint8(j.Mode),
		Layouts:    uint8(j.Layouts),
		Arithmetic: uint8(j.Arithmetic),
		Workers:    uint8(j.Workers),
		BelowLimit: belowLimit(j.JobConfig),
		LastPage:   uint32(j.Pages() - 1),
		PageSlots:  [2]uint32{aggregator.PageSlots, uint32(lastSlots(j.JobConfig))},
		BelowSlots: belowSlots(lastSlots(j.JobConfig)),
	})
	return nil
}

// bankKey is the key of a bank in the program's map of banks.
func bankKey(id uint16, bank int) uint32 { return uint32(id)*2 + uint32(bank) }

// removeMaps removes the job's maps from the program's maps of maps. Updating a map of maps returns
// only when no program runs that may have seen the old entry (maybe_wait_bpf_programs in the
// kernel's kernel/bpf/syscall.c, since Linux 4.20).
func (a *Aggregator) removeMaps(id uint16, blocks int) error {
	a.awaitPrograms(id)
	errs := []error{
		a.objects.Banks.Delete(bankKey(id, 0)),
		a.objects.Banks.Delete(bankKey(id, 1)),
		a.objects.Groups.Delete(uint32(id)),
		a.objects.PortSets.Delete(uint32(id)),
	}
	if blocks > 0 {
		errs = append(errs, a.objects.BankBlocks.Delete(bankKey(id, 0)), a.objects.BankBlocks.Delete(bankKey(id, 1)))
	}
	return errors.Join(slices.DeleteFunc(errs, func(err error) bool {
		return errors.Is(err, ebpf.ErrKeyNotExist)
	})...)
}

// belowLimit returns below_limit of struct job in maps.h.
func belowLimit(c aggregator.JobConfig) uint64 {
	limit := 0 // a biased exponent
	switch c.Arithmetic {
	case aggregator.Exact:
		limit = 189 + c.Exp // half the range
	case aggregator.LUT:
		limit = 255 // infinities and NaNs
	case aggregator.Fixed:
		return 0
	}
	below := uint64(1<<31 - limit<<23)
	return below<<32 | below
}

// lastSlots returns the number of slots of a job's last page.
func lastSlots(c aggregator.JobConfig) int { return c.Slots - (c.Pages()-1)*aggregator.PageSlots }

// belowSlots returns the table of struct job in maps.h.
func belowSlots(last int) (t [2][2][wire.Lanes / 2]uint64) {
	for page, slots := range [2]int{aggregator.PageSlots, last} {
		for i := range t[0][page] {
			high, low := 4*(i/2)+i%2, 4*(i/2)+i%2+2
			if i == len(t[0][page])-1 {
				low = high + 1
			}
			// In lane j, slot k is rank k × Lanes + j of the page.
			aligned := func(lane int) int { return (slots - lane + wire.Lanes - 1) / wire.Lanes }
			t[0][page][i] = uint64(1<<31-aligned(high))<<32 | uint64(1<<31-aligned(low))
			t[1][page][i] = uint64(1<<31-slots)<<32 | uint64(1<<31-slots)
		}
	}
	return t
}

// RemoveJob implements [aggregator.Plane].
//
// It removes the job's maps last, because that call returns only when no program runs that has seen
// the job. Then the entries of its senders are no longer written, and new senders may get them.
func (a *Aggregator) RemoveJob(id uint16) error {
	p, err := a.placeOf(id)
	if err != nil {
		return err
	}
	p.admission.Lock()
	defer p.admission.Unlock()
	j, err := p.endJob(id)
	if err != nil {
		return err
	}
	a.mu.Lock()
	delete(a.sets, id)
	a.mu.Unlock()
	a.table.stopJob(id)
	var errs []error
	var entries []uint32
	for s, m := range j.senders {
		errs = append(errs, a.senders.withdrawSender(id, s))
		entries = append(entries, m.index)
	}
	err = errors.Join(append(errs, a.removeMaps(id, j.Blocks()))...)
	if err == nil {
		a.senders.releaseEntries(entries...)
	}
	return errors.Join(err, j.closeMaps())
}

// awaitPrograms is called before a call for a job that waits for programs to end.
func (a *Aggregator) awaitPrograms(job uint16) {
	if a.waits != nil {
		a.waits(job)
	}
}
