// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"maps"
	"math"
	"slices"

	"github.com/libra-ina/libra/wire"
)

// debts are what workers have pushed to hot rows, less what receivers have applied of it, in units
// by rank. They need not know how a gradient travels: to the switch, or to the server when the
// switch is lost, once or twice.
type debts map[*process]map[int]int64

// payUnits records that a receiver applies units of a process.
func (d debts) payUnits(p *process, rank int, units int64) { d.oweUnits(p, rank, -units) }

func (d debts) oweUnits(p *process, rank int, units int64) {
	of := d[p]
	if of == nil {
		of = map[int]int64{}
		d[p] = of
	}
	if of[rank] += units; of[rank] == 0 {
		delete(of, rank)
	}
}

// recordPush records what a worker is about to push.
func (a *accounts) recordPush(p *process, keys []uint64, grads []float32) {
	a.c.Mu.Lock()
	defer a.c.Mu.Unlock()
	dim := a.cfg.Dim
	for i, key := range keys {
		row, hot := a.hot.Rank(key)
		for col := 0; hot && col < dim; col++ {
			units, err := a.format.FromBits(math.Float32bits(grads[i*dim+col]))
			if err != nil {
				a.c.Fail("%s pushes a gradient that no sum has room for: %v", p.Name(), err)
				return
			}
			a.owed.oweUnits(p, int(row)*dim+col, units)
		}
	}
}

// checkPaid checks that receivers have applied all that a worker has pushed to hot rows, and
// nothing twice. A server that has begun later knows nothing of what was pushed before.
func (a *accounts) checkPaid(p *process, event string) {
	if p.Dead() || p.serving != a.c.serving || len(a.owed[p]) == 0 || a.c.Over() {
		return
	}
	rank := slices.Min(slices.Collect(maps.Keys(a.owed[p])))
	a.c.Fail("%s %s, but of what it pushed to rank %d, %d units are not applied, or too many by that if negative; so are %d ranks",
		p.Name(), event, rank, a.owed[p][rank], len(a.owed[p]))
}

// recordSteps records after how many steps a worker has flushed its frames. One that has settled,
// and names no instance therefore, has sent the server all that the switch took with it.
func (a *accounts) recordSteps(p *process, steps, instance uint64) {
	a.c.Mu.Lock()
	defer a.c.Mu.Unlock()
	a.reporter[p.role] = p
	if a.store != nil && a.store.fenced && instance == 0 {
		a.settleWorker(p)
	}
	for _, e := range a.sent[p] {
		if e.flushed && e.claim == 0 {
			e.claim = steps
		}
	}
}

// fenceInstance records that a server takes no more harvests: hot frames that are in none are sent
// as rows.
func (a *accounts) fenceInstance(p *process) {
	s := a.c
	s.Mu.Lock()
	defer s.Mu.Unlock()
	st := a.store
	if p.Dead() || st == nil || st.of != p {
		return
	}
	a.takeHarvest()
	st.fenced, st.taken, st.settled = true, map[*process][]*entry{}, map[*process]bool{}
	s.result.Fences++
	s.Tell("%s goes on without the aggregator\n", p.Name())
	lost := func(e *entry) bool {
		return isAggregator(e.id.to.Name()) && !slices.Contains(st.pending, e) && !st.holdsFrame(e)
	}
	for p, sent := range a.sent {
		for _, e := range sent {
			if !lost(e) || !e.applied {
				continue
			}
			if p.ended && p.err == nil && !p.Dead() {
				s.Fail("%s has finished, and the switch takes its frame %d with it", p.Name(), e.id.seq)
			}
			a.takeBack(e)
		}
		a.sent[p] = slices.DeleteFunc(sent, lost)
	}
	maps.DeleteFunc(a.frames, func(_ frameID, e *entry) bool { return lost(e) })
	a.order = slices.DeleteFunc(a.order, lost)
	a.plane, a.next = a.next, nil
}

// recordSettled records that a worker tells the server that it has settled.
func (a *accounts) recordSettled(p *process) {
	a.c.Mu.Lock()
	defer a.c.Mu.Unlock()
	a.settleWorker(p)
}

// beginInstance records that a server takes the harvests of another instance of the job. All
// workers have settled, but for those that the server has given up, and that may not know it yet.
func (a *accounts) beginInstance(p *process) {
	s := a.c
	s.Mu.Lock()
	defer s.Mu.Unlock()
	st := a.store
	if p.Dead() || st == nil || st.of != p {
		return
	}
	st.fenced = false
	s.result.Moves++
	s.Tell("%s goes on at an aggregator again\n", p.Name())
}

// settleWorker records that the server has all that the lost switch took with it of a worker.
func (a *accounts) settleWorker(p *process) {
	if a.store == nil || a.store.settled == nil || a.store.settled[p] {
		return
	}
	a.store.settled[p] = true
	for _, e := range a.sent[p] { // the call is repeated, without another flush
		e.flushed = e.flushed || e.loose && e.applied
	}
}

// takeBack records that a frame which the switch has applied is lost there.
func (a *accounts) takeBack(e *entry) {
	st, zero := a.store, true
	h, err := wire.ParseHeader(e.payload)
	if err == nil {
		err = hotPairs(e.payload, h, func(rank int, bits uint32) {
			zero = zero && bits<<1 == 0
			if units, err := a.format.FromBits(bits); err == nil {
				a.owed.oweUnits(e.from, rank, units)
				a.c.result.Taken++
			}
		})
	}
	if err != nil {
		a.c.Fail("worker %d has sent %v", e.worker, err)
	}
	if !zero { // otherwise there is nothing to send
		st.taken[e.from] = append(st.taken[e.from], e)
	}
}

// checkTaken checks that the weights of a commit have the frames that the lost switch took with it,
// if a checkpoint counts their steps: each is at least one frame with hot rows to the server. The
// steps of a worker that has ended before it settled are not counted; another process of it takes
// and reports them.
func (a *accounts) checkTaken(st *storeAccount, version int, stepsOf func(worker uint16) uint64) {
	for p, taken := range st.taken {
		if !st.settled[p] && a.reporter[p.role] != p {
			continue
		}
		var counted, sent int
		for _, e := range taken {
			if e.claim > 0 && e.claim <= stepsOf(e.worker) {
				counted++
			}
		}
		for _, e := range a.sent[p] {
			if e.loose && st.holdsAt(e, version) {
				sent++
			}
		}
		if sent < counted {
			a.c.Fail("a checkpoint counts the steps of %d frames of %s that the switch took with it, but its weights have only %d with hot rows",
				counted, p.Name(), sent)
		}
	}
}
