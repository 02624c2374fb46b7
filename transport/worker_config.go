// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/codec"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/packer/share"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/wire"
)

// WorkerConfig describes a worker's endpoint.
type WorkerConfig struct {
	// Link carries the frames. The worker owns and closes it once NewWorker succeeds.
	Link link.Link

	// Job and Sender identify the worker at the aggregator and at the server.
	Job, Sender uint16
	// AggregatorEpoch and ServerEpoch are the epochs of the two admissions.
	// They are in the frames of the two flows, and answers of other epochs are
	// ignored. A worker that restarts must be admitted again, in other epochs,
	// because its sequence numbers start again. The first is needed if there is
	// a hot set.
	AggregatorEpoch, ServerEpoch uint16

	// HotSet holds the rows that go to the aggregator. Nil sends every row to the
	// server.
	HotSet *packer.HotSet
	// Shares divides the hot set among several jobs of aggregators, in combine mode: Jobs has these,
	// by the index of their shares, and AggregatorEpoch is not used. Nil means one with everything.
	// See [Worker.Divide].
	Shares *share.Division
	Jobs   []Share
	// Dim is the number of gradients in a row. 0 means the hot set's.
	Dim int
	// Layout and Stripes describe the hot frames that the aggregator accepts, as
	// learnt at admission. The zero values mean lane-aligned frames of one
	// stripe, which every aggregator accepts.
	Layout  packer.Layout
	Stripes int

	// Replay is the size in bytes of the log of hot frames that the aggregator has acknowledged and of
	// which [Worker.Committed] has not said that the server has them. While it is full, pushes wait.
	// With it, the worker can go on without its aggregator ([Worker.Settle]). 0 means that it keeps
	// none.
	Replay int
	// LossNotice is how long the server may take to notice that the aggregator is lost. With Replay,
	// hot frames wait for so much longer than Flow.Silence, and at least for twice that.
	LossNotice time.Duration
	// LogFull, if not nil, gets a token, for which it should have room, while a push waits for room in
	// the log: a harvest, and the mark of it, make room.
	LogFull chan<- struct{}
	// NoAggregator means that the job has none now: hot rows go to server 0 until [Worker.Enter].
	NoAggregator bool

	// Mode, Arithmetic, Exp and Workers are the job's, as learnt at admission;
	// see aggregator.JobConfig. In [aggregator.Sync] mode Stripes must be the
	// job's, because it determines the groups.
	Mode       aggregator.Mode
	Arithmetic aggregator.Arithmetic
	Exp        int
	Workers    int
	// Negotiate makes Reduce negotiate the scale of each iteration instead of
	// using Exp. It needs fixed arithmetic and must be the same for all
	// workers of the job.
	Negotiate bool
	// Codec codes the gradients of cold rows, if it is not the zero value. The servers must have the
	// same.
	Codec codec.Config
	// NoWeights means that the servers keep no weights (ps.None), but add up gradients without
	// rounding. In a job in combine mode with exact arithmetic, hot rows that the aggregator would
	// round, or whose sums it refuses as out of range, then go to their server as cold rows.
	NoWeights bool
	// Vanish, if not nil, is called by the worker's goroutine when it has first counted
	// WorkerStats.Vanished, with a row and its gradient. It must not block.
	Vanish func(key uint64, gradient float32)
	// RoundLimit is how long Reduce and NegotiateScale wait without any
	// result. 0 means Flow.Silence.
	RoundLimit time.Duration

	// Aggregator and Server are the peers' addresses. A zero Ethernet address
	// is resolved where the link needs one. The aggregator is needed if there
	// is a hot set.
	Aggregator, Server wire.Endpoint
	// NoServer means that the job has no parameter server, but an owner that takes the harvests: then
	// there are only pushes of hot rows. Others, and pulls, fail with an error that is
	// [errors.ErrUnsupported]; that of a cold row has a method ColdKey, which returns its key.
	NoServer bool
	// MoreServers are the servers after Server, which has index 0, in the order of their indices. All
	// workers must have the same servers and hot set, which decide each row's server ([packer.Split]).
	MoreServers []Peer

	// Flow holds the window, the timeouts and the limit of silence of each flow. If Size is 0, it
	// is the link's Window.
	Flow retransmit.Config

	// Sample is the number of frames of which one is measured: a power of two, and that of the
	// servers, so that they measure the same frames; see [Worker.Latencies]. 0 measures none.
	Sample int

	// Look is the longest time to poll for answers before sleeping, while frames are unanswered.
	// Polling yields the processor to others, and is reduced while it finds nothing. 0 means
	// [endpoint.DefaultLook], a negative value no polling. With a [Feed], the feed decides.
	Look time.Duration
	// Gate is for simulations; see [endpoint.Config].
	Gate func()
}

// minReplay is the least size of a log.
const minReplay = 1 << 20

// Peer is a parameter server's or an aggregator's address, and the epoch of the admission there.
type Peer struct {
	At    wire.Endpoint
	Epoch uint16
}

// Share is the job of a share, the epoch of the admission to it, and its aggregator. The zero value
// of At is WorkerConfig.Aggregator.
type Share struct {
	Job, Epoch uint16
	At         wire.Endpoint
}

// shares lists the jobs at aggregators by the index of their shares.
func (cfg *WorkerConfig) shares() []Share {
	all := slices.Clone(cfg.Jobs)
	if all == nil {
		all = []Share{{Job: cfg.Job, Epoch: cfg.AggregatorEpoch}}
	}
	for i := range all {
		if all[i].At == (wire.Endpoint{}) {
			all[i].At = cfg.Aggregator
		}
	}
	return all
}

// checkJobs refuses two shares with one job, and another number of them than there are shares. A
// nil division is one share.
func checkJobs(shares *share.Division, jobs []Share) error {
	want := 1
	if shares != nil {
		want = shares.Len()
	}
	type place struct {
		job uint16
		at  netip.AddrPort
	}
	used := map[place]bool{}
	for _, s := range jobs {
		p := place{s.Job, seen(s.At.AddrPort())}
		if used[p] {
			return fmt.Errorf("%w: two shares have the job %d at %v", ErrConfig, s.Job, s.At)
		}
		used[p] = true
	}
	if len(used) != want {
		return fmt.Errorf("%w: %d jobs for %d shares", ErrConfig, len(used), want)
	}
	return nil
}

// checkShares refuses what only jobs with one share do.
func (cfg *WorkerConfig) checkShares() error {
	jobs := cfg.shares()
	if err := checkJobs(cfg.Shares, jobs); err != nil {
		return err
	}
	switch want := len(jobs); {
	case want == 1:
		return nil
	case cfg.Mode != aggregator.Combine:
		return fmt.Errorf("%w: %d shares in %v mode: only %v has several", ErrConfig, want, cfg.Mode, aggregator.Combine)
	case cfg.Replay != 0 || cfg.NoAggregator:
		return fmt.Errorf("%w: Replay or NoAggregator with %d shares, whose loss ends the worker", ErrConfig, want)
	}
	return nil
}

// servers lists the parameter servers by index.
func (cfg *WorkerConfig) servers() []Peer {
	if cfg.NoServer {
		return nil
	}
	return append([]Peer{{cfg.Server, cfg.ServerEpoch}}, cfg.MoreServers...)
}

// checkAddresses refuses peers with the same address, since the address identifies the peer of an
// answer.
func (cfg *WorkerConfig) checkAddresses() error {
	owner := map[netip.AddrPort]string{}
	if cfg.HotSet != nil && !cfg.NoAggregator {
		for _, s := range cfg.shares() {
			owner[seen(s.At.AddrPort())] = "aggregator"
		}
	}
	if cfg.NoServer && (cfg.Server != (wire.Endpoint{}) || len(cfg.MoreServers) > 0) {
		return fmt.Errorf("%w: WorkerConfig.NoServer, but Server or MoreServers is set", ErrConfig)
	}
	if cfg.NoServer && cfg.HotSet == nil {
		return fmt.Errorf("%w: WorkerConfig.NoServer without a hot set: nothing could be pushed", ErrConfig)
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

// seen returns an address as the source of received frames shows it: IPv4 unmapped, without a zone.
func seen(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}

// serverRole is the name of a server in errors.
func serverRole(index, servers int) string {
	if servers == 1 {
		return "parameter server"
	}
	return fmt.Sprintf("parameter server %d of %d (by index, from 0)", index, servers)
}

// jobOf returns the worker's part of its job's configuration, checked and with defaults.
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
	case job.Mode == aggregator.Acked:
		return job, fmt.Errorf("%w: %v mode, which package reducer has: use %v, whose sums are the same", ErrConfig, job.Mode,
			aggregator.Sync)
	case job.Workers > 0 && (cfg.HotSet == nil || cfg.HotSet.Len() == 0):
		return job, fmt.Errorf("%w: rounds of %d workers without a hot set", ErrConfig, job.Workers)
	case job.Mode == aggregator.Sync && cfg.Layout != packer.LaneAligned:
		return job, fmt.Errorf("%w: %v frames in %v mode", ErrConfig, cfg.Layout, job.Mode)
	case cfg.Mode == aggregator.Sync && (cfg.Replay != 0 || cfg.NoAggregator):
		return job, fmt.Errorf("%w: Replay or NoAggregator in %v mode, whose sums only the aggregator has", ErrConfig, job.Mode)
	case cfg.Replay != 0 && cfg.Replay < minReplay:
		return job, fmt.Errorf("%w: Replay of %d bytes, at least %d are needed", ErrConfig, cfg.Replay, minReplay)
	case cfg.Negotiate && (job.Mode != aggregator.Sync || job.Arithmetic != aggregator.Fixed):
		return job, fmt.Errorf("%w: Negotiate with %v arithmetic in %v mode", ErrConfig, job.Arithmetic, job.Mode)
	}
	return job, nil
}
