// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/simulation/world"
	"github.com/libra-ina/libra/transport"
	"github.com/libra-ina/libra/transport/reducer"
	"github.com/libra-ina/libra/wire"
)

// RunReducers runs a life of reducers in a bubble of testing/synctest, and returns its result. An
// error is a [Violation], or the simulation's own.
func RunReducers(in Bubble, o Options) (r ReducersResult, err error) {
	Reducers.labelled(o, func() { in(func() { r, err = liveReducers(o) }) })
	return r, err
}

// reducersLife is the life of workers that add small vectors by an aggregator: each is a program
// that calls a reducer.Reducer. This package admits them.
type reducersLife struct {
	*world.World

	options  Options
	plan     plan
	shape    reducer.Shape
	ops      int
	floats   bool
	switched *world.Host
	model    *aggregator.Model
	workers  []*summing
	members  []uint16 // by position
	faults   aggregatorFaults
	result   ReducersResult
}

// summing is one of the workers.
type summing struct {
	life    *reducersLife
	id      uint16
	host    *world.Host
	link    *world.Link
	act     *world.Actor // its program, where that does not call the link
	started int          // operations
	ended   bool         // it has all results
	failed  error

	deviates int    // draw of which it makes another call than the others, from 1; 0: none
	frames   []int  // that it has filled: the operation after their last
	newest   uint32 // number of a contribution that it has sent
}

// reducersLimit is how long reducers wait for a worker that is dead. All trouble is shorter.
const reducersLimit = 5 * time.Second

func liveReducers(o Options) (ReducersResult, error) {
	s := &reducersLife{
		options: o, plan: newPlan(world.Seed(o.Seed).Stream(streamPlan), o, Reducers), faults: newAggregatorFaults(),
	}
	s.drawShape()
	conditions := s.plan.worldConditions()
	conditions.Window, conditions.Payload = max(s.plan.window, s.shape.InFlight), wire.HotLen(s.shape.Stripes())
	conditions.Inbox = max(conditions.Inbox, 2)
	s.World = world.New(world.Options{
		Seed: world.Seed(o.Seed), Trace: o.Trace, Life: s, Bound: bound, Conditions: conditions,
	})
	s.Trace("seed %d: %+v, %d operations, %+v\n", o.Seed, s.shape, s.ops, s.plan)
	if err := s.setUp(); err != nil {
		return s.result, err
	}
	s.planTrouble()
	s.Run(func() bool { return s.allEnded() && s.Idle() })
	s.checkEnd()
	s.End()
	s.result.Lives = 1
	if s.shape.Acked {
		s.result.Acked = 1
	}
	s.result.Steps, s.result.Virtual, s.result.Digest = s.Step(), s.Elapsed(), s.Digest()
	s.result.Traffic, s.result.Short = s.Net.Traffic(), s.Short
	return s.result, violation(o, s.World)
}

// drawShape draws what the job is.
func (s *reducersLife) drawShape() {
	rng := s.options.named("reducers")
	s.shape = reducer.Shape{
		Workers: 1 + rng.IntN(5), Width: 1 + rng.IntN(30), InFlight: 1 + rng.IntN(6), Exp: gradExp,
	}
	s.ops, s.floats = 20+rng.IntN(150), rng.IntN(2) == 0
	s.shape.Acked = s.options.named("acked").IntN(2) == 0
	switch rng.IntN(12) {
	case 0:
		s.shape.Width = reducer.MaxWidth
	case 1:
		s.shape.InFlight = reducer.MaxInFlight
		s.ops = 600
	}
	if s.options.Cut.Workers > 0 {
		s.shape.Workers = min(s.shape.Workers, s.options.Cut.Workers)
	}
	s.ops = max(1, s.ops>>s.options.Cut.Halves)
}

// setUp starts the aggregator and the workers.
func (s *reducersLife) setUp() (err error) {
	job, err := reducer.Job[int32](s.shape)
	if s.floats {
		job, err = reducer.Job[float32](s.shape)
	}
	if err != nil {
		return err
	}
	job.ID, job.Epoch = 7, 77
	each := s.options.named("each").IntN(8) == 0 && !s.shape.Acked
	if s.model, err = aggregator.NewModel(aggregator.Config{AnswerEach: each}); err != nil {
		return err
	}
	if err := s.model.AddJob(job); err != nil {
		return err
	}
	s.switched = s.NewHost("aggregator", netip.MustParseAddrPort("10.0.0.2:7000"))
	l := s.Open(s.switched, s.switched.Name(), unwatched{})
	of := transport.AggregatorConfig{Link: l, Model: s.model, Gate: l.Enter}
	if _, err := transport.NewAggregatorServer(of); err != nil {
		return err
	}
	for i := range s.shape.Workers {
		w := &summing{life: s, id: uint16(10 + i)}
		w.host = s.NewHost(fmt.Sprintf("worker %d", w.id), netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 1, byte(i + 1)}), framePort))
		s.workers = append(s.workers, w)
	}
	order := slices.Clone(s.workers)
	if rng := s.options.named("deviates"); rng.IntN(8) == 0 {
		s.workers[rng.IntN(len(s.workers))].deviates = 1 + rng.IntN(s.ops)
	}
	s.options.named("order").Shuffle(len(order), func(i, k int) { order[i], order[k] = order[k], order[i] })
	for _, w := range order {
		at := w.host.Endpoint()
		sender := aggregator.SenderConfig{ID: w.id, Epoch: job.Epoch, IP: at.IP, Port: at.Port}
		if err := s.model.AddSender(job.ID, sender); err != nil {
			return err
		}
		s.members = append(s.members, w.id)
	}
	for i, w := range s.workers {
		w.link = s.Open(w.host, w.host.Name(), s.watchLink(w))
		w.act = s.NewActor("program of "+w.host.Name(), w.host)
		cfg := reducer.Config{
			Link: w.link, Job: job.ID, Sender: w.id, Epoch: job.Epoch, Aggregator: s.switched.Endpoint(), Shape: s.shape,
			Limit: reducersLimit, Look: -1, Members: s.tellMembers,
		}
		own := s.options.random(streamCaller + uint64(i+1)<<32)
		w.act.Start(func() {
			if s.floats {
				w.failed = runReducer(w, cfg, own, func(n int32) float32 { return float32(n) * gradUnit })
			} else {
				w.failed = runReducer(w, cfg, own, func(n int32) int32 { return n })
			}
			w.ended = true
		})
	}
	return nil
}

// tellMembers is the list of the job's workers.
func (s *reducersLife) tellMembers(context.Context) ([]uint16, error) {
	if s.options.fault == misnames {
		return slices.Concat(s.members[1:], s.members[:1]), nil
	}
	return s.members, nil
}

// valueOf returns a worker's value of an operation, of 17 bits. One operation in eight is a
// barrier.
func valueOf(worker, op, lane int) int32 {
	n := uint32(worker+1)*0x9e3779b1 ^ uint32(op+1)*0x85ebca6b ^ uint32(lane+1)*0xc2b2ae35
	n ^= n >> 15
	n *= 0x2c1b3ce5
	return int32(n) >> 15
}

func isBarrier(op int) bool { return valueOf(-1, op, 0)%8 == 0 }

// checkAllStarted checks that no operation ends before all workers have begun it.
func (w *summing) checkAllStarted(op int) {
	for _, other := range w.life.workers {
		if other.started <= op {
			w.life.Fail("worker %d has the result of operation %d, which worker %d has not started", w.id, op, other.id)
		}
	}
}

func (s *reducersLife) allEnded() bool {
	return !slices.ContainsFunc(s.workers, func(w *summing) bool { return !w.ended })
}

// Collect implements [world.Life]: nothing happens behind the schedule's back.
func (s *reducersLife) Collect() {}

// Turned implements [world.Life].
func (s *reducersLife) Turned(*world.Host) {}

// Leaves implements [world.Life]. It may spoil what is sent.
func (s *reducersLife) Leaves(from, _ *world.Host, payload []byte, _ bool) {
	s.spoilSent(from, payload)
	if s.options.fault == spoilsSum && from != s.switched && len(payload) >= wire.HotLen(1) && payload[11]%16 == 15 {
		p := wire.StripeAt(payload, 0)
		p.SetBits(0, p.Bits(0)^1<<8)
	}
}

// unwatched is a watcher that looks at nothing.
type unwatched struct{}

func (unwatched) Sends(wire.Endpoint, []byte) {}
func (unwatched) Gets([]link.Packet, bool)    {}
func (unwatched) Answers([]link.Packet)       {}
func (unwatched) Closes([]link.Packet)        {}
