// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"fmt"
	"net/netip"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/simulation/world"
	"github.com/libra-ina/libra/transport"
	"github.com/libra-ina/libra/wire"
)

// Run runs one life in a bubble of testing/synctest, and returns its result. An error is a
// [Violation], or the simulation's own.
func Run(in Bubble, o Options) (r Result, err error) {
	Workers.labelled(o, func() { in(func() { r, err = live(o) }) })
	return r, err
}

// workersLife is the life of workers, which push to servers and an aggregator without the processes
// of a cluster: this package admits the workers and brings the harvests.
type workersLife struct {
	*world.World

	options Options
	plan    plan
	ledger  *ledger

	servers  []*server // by index
	switched *world.Host
	model    *aggregator.Model
	plane    *transport.AggregatorServer
	hot      *packer.HotSet
	rows     *hotRows // of hot
	workers  []*worker
	epochs   uint16 // given to admissions so far
	locked   bool   // an admission at a server is in progress
	repeated int    // frames of workers that were sent again
	result   Result
}

func live(o Options) (Result, error) {
	s := &workersLife{options: o, plan: newPlan(world.Seed(o.Seed).Stream(streamPlan), o, Workers)}
	s.World = world.New(world.Options{
		Seed: world.Seed(o.Seed), Trace: o.Trace, Life: s, Bound: bound, Conditions: s.plan.worldConditions(),
	})
	s.Trace("seed %d: %+v\n", o.Seed, s.plan)
	if err := s.setUp(); err != nil {
		return s.result, err
	}
	for _, w := range s.workers {
		w.startMain()
	}
	s.planStall()
	s.planTrouble()
	harvester := s.NewActor("harvester", nil)
	harvester.Start(func() { s.bringHarvests(harvester) })
	s.Run(func() bool { return harvester.Gone() && s.Idle() })
	s.checkEnd()
	s.End()
	s.result.Lives = 1
	s.result.Steps, s.result.Virtual, s.result.Digest = s.Step(), s.Elapsed(), s.Digest()
	s.result.Applied, s.result.Traffic, s.result.Short = s.ledger.applied, s.Net.Traffic(), s.Short
	return s.result, violation(o, s.World)
}

// Collect implements [world.Life]: nothing happens behind the schedule's back.
func (s *workersLife) Collect() {}

// Turned compares the sums after a turn that may have changed them.
func (s *workersLife) Turned(at *world.Host) {
	if !s.Failed() && (at == nil || s.isPeer(at)) {
		s.ledger.compareSums()
	}
}

// Leaves follows a frame into the network.
func (s *workersLife) Leaves(from, to *world.Host, payload []byte, _ bool) {
	if h, err := wire.ParseHeader(payload); err == nil && h.Flags&wire.FlagRetx != 0 && !s.isPeer(from) {
		s.repeated++
	}
	s.ledger.recordSent(from, to, payload)
}

// openReceiver gives a server or the aggregator a link, whose frames the ledger follows.
func (s *workersLife) openReceiver(h *world.Host) *world.Link {
	return s.Open(h, h.Name(), receiver{s.ledger, h})
}

// workersEnded reports whether all workers have made all their calls.
func (s *workersLife) workersEnded() bool {
	for _, w := range s.workers {
		if !w.act.Gone() {
			return false
		}
	}
	return true
}

// isCalm reports whether all workers have ended, and no frame is in flight.
func (s *workersLife) isCalm() bool {
	return s.workersEnded() && s.Idle() && s.unreadFrames() == 0
}

// setUp starts the servers and the aggregator, and makes the workers.
func (s *workersLife) setUp() (err error) {
	p := &s.plan
	s.rows = s.options.placeRows(p)
	s.ledger = newLedger(s)
	s.switched = s.NewHost("aggregator", netip.MustParseAddrPort("10.0.0.2:7000"))
	if s.hot, err = packer.NewHotSet(p.dim, s.rows.keys, nil, packer.Meta{}); err != nil {
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
	if err = s.model.AddJob(aggregator.JobConfig{
		ID: job, Epoch: s.newEpoch(), Exp: s.plan.exp, Slots: s.hot.Slots(), MaxStripes: s.plan.stripes,
	}); err != nil {
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
	l := s.openReceiver(s.switched)
	of := transport.AggregatorConfig{Link: l, Model: s.model, Gate: l.Enter}
	if s.plane, err = transport.NewAggregatorServer(of); err != nil {
		return err
	}
	for i := range p.workers {
		w := &worker{
			life: s, sender: uint16(i + 1), left: p.calls * p.callers,
			rng: s.options.random(streamCaller + uint64(i+1)<<32),
		}
		w.begin = w.startCallers
		w.host = s.NewHost(fmt.Sprintf("worker %d",
			i+1), netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 1, byte(i + 1)}), framePort))
		s.workers = append(s.workers, w)
	}
	return s.planWild()
}

// startMain starts the worker's goroutine.
func (w *worker) startMain() {
	w.act = w.life.NewActor("main of "+w.host.Name(), nil)
	w.act.Start(w.runSessions)
}
