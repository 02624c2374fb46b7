//go:build linux

package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/wire"
)

// AddJob implements [aggregator.Plane]. A job takes 1 MiB of kernel memory,
// whatever its number of slots.
func (a *Aggregator) AddJob(cfg aggregator.JobConfig) (err error) {
	cfg, err = cfg.Complete()
	if err != nil {
		return err
	}
	if cfg.Mode == aggregator.Sync || cfg.Arithmetic != aggregator.Exact {
		return fmt.Errorf("job %d: %w: %v mode with %v arithmetic", cfg.ID, aggregator.ErrUnsupported, cfg.Mode, cfg.Arithmetic)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return aggregator.ErrClosed
	}
	if a.jobs[cfg.ID] != nil {
		return fmt.Errorf("job %d: %w", cfg.ID, aggregator.ErrJobExists)
	}
	j := &job{JobConfig: cfg, senders: make(map[uint16]struct{})}
	for i := range j.banks {
		if err == nil {
			j.banks[i], err = newBank(a.bank)
		}
	}
	if err == nil {
		err = a.startJob(j)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("bpf: job %d: %w", cfg.ID, explain(err)), j.closeBanks())
	}
	a.jobs[cfg.ID] = j
	return nil
}

// startJob makes the program see a job. The job's entry comes last: the
// program drops the frames of a job without banks.
func (a *Aggregator) startJob(j *job) error {
	for i, b := range j.banks {
		if err := a.objects.Banks.Put(bankKey(j.ID, i), b.m); err != nil {
			return errors.Join(fmt.Errorf("install bank: %w", err), a.removeBanks(j.ID))
		}
	}
	a.table.start(j.ID, aggregateJob{
		Slots:      uint32(j.Slots),
		MaxStripes: uint32(j.MaxStripes),
		Exp:        int32(j.Exp),
		Epoch:      j.Epoch,
		Mode:       uint8(j.Mode),
		Layouts:    uint8(j.Layouts),
		Arithmetic: uint8(j.Arithmetic),
		Workers:    uint8(j.Workers),
		BelowSlots: belowSlots(j.Slots),
	})
	return nil
}

// bankKey is the place of a bank in the program's map of banks.
func bankKey(id uint16, bank int) uint32 { return uint32(id)*2 + uint32(bank) }

// removeBanks takes a job's banks out of the program's reach. Updating a map of
// maps returns only when no program runs that may have seen the old entry
// (maybe_wait_bpf_programs in the kernel's kernel/bpf/syscall.c, since Linux
// 4.20).
func (a *Aggregator) removeBanks(id uint16) error {
	var errs []error
	for i := range 2 {
		if err := a.objects.Banks.Delete(bankKey(id, i)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// belowSlots returns the table of struct job in maps.h.
func belowSlots(slots int) (t [2][wire.Lanes / 2]uint64) {
	for i := range t[0] {
		high, low := 4*(i/2)+i%2, 4*(i/2)+i%2+2
		if i == len(t[0])-1 {
			low = high + 1
		}
		// In lane j, slot k is rank k × Lanes + j.
		aligned := func(lane int) int { return (slots - lane + wire.Lanes - 1) / wire.Lanes }
		t[0][i] = uint64(1<<31-aligned(high))<<32 | uint64(1<<31-aligned(low))
		t[1][i] = uint64(1<<31-slots)<<32 | uint64(1<<31-slots)
	}
	return t
}

// RemoveJob implements [aggregator.Plane].
func (a *Aggregator) RemoveJob(id uint16) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, err := a.job(id); err != nil {
		return err
	}
	return a.removeJob(id)
}

// removeJob takes a job away from the program and releases its memory. Taking
// away the bank comes last, because that call returns only when no program
// runs that has seen the job; so the senders' entries, which a new sender may
// get at once, are not written any more either.
func (a *Aggregator) removeJob(id uint16) error {
	j := a.jobs[id]
	delete(a.jobs, id)
	a.table.stop(id)
	var errs []error
	for s := range j.senders {
		errs = append(errs, a.objects.Senders.Delete(aggregateSenderKey{Job: id, Sender: s}))
	}
	errs = append(errs, a.removeBanks(id), j.closeBanks())
	return errors.Join(errs...)
}

// AddSender implements [aggregator.Plane].
func (a *Aggregator) AddSender(id uint16, s aggregator.SenderConfig) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	j, err := a.job(id)
	if err != nil {
		return err
	}
	s.IP = s.IP.Unmap()
	if !s.IP.Is4() {
		return fmt.Errorf("job %d: sender %d: address %v: %w: senders have an IPv4 address",
			id, s.ID, s.IP, aggregator.ErrUnsupported)
	}
	if _, ok := j.senders[s.ID]; ok {
		return fmt.Errorf("job %d: sender %d: %w", id, s.ID, aggregator.ErrSenderExists)
	}
	ip := s.IP.As4()
	value := aggregateSender{Ip: binary.NativeEndian.Uint32(ip[:])}
	for i := range value.Mac {
		value.Mac[i] = binary.NativeEndian.Uint16(s.MAC[2*i:])
	}
	err = a.objects.Senders.Update(aggregateSenderKey{Job: id, Sender: s.ID}, &value, ebpf.UpdateNoExist)
	if errors.Is(err, unix.E2BIG) {
		err = fmt.Errorf("%w: all jobs together may have %d", aggregator.ErrTooManySenders,
			a.objects.Senders.MaxEntries())
	}
	if err != nil {
		return fmt.Errorf("bpf: job %d: sender %d: %w", id, s.ID, err)
	}
	j.senders[s.ID] = struct{}{}
	return nil
}

// RemoveSender implements [aggregator.Plane].
func (a *Aggregator) RemoveSender(id, sender uint16) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	j, err := a.job(id)
	if err != nil {
		return err
	}
	if _, ok := j.senders[sender]; !ok {
		return fmt.Errorf("job %d: sender %d: %w", id, sender, aggregator.ErrNoSender)
	}
	delete(j.senders, sender)
	err = a.objects.Senders.Delete(aggregateSenderKey{Job: id, Sender: sender})
	// The next sender may get the same memory at once, and a program that
	// still runs could write its duplicate filter. So wait for programs, by
	// installing the current bank again; see removeBanks.
	return errors.Join(err, a.objects.Banks.Put(bankKey(id, j.current), j.banks[j.current].m))
}

// Swap implements [aggregator.Plane].
//
// It takes a microsecond or so, see lock.h. Exchanging the inner map instead
// would do too, but the kernel then waits for an RCU grace period: 8 to 16 ms at
// 250 ticks a second, which bounds the harvests, and with them the steps of a
// training, to some 60 a second.
func (a *Aggregator) Swap(id uint16) (*aggregator.Bank, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	j, err := a.job(id)
	if err != nil {
		return nil, err
	}
	if j.frozen != nil {
		return nil, fmt.Errorf("job %d: %w", id, aggregator.ErrBankNotCleared)
	}
	if err := a.table.swapBanks(id, time.Second); err != nil {
		return nil, fmt.Errorf("bpf: job %d: swap banks: %w", id, err)
	}
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
	a.mu.Lock()
	defer a.mu.Unlock()
	j, err := a.job(frozen.Job)
	if err != nil {
		return err
	}
	if j.frozen != frozen {
		return fmt.Errorf("job %d: %w", frozen.Job, aggregator.ErrBankNotFrozen)
	}
	j.banks[1-j.current].clear(j.Slots)
	j.frozen = nil
	return nil
}

// job returns a job's state. The caller holds the lock.
func (a *Aggregator) job(id uint16) (*job, error) {
	if a.closed {
		return nil, aggregator.ErrClosed
	}
	j := a.jobs[id]
	if j == nil {
		return nil, fmt.Errorf("job %d: %w", id, aggregator.ErrNoJob)
	}
	return j, nil
}
