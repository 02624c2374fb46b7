// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"time"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/transport"
)

// Options selects a life.
type Options struct {
	// Seed decides everything that Kinds allows.
	Seed uint64 `json:"seed"`
	// Kinds are the kinds of trouble of the life.
	Kinds Kinds `json:"kinds"`
	// Cut makes the life smaller than the seed's.
	Cut Cut `json:"cut"`
	// Trace gets a line for each step and each frame. Nil: none.
	Trace io.Writer `json:"-"`

	fault fault
}

// Result is the summary of a life.
type Result struct {
	Lives     int           `json:"lives"`
	Steps     int64         `json:"steps"`         // turns of goroutines and events
	Virtual   time.Duration `json:"virtual_ns"`    // duration of the life in virtual time
	Digest    uint64        `json:"digest,string"` // of the trace
	Workers   int           `json:"workers"`       // lives of workers
	Crashes   int           `json:"crashes"`       // crashes of workers
	Evictions int           `json:"evictions"`
	Pauses    int           `json:"pauses"`
	Cancelled int           `json:"cancelled"` // calls that callers gave up
	Short     int           `json:"short"`     // calls of links that did less than they could
	Calls     int           `json:"calls"`
	Pushes    int           `json:"pushes"`
	Applied   int           `json:"applied"` // frames, once each
	Harvests  int           `json:"harvests"`
	Renumbers int           `json:"renumbers"` // renumberings of the store's rows
	ByNumber  int           `json:"by_number"` // frames with row numbers, once each
	Traffic   Traffic       `json:"traffic"`
}

// Run runs one life in a bubble of testing/synctest, and returns its result. An error is a
// [Violation], or the simulation's own.
func Run(in Bubble, o Options) (r Result, err error) {
	Workers.named(o, func() { in(func() { r, err = live(o) }) })
	return r, err
}

func live(o Options) (Result, error) {
	s := &sim{options: o, out: o.Trace, digest: newDigest(), began: time.Now(), kicked: make(chan struct{}, 1)}
	s.plan = s.newPlan(s.random(streamPlan))
	s.schedule, s.netRand = s.random(streamSchedule), s.random(streamNetwork)
	s.trace("seed %d: %+v\n", o.Seed, s.plan)
	if err := s.setUp(); err != nil {
		return s.result, err
	}
	s.stall()
	s.trouble()
	harvester := s.newActor("harvester", nil)
	harvester.start(func() { s.harvests(harvester) })
	s.run(func() bool { return harvester.gone && len(s.events) == 0 })
	s.check()
	s.end()
	s.result.Lives = 1
	s.result.Steps, s.result.Virtual, s.result.Digest = s.step, time.Since(s.began), s.digest.Sum64()
	s.result.Applied, s.result.Traffic = s.ledger.applied, s.net.count
	return s.result, s.failure
}

// setUp starts server, aggregator and workers.
func (s *sim) setUp() (err error) {
	p := &s.plan
	s.net = &network{s: s, hosts: map[netip.AddrPort]*host{}, cut: map[[2]*host]int{}, bursts: map[[2]*host]int{}}
	s.ledger = newLedger(s)
	s.switched = s.newHost("aggregator", "10.0.0.2:7000")
	if s.hot, err = packer.NewHotSet(p.dim, s.ledger.keys[:p.hot], nil, packer.Meta{}); err != nil {
		return err
	}
	if err = s.startServers(); err != nil {
		return err
	}
	for i, key := range s.ledger.keys {
		row := make([]float32, p.dim)
		s.servers[0].store.Read([]uint64{key}, row)
		copy(s.ledger.weights[i*p.dim:], row)
		s.ledger.history[i] = []version{{-1, row}}
	}
	if s.model, err = aggregator.NewModel(aggregator.Config{}); err != nil {
		return err
	}
	if err = s.model.AddJob(aggregator.JobConfig{ID: job, Epoch: s.newEpoch(), Exp: ps.DefaultExp, Slots: s.hot.Slots(), MaxStripes: s.plan.stripes}); err != nil {
		return err
	}
	for i := range s.ledger.banks { // the only way to get their addresses
		bank, err := s.model.Swap(job)
		if err != nil {
			return err
		}
		s.ledger.banks[i] = bank.Slots
		if err := s.model.Clear(bank); err != nil {
			return err
		}
	}
	l := s.open(s.switched)
	if s.plane, err = transport.NewAggregatorServer(transport.AggregatorConfig{Link: l, Model: s.model, Gate: l.Enter}); err != nil {
		return err
	}
	for i := range p.workers {
		w := &worker{s: s, sender: uint16(i + 1), left: p.calls * p.callers, rng: s.random(streamCaller + uint64(i+1)<<32)}
		w.host = s.newHost(fmt.Sprintf("worker %d", i+1), fmt.Sprintf("10.0.1.%d:7000", i+1))
		w.act = s.newActor("main of "+w.host.name, nil)
		s.workers = append(s.workers, w)
		w.act.start(w.main)
	}
	return nil
}

// trouble plans the trouble, and its end.
func (s *sim) trouble() {
	p, rng := &s.plan, s.random(streamTrouble)
	hosts := s.peers()
	for _, w := range s.workers {
		hosts = append(hosts, w.host)
	}
	span := int64(p.trouble)
	for n := range 2 + rng.IntN(most-2) {
		// As in carry, the number of draws is always the same.
		at, lasts := time.Duration(rng.Int64N(span)), time.Duration(rng.Int64N(span/4))
		a, b := hosts[rng.IntN(len(hosts))], hosts[rng.IntN(len(hosts))]
		w, where := s.workers[rng.IntN(len(s.workers))], rng.IntN(3)
		kind := [...]Kinds{Partition, Pause, Crash, Evict}[rng.IntN(4)]
		if p.kinds&kind == 0 || slices.Contains(s.options.Cut.Without, n) {
			continue
		}
		s.after(at, func() {
			if s.healed {
				return
			}
			s.trace("%9d %v of %s and %s, or worker %d\n", time.Since(s.began).Microseconds(), kind, a.name, b.name, w.sender)
			switch kind {
			case Partition:
				s.net.cut[[2]*host{a, b}]++
				s.after(lasts, func() { s.net.cut[[2]*host{a, b}]-- })
			case Pause:
				s.result.Pauses++
				a.pause()
				s.after(lasts, a.resume)
			case Crash:
				s.crash(w)
			case Evict:
				s.evict(w, where)
			}
		})
	}
	s.after(p.trouble, func() {
		s.healed, s.healedAt = true, time.Now()
		clear(s.net.cut)
		for _, h := range hosts {
			h.resume()
		}
	})
}

// patience is how long after the trouble a worker may still give up: the limit of silence, which
// may have begun before.
func (s *sim) patience() time.Duration {
	if s.plan.flow.Silence > 0 {
		return s.plan.flow.Silence
	}
	return 10 * time.Second
}

// check checks the final state after all calls.
func (s *sim) check() {
	if s.failure != nil {
		return
	}
	l := s.ledger
	for _, bank := range l.banks {
		for rank, n := range bank {
			if n != 0 {
				s.fail("after the last harvest, a bank holds %d units of rank %d", n, rank)
			}
		}
	}
	s.ledger.balance()
	s.frugal()
	for _, h := range s.peers() {
		if n := h.link.held(); n != 0 {
			s.fail("%s holds %d buffers at its end", h.name, n)
		}
	}
	for _, f := range l.frames.order {
		if f.push != nil {
			f.push.life.measure(f.push) // a push that was given up must not be sent later
		}
		if f.push != nil && f.push.accepted && !f.push.failed && !f.applied && !f.renamed() && !f.push.life.crashed {
			s.fail("frame %d of sender %d was accepted, and is neither applied nor reported", f.id.seq, f.id.sender)
		}
	}
	for _, v := range s.servers {
		if err := errors.Join(s.plane.Err(), v.ps.Err()); err != nil {
			s.fail("a server has ended: %v", err)
		}
	}
}

// Add adds the summary of another life.
func (r *Result) Add(o Result) {
	r.Lives += o.Lives
	r.Steps += o.Steps
	r.Virtual += o.Virtual
	r.Digest ^= o.Digest
	r.Workers += o.Workers
	r.Crashes += o.Crashes
	r.Evictions += o.Evictions
	r.Pauses += o.Pauses
	r.Cancelled += o.Cancelled
	r.Short += o.Short
	r.Calls += o.Calls
	r.Pushes += o.Pushes
	r.Applied += o.Applied
	r.Harvests += o.Harvests
	r.Renumbers += o.Renumbers
	r.ByNumber += o.ByNumber
	r.Traffic.add(o.Traffic)
}
