// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/aggregator"
)

// senderTable is the program's array of senders, mapped into this process, and the map in which the
// program looks up a sender's entry. An entry is reused for another admission only when no program
// runs that may have found it.
type senderTable struct {
	mem        []byte
	entries    []aggregateSender
	admissions *ebpf.Map

	mu   sync.Mutex
	free []uint32
}

func openSenderTable(o *aggregateObjects) (*senderTable, error) {
	const size = int(unsafe.Sizeof(aggregateSender{}))
	n := int(o.Senders.MaxEntries())
	mem, err := mapMemory(o.Senders, n*size)
	if err != nil {
		return nil, err
	}
	t := &senderTable{mem: mem, entries: unsafe.Slice((*aggregateSender)(unsafe.Pointer(&mem[0])), n),
		admissions: o.Admissions}
	for i := range n {
		t.free = append(t.free, uint32(n-1-i))
	}
	return t, nil
}

func (t *senderTable) unmapTable() error { return unix.Munmap(t.mem) }

// admitSender gives a sender an entry and makes it visible to the program.
func (t *senderTable) admitSender(value aggregateSender) (index uint32, err error) {
	t.mu.Lock()
	last := len(t.free) - 1
	if last >= 0 {
		index, t.free = t.free[last], t.free[:last]
	}
	t.mu.Unlock()
	if last < 0 {
		return 0, fmt.Errorf("%w: all jobs together may have %d", aggregator.ErrTooManySenders, len(t.entries))
	}
	t.entries[index] = value
	if err := t.admissions.Update(value.Key, index, ebpf.UpdateNoExist); err != nil {
		t.releaseEntries(index)
		return 0, err
	}
	return index, nil
}

// withdrawSender makes the program refuse further frames of a sender. Running programs may still
// use its entry: wait for them before release.
func (t *senderTable) withdrawSender(job, sender uint16) error {
	return t.admissions.Delete(aggregateSenderKey{Job: job, Sender: sender})
}

// releaseEntries makes entries available to other senders.
func (t *senderTable) releaseEntries(indices ...uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.free = append(t.free, indices...)
}

// member is an admitted sender of a job.
type member struct {
	aggregator.SenderConfig
	index uint32 // index in the sender table
}

// withdrawMember makes the program refuse further frames of a job's sender, and waits for running
// programs by installing a bank again; see removeMaps. Then the sender's mark is its last one, and
// another sender may get the entry. The caller holds admission.
func (a *Aggregator) withdrawMember(p *place, j *job, m member) error {
	a.awaitPrograms(j.ID)
	err := errors.Join(
		a.senders.withdrawSender(j.ID, m.ID),
		a.objects.Banks.Put(bankKey(j.ID, 0), j.banks[0].m),
	)
	a.depart(p, j, m)
	if err != nil {
		return fmt.Errorf("bpf: job %d: withdraw sender %d: %w", j.ID, m.ID, err)
	}
	a.senders.releaseEntries(m.index)
	return nil
}
