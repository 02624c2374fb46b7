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

// place is where a job may be: there is one for each job id. Its locks belong to
// one job, so that no tenant waits for another; and there are three of them, so
// that a job's harvests and counters do not wait for its senders to come and go.
// They are taken in this order.
type place struct {
	// admission is held by calls that change the job or its senders, which may
	// wait for an RCU grace period: 8 to 50 ms.
	admission sync.Mutex
	// harvest is held by calls that exchange and clear banks, which may wait for
	// a program that holds the job's lock.
	harvest sync.Mutex
	// mu guards the fields below and the job's senders. It is held for no wait.
	mu     sync.Mutex
	closed bool
	job    *job // nil: there is none
}

// job is what the loader keeps of a job.
type job struct {
	aggregator.JobConfig
	senders  map[uint16]member // changed with admission and mu
	admitted int               // senders so far, also those that were removed
	banks    [2]*bank
	current  int              // index of the bank that frames are added to, but while a swap is on
	swapping bool             // programs see the other bank as current, one may still use this one
	frozen   *aggregator.Bank // view of the other bank that Swap returned, nil once cleared
	groups   *ebpf.Map        // of Sync
	ports    *portSet         // of jobs with rounds
}

// place returns the place of a job id, or an error if there can be no such job.
func (a *Aggregator) place(id uint16) (*place, error) {
	if id >= aggregator.MaxJobs {
		return nil, fmt.Errorf("job %d: %w", id, aggregator.ErrNoJob)
	}
	return &a.places[id], nil
}

// running returns the job of a place. The caller holds admission or harvest, so
// that the job goes on.
func (p *place) running(id uint16) (*job, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.locked(id)
}

// locked is running for a caller that holds mu.
func (p *place) locked(id uint16) (*job, error) {
	switch {
	case p.closed:
		return nil, aggregator.ErrClosed
	case p.job == nil:
		return nil, fmt.Errorf("job %d: %w", id, aggregator.ErrNoJob)
	}
	return p.job, nil
}

// fill puts a job into the place. The caller holds admission.
func (p *place) fill(j *job) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.job = j
}

// end takes the job from the place, when no harvest uses it any more. The caller
// holds admission.
func (p *place) end(id uint16) (*job, error) {
	p.harvest.Lock()
	defer p.harvest.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	j, err := p.locked(id)
	p.job = nil
	return j, err
}

// close ends the job, if there is one, and lets no other begin. The kernel keeps
// what a program that still runs uses, so unlike RemoveJob this need not wait.
func (p *place) close() error {
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
	return j.close()
}

// close releases what createMaps has created.
func (j *job) close() error {
	return errors.Join(j.banks[0].close(), j.banks[1].close(), j.groups.Close(), j.ports.close())
}
