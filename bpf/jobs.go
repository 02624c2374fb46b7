//go:build linux

package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/wire"
)

// AddJob implements [aggregator.Plane]. A job takes 1 MiB of kernel memory,
// whatever its number of slots, and with rounds at most 50 KiB more.
func (a *Aggregator) AddJob(cfg aggregator.JobConfig) (err error) {
	cfg, err = cfg.Complete()
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return aggregator.ErrClosed
	}
	if a.jobs[cfg.ID] != nil {
		return fmt.Errorf("job %d: %w", cfg.ID, aggregator.ErrJobExists)
	}
	j := &job{JobConfig: cfg, senders: make(map[uint16]aggregator.SenderConfig)}
	err = a.createMaps(j)
	if err == nil {
		err = a.startJob(j)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("bpf: job %d: %w", cfg.ID, explain(err)), j.close())
	}
	a.jobs[cfg.ID] = j
	return nil
}

// createMaps creates what is the job's own.
func (a *Aggregator) createMaps(j *job) (err error) {
	if j.Arithmetic == aggregator.LUT {
		if err := a.fillTables(); err != nil {
			return err
		}
	}
	for i := range j.banks {
		if j.banks[i], err = newBank(a.inner.bank); err != nil {
			return err
		}
	}
	if j.Mode == aggregator.Sync {
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

// close releases what createMaps has created.
func (j *job) close() error {
	return errors.Join(j.banks[0].close(), j.banks[1].close(), j.groups.Close(), j.ports.close())
}

// startJob makes the program see a job. The job's entry comes last: the
// program drops the frames of a job without banks.
func (a *Aggregator) startJob(j *job) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, a.removeMaps(j.ID))
		}
	}()
	for i, b := range j.banks {
		if err := a.objects.Banks.Put(bankKey(j.ID, i), b.m); err != nil {
			return fmt.Errorf("install bank: %w", err)
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
	a.table.start(j.ID, aggregateJob{
		Slots:      uint32(j.Slots),
		MaxStripes: uint32(j.MaxStripes),
		Exp:        int32(j.Exp),
		Mode:       uint8(j.Mode),
		Layouts:    uint8(j.Layouts),
		Arithmetic: uint8(j.Arithmetic),
		Workers:    uint8(j.Workers),
		BelowLimit: belowLimit(j.JobConfig),
		BelowSlots: belowSlots(j.Slots),
	})
	return nil
}

// bankKey is the place of a bank in the program's map of banks.
func bankKey(id uint16, bank int) uint32 { return uint32(id)*2 + uint32(bank) }

// removeMaps takes what is the job's own out of the program's reach. Updating a
// map of maps returns only when no program runs that may have seen the old entry
// (maybe_wait_bpf_programs in the kernel's kernel/bpf/syscall.c, since Linux
// 4.20).
func (a *Aggregator) removeMaps(id uint16) error {
	errs := []error{
		a.objects.Banks.Delete(bankKey(id, 0)),
		a.objects.Banks.Delete(bankKey(id, 1)),
		a.objects.Groups.Delete(uint32(id)),
		a.objects.PortSets.Delete(uint32(id)),
	}
	return errors.Join(slices.DeleteFunc(errs, func(err error) bool {
		return errors.Is(err, ebpf.ErrKeyNotExist)
	})...)
}

// belowLimit returns below_limit of struct job in maps.h.
func belowLimit(c aggregator.JobConfig) uint64 {
	limit := 0 // of the biased exponent
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
// away its maps comes last, because that call returns only when no program
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
	errs = append(errs, a.removeMaps(id), j.close())
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
	if j.Workers != 0 && j.admitted == j.Workers {
		return fmt.Errorf("job %d: %w: sender %d: all %d workers have been admitted",
			id, aggregator.ErrTooManySenders, s.ID, j.Workers)
	}
	if err := j.CheckSender(s); err != nil {
		return err
	}
	ip := s.IP.As4()
	if s.Port == 0 {
		s.Port = a.port
	}
	value := aggregateSender{
		Ip: binary.NativeEndian.Uint32(ip[:]), Port: networkOrder(s.Port),
		Epoch: networkOrder(s.Epoch), Position: uint16(j.admitted),
	}
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
	j.senders[s.ID] = s
	if err := a.updatePorts(j); err != nil {
		delete(j.senders, s.ID)
		return errors.Join(err, a.withdraw(j, s.ID))
	}
	j.admitted++
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
	return errors.Join(a.withdraw(j, sender), a.updatePorts(j))
}

// withdraw makes the program refuse further frames of a sender. The next sender
// may get the same memory at once, and a program that still runs could write its
// duplicate filter. So it waits for programs, by installing the current bank
// again; see removeMaps.
func (a *Aggregator) withdraw(j *job, sender uint16) error {
	return errors.Join(
		a.objects.Senders.Delete(aggregateSenderKey{Job: j.ID, Sender: sender}),
		a.objects.Banks.Put(bankKey(j.ID, j.current), j.banks[j.current].m),
	)
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
	if j.Mode == aggregator.Sync {
		return nil, fmt.Errorf("job %d: %w: the sums of %v mode go to the workers", id, aggregator.ErrMode, j.Mode)
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
	if j.Mode == aggregator.Sync {
		return fmt.Errorf("job %d: %w: %v mode has no banks to clear", j.ID, aggregator.ErrMode, j.Mode)
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
