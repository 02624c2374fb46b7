// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/wire"
)

// WorkerConfig describes a worker's endpoint.
type WorkerConfig struct {
	// Link carries the frames. A worker that NewWorker returned owns it and
	// closes it.
	Link link.Link

	// Job and Sender are what the worker is admitted as, at the aggregator and
	// at the server.
	Job, Sender uint16
	// AggregatorEpoch and ServerEpoch are the epochs of the two admissions.
	// They stand in the frames of the two flows, and only answers that carry
	// them are taken. A worker that restarts must be admitted anew and gets
	// other epochs, because its sequence numbers begin anew. The first is needed
	// if there is a hot set.
	AggregatorEpoch, ServerEpoch uint16

	// HotSet has the rows that go to the aggregator. Nil sends every row to the
	// server.
	HotSet *packer.HotSet
	// Dim is the number of gradients of a row. 0 takes the hot set's.
	Dim int
	// Layout and Stripes describe the hot frames that the aggregator takes, as
	// learnt at admission. The zero values are lane-aligned frames of one
	// stripe, which every aggregator takes.
	Layout  packer.Layout
	Stripes int

	// Mode, Arithmetic, Exp and Workers are the job's, as learnt at admission;
	// see aggregator.JobConfig. In [aggregator.Sync] mode Stripes must be what
	// the job has, because it decides what a group is.
	Mode       aggregator.Mode
	Arithmetic aggregator.Arithmetic
	Exp        int
	Workers    int
	// Negotiate makes Reduce negotiate the scale of each iteration. Otherwise
	// it is the one of Exp. It needs fixed arithmetic and is the same for all
	// workers of the job.
	Negotiate bool
	// RoundLimit is how long Reduce and NegotiateScale wait without any
	// result for other workers. 0 takes Flow.Silence.
	RoundLimit time.Duration

	// Aggregator and Server are the peers' addresses. An Ethernet address that
	// is left zero is resolved where the link needs one. The aggregator is
	// needed if there is a hot set.
	Aggregator, Server wire.Endpoint
	// MoreServers are those beside Server, which has the index 0, in the order of their indices. All workers must have
	// the same ones and the same hot set: which rows are whose depends on them ([packer.Split]).
	MoreServers []ServerPeer

	// Flow holds the window, the timeouts and the limit of silence of each of
	// the flows. Where Size is 0, it is the link's Window.
	Flow retransmit.Config

	// Look is the longest time to look for answers before sleeping, while frames are unanswered; a look leaves the
	// processor to others, and there are fewer where they are in vain. 0 means [DefaultLook], a negative value to sleep at
	// once. With a [Feed], that decides.
	Look time.Duration
}

// ServerPeer is a parameter server as a worker knows it: its address and the epoch of the admission there.
type ServerPeer struct {
	At    wire.Endpoint
	Epoch uint16
}

// servers lists the parameter servers by index.
func (cfg *WorkerConfig) servers() []ServerPeer {
	return append([]ServerPeer{{cfg.Server, cfg.ServerEpoch}}, cfg.MoreServers...)
}

// checkAddresses refuses peers that have the same address, since answers are told apart by it.
func (cfg *WorkerConfig) checkAddresses() error {
	owner := map[netip.AddrPort]string{}
	if cfg.HotSet != nil {
		owner[seen(cfg.Aggregator.AddrPort())] = "aggregator"
	}
	for i, s := range cfg.servers() {
		role, at := serverRole(i, 1+len(cfg.MoreServers)), seen(s.At.AddrPort())
		if other := owner[at]; other != "" {
			return fmt.Errorf("%w: %s and %s have the same address %v", ErrConfig, other, role, s.At)
		}
		owner[at] = role
	}
	return nil
}

// seen is how frames from an address show it: an IPv4 address as such, and none with a zone.
func seen(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}

// serverRole is what errors call a server.
func serverRole(index, servers int) string {
	if servers == 1 {
		return "parameter server"
	}
	return fmt.Sprintf("parameter server %d of %d (by index, from 0)", index, servers)
}

// jobOf returns what a worker knows of its job, checked and with defaults
// filled in.
func jobOf(cfg WorkerConfig) (aggregator.JobConfig, error) {
	job := aggregator.JobConfig{
		Mode: cfg.Mode, Arithmetic: cfg.Arithmetic, Exp: cfg.Exp, Workers: cfg.Workers, MaxStripes: cfg.Stripes, Slots: 1,
	}
	if cfg.HotSet != nil {
		job.Slots = max(1, cfg.HotSet.Slots())
	}
	job, err := job.Complete()
	switch {
	case err != nil:
		return job, fmt.Errorf("%w: %w", ErrConfig, err)
	case job.Workers > 0 && (cfg.HotSet == nil || cfg.HotSet.Len() == 0):
		return job, fmt.Errorf("%w: rounds of %d workers without a hot set", ErrConfig, job.Workers)
	case job.Mode == aggregator.Sync && cfg.Layout != packer.LaneAligned:
		return job, fmt.Errorf("%w: %v frames in %v mode", ErrConfig, cfg.Layout, job.Mode)
	case cfg.Negotiate && (job.Mode != aggregator.Sync || job.Arithmetic != aggregator.Fixed):
		return job, fmt.Errorf("%w: Negotiate with %v arithmetic in %v mode", ErrConfig, job.Arithmetic, job.Mode)
	}
	return job, nil
}
