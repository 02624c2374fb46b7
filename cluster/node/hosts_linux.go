// SPDX-License-Identifier: Apache-2.0

package node

import (
	"maps"
	"slices"
	"sync"

	"github.com/libra-ina/libra/aggregator"
)

// hosts is a data plane that tracks the hosts of its jobs: their senders, and their servers, which
// [hosts.setServers] sets.
type hosts struct {
	aggregator.Plane
	// follow starts tracking a host, until release is called.
	follow func(mac [6]byte) (release func())

	mu   sync.Mutex
	jobs map[uint16]*jobHosts
}

// jobHosts contains the functions that release the hosts of a job.
type jobHosts struct {
	servers []func()
	senders map[uint16]func()
}

func newHosts(p aggregator.Plane, follow func(mac [6]byte) (release func())) *hosts {
	return &hosts{Plane: p, follow: follow, jobs: make(map[uint16]*jobHosts)}
}

// setServers sets the hosts of a job's servers, replacing the previous ones.
func (h *hosts) setServers(job uint16, servers [][6]byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	j := h.jobs[job]
	if j == nil { // the job has ended already
		return
	}
	before := j.servers
	j.servers = nil
	for _, mac := range servers {
		j.servers = append(j.servers, h.follow(mac))
	}
	for _, release := range before {
		release()
	}
}

// AddJob implements [aggregator.Plane].
func (h *hosts) AddJob(cfg aggregator.JobConfig) error {
	if err := h.Plane.AddJob(cfg); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.jobs[cfg.ID] = &jobHosts{senders: make(map[uint16]func())}
	return nil
}

// RemoveJob implements [aggregator.Plane].
func (h *hosts) RemoveJob(id uint16) error {
	h.mu.Lock()
	if j := h.jobs[id]; j != nil {
		delete(h.jobs, id)
		for _, release := range slices.AppendSeq(j.servers, maps.Values(j.senders)) {
			release()
		}
	}
	h.mu.Unlock()
	return h.Plane.RemoveJob(id)
}

// AddSender implements [aggregator.Plane].
func (h *hosts) AddSender(job uint16, s aggregator.SenderConfig) error {
	if err := h.Plane.AddSender(job, s); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if j := h.jobs[job]; j != nil { // otherwise the job has ended already
		j.senders[s.ID] = h.follow(s.MAC)
	}
	return nil
}

// RemoveSender implements [aggregator.Plane].
func (h *hosts) RemoveSender(job, sender uint16) error {
	h.mu.Lock()
	if j := h.jobs[job]; j != nil && j.senders[sender] != nil {
		j.senders[sender]()
		delete(j.senders, sender)
	}
	h.mu.Unlock()
	return h.Plane.RemoveSender(job, sender)
}
