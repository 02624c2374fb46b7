// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"errors"
	"fmt"
	"sync"

	"github.com/cilium/ebpf"

	"github.com/libra-ina/libra/aggregator"
)

// place holds the job of one job id, if there is one. It has its own locks, so that tenants do not
// wait for each other, and three of them, so that a job's harvests and counters do not wait for the
// admission and removal of senders. They are taken in this order.
type place struct {
	// admission is held by calls that change the job or its senders, which may
	// wait for an RCU grace period: 8 to 50 ms.
	admission sync.Mutex
	// harvest is held by calls that exchange and clear banks, which may wait for
	// a program that holds the job's lock.
	harvest sync.Mutex
	// mu guards the fields below and the job's senders. It is never held while waiting.
	mu     sync.Mutex
	closed bool
	job    *job // nil if there is none
}

// job is the loader's state of a job.
type job struct {
	aggregator.JobConfig
	senders  map[uint16]member // changed with admission and mu
	admitted int               // senders so far, including removed ones
	banks    [2]*bank          // the second is nil in mode acked
	current  int               // index of the bank that frames are added to, except during a swap
	swapping bool              // programs see the other bank as current, but one may still use this one
	frozen   *aggregator.Bank  // view of the other bank that Swap returned, nil once cleared
	groups   *ebpf.Map         // groups, for modes with rounds
	ports    *portSet          // ports, for jobs with rounds

	// departed has marks of senders that were withdrawn: for the bank of the next Swap, and for the
	// one after it. It is used with mu, and so swapping is changed with mu, too.
	departed [2]map[uint16]aggregator.Mark
}

// placeOf returns the place of a job id, or an error if the id is out of range.
func (a *Aggregator) placeOf(id uint16) (*place, error) {
	if id >= aggregator.MaxJobs {
		return nil, fmt.Errorf("job %d: %w", id, aggregator.ErrNoJob)
	}
	return &a.places[id], nil
}

// runningJob returns the job of a place. The caller holds admission or harvest, so that the job is
// not removed.
func (p *place) runningJob(id uint16) (*job, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lockedJob(id)
}

// lockedJob is runningJob for a caller that holds mu.
func (p *place) lockedJob(id uint16) (*job, error) {
	switch {
	case p.closed:
		return nil, aggregator.ErrClosed
	case p.job == nil:
		return nil, fmt.Errorf("job %d: %w", id, aggregator.ErrNoJob)
	}
	return p.job, nil
}

// setJob sets the job of a place. The caller holds admission.
func (p *place) setJob(j *job) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.job = j
}

// endJob removes the job from the place, when no harvest uses it any more. The caller holds
// admission.
func (p *place) endJob(id uint16) (*job, error) {
	p.harvest.Lock()
	defer p.harvest.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	j, err := p.lockedJob(id)
	p.job = nil
	return j, err
}

// closePlace ends the job, if there is one, and prevents new ones. The kernel keeps the maps that a
// running program uses, so unlike RemoveJob it need not wait.
func (p *place) closePlace() error {
	p.admission.Lock()
	defer p.admission.Unlock()
	p.harvest.Lock()
	defer p.harvest.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.job == nil {
		return nil
	}
	j := p.job
	p.job = nil
	return j.closeMaps()
}

// closeMaps releases the maps of createMaps.
func (j *job) closeMaps() error {
	return errors.Join(j.banks[0].unmapBank(), j.banks[1].unmapBank(), j.groups.Close(), j.ports.closeSet())
}
