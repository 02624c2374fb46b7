// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"math"
	"slices"

	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/cluster/node"
	"github.com/libra-ina/libra/ps"
)

// stepBooks is the ledger of a life of agents: which pushes belong to which step, and what clients
// must be told.
//
// A push belongs to the step that the next BARRIER or REDUCE of its session ends, in the order of
// the ring. What a session has pushed when it ends belongs to no step that may be committed.
type stepBooks struct {
	l     *agentsLife
	dim   int
	index map[uint64]int // of keys

	ends map[stepID]agentproto.Code // OK or DROPPED, as the first party was told

	// weights are those after some number of steps, of all keys; only in jobs with steps and weights.
	weights map[uint64][]float32
	initial []float32 // of a new store

	fence fenceBook
	lost  map[int]int // agents that have ended, by the life of the server, and explain no step yet
}

// stepID is a step of one life of the server: after its restart, steps may come again.
type stepID struct {
	era  int
	step uint64
}

func newStepBooks(l *agentsLife) *stepBooks {
	b := &stepBooks{
		l: l, dim: l.plan.dim, index: map[uint64]int{}, ends: map[stepID]agentproto.Code{},
		weights: map[uint64][]float32{}, lost: map[int]int{},
	}
	for i, key := range l.of.keys {
		b.index[key] = i
	}
	cfg, err := node.StoreConfig(&l.cfg)
	if err == nil {
		var store *ps.Store
		if store, err = ps.New(cfg); err == nil {
			b.initial = make([]float32, len(l.of.keys)*b.dim)
			store.Read(l.of.keys, b.initial)
		}
	}
	if err != nil {
		panic(err) // drawConfig has checked it
	}
	return b
}

// openStore is called with the store of a server that starts.
func (b *stepBooks) openStore(p *agentRun, store *ps.Store) {
	b.fence = fenceBook{of: p, store: store}
	b.fence.number[0], b.fence.number[1] = store.LastHarvest()
	if !b.l.of.weights || !b.l.of.sync {
		return
	}
	clear(b.weights)
	now := make([]float32, len(b.initial))
	store.Read(b.l.of.keys, now)
	b.initial = now // of the step with which the server begins
}

// partyBegins notes the step that is due when a party comes: the first one after a server's start,
// with what its store has.
func (b *stepBooks) partyBegins(s *ring) {
	if len(b.weights) == 0 && s.era == b.l.serving {
		b.weights[s.next] = b.initial
	}
}

// entryAnswered is called with each completion.
func (b *stepBooks) entryAnswered(e *asked) {
	switch e.Op {
	case agentproto.Barrier, agentproto.Reduce:
		if e.c.Status == agentproto.OK || e.c.Status == agentproto.Dropped {
			b.endStep(e)
		}
	case agentproto.Push, agentproto.PushSums:
		b.checkPushed(e)
	case agentproto.Flush:
		b.checkFlushed(e)
	}
}

// expectedRefusal returns the status of a push that is refused for its contents, or OK.
func (b *stepBooks) expectedRefusal(e *asked) agentproto.Code {
	for _, x := range e.grads {
		switch {
		case e.Op == agentproto.PushSums:
			return agentproto.BadMode
		case x != x || math.IsInf(float64(x), 0):
			return agentproto.NotFinite
		case x == b.l.of.tooLarge():
			return agentproto.OutOfRange
		}
	}
	return agentproto.OK
}

// checkPushed checks the status of a push.
func (b *stepBooks) checkPushed(e *asked) {
	if want := b.expectedRefusal(e); want != agentproto.OK {
		if e.c.Status != want {
			b.l.Fail("%s: a push that is refused by %v: %+v", e.s.name, want, e.c)
		}
		return
	}
	b.checkStatus(e)
}

// checkStatus checks the status of an entry that nothing but trouble can refuse.
func (b *stepBooks) checkStatus(e *asked) {
	switch e.c.Status {
	case agentproto.OK:
	case agentproto.JobEnded, agentproto.AgentClosed, agentproto.Refused:
		b.l.Tell("%s: operation %d: %+v\n", e.s.name, e.Op, e.c)
		if b.l.happened == 0 {
			b.l.Fail("%s: operation %d: %+v, although nothing has happened", e.s.name, e.Op, e.c)
		}
	default:
		b.l.Fail("%s: operation %d: %+v", e.s.name, e.Op, e.c)
	}
}

// checkFlushed checks that a FLUSH reports the first push before it that failed, unless a FLUSH or
// REDUCE between them did.
func (b *stepBooks) checkFlushed(e *asked) {
	want, may := agentproto.OK, []agentproto.Code(nil)
search:
	for i := slices.Index(e.s.entries, e) - 1; i >= 0; i-- {
		switch one := e.s.entries[i]; one.Op {
		case agentproto.Flush:
			break search
		case agentproto.Reduce:
			if !one.done || e.s.hasEnded(i) || one.c.Status == agentproto.Refused {
				break search
			}
			may = append(may, want) // whether its step was due is known only to the agent
		case agentproto.Push, agentproto.PushSums:
			if one.done && one.c.Status != agentproto.OK {
				want = one.c.Status
			}
		}
	}
	if e.c.Status != want && !slices.Contains(may, e.c.Status) {
		b.l.Fail("%s: a FLUSH reports %v; the first push that failed before it: %v", e.s.name, e.c.Status, want)
	}
}

// endStep notes how a step has ended. All parties must be told the same.
func (b *stepBooks) endStep(e *asked) {
	id := stepID{e.s.era, e.Step}
	status := e.c.Status
	if status == agentproto.Dropped {
		b.l.result.Dropped++
	} else if e.Op == agentproto.Barrier {
		b.l.result.Met++
	}
	known, ok := b.ends[id]
	if ok {
		if known != status {
			b.l.Fail("%s is told of step %d: %v; another party was told: %v", e.s.name, e.Step, status, known)
		}
		return
	}
	b.ends[id] = status
	if !b.l.of.sync {
		return
	}
	if status == agentproto.Dropped {
		b.checkDropped(e)
	} else {
		b.checkWhole(id)
	}
	// They are unknown after a step whose end nobody was told.
	if before := b.weights[e.Step]; before != nil && b.l.of.weights && e.s.era == b.l.serving {
		after := slices.Clone(before)
		if status == agentproto.OK {
			sums, most := b.sumsOf(id)
			for i, sum := range sums {
				after[i] -= float32(sum)
			}
			if !slices.Equal(sums, most) {
				after = nil
			}
		}
		b.weights[e.Step+1] = after
	}
}

// sumsOf returns the sums of a step that has ended: of the pushes that sessions have made before
// they ended it. most also has those that have failed, but of which some frames may have been
// applied.
func (b *stepBooks) sumsOf(id stepID) (sums, most []int64) {
	sums, most = make([]int64, len(b.l.of.keys)*b.dim), make([]int64, len(b.l.of.keys)*b.dim)
	for _, s := range b.l.sessions {
		if s.era != id.era || !s.party || s.at != b.endersOf(id, s.host) {
			continue
		}
		var open []*asked
		for i, e := range s.entries {
			switch {
			case e.Op == agentproto.Push:
				open = append(open, e)
			case s.endsStep(i):
				if e.Step == id.step {
					b.addPushes(sums, most, open)
				}
				open = nil
			}
		}
	}
	return sums, most
}

// endersOf returns the run of a host's agent whose parties have ended a step: the last one, if
// those of several have tried.
func (b *stepBooks) endersOf(id stepID, host string) (at *agentRun) {
	for _, s := range b.l.sessions {
		if s.era != id.era || s.host != host || !s.party {
			continue
		}
		s.collectCompletions()
		for i, e := range s.entries {
			if e.Step == id.step && s.endsStep(i) {
				at = s.at
			}
		}
	}
	return at
}

// endsStep reports whether an entry has ended its step, or may have without being answered.
func (s *ring) endsStep(i int) bool {
	e := s.entries[i]
	if e.Op != agentproto.Barrier && e.Op != agentproto.Reduce || uint32(i) >= s.acceptedIndex() {
		return false
	}
	return !e.done || s.hasEnded(i) || e.c.Status == agentproto.JobEnded || e.c.Status == agentproto.AgentClosed
}

// hasEnded reports whether an entry has ended its step.
func (s *ring) hasEnded(i int) bool {
	e := s.entries[i]
	return (e.Op == agentproto.Barrier || e.Op == agentproto.Reduce) && e.done &&
		(e.c.Status == agentproto.OK || e.c.Status == agentproto.Dropped)
}

// checkWhole checks that no party has reduced a step that was not dropped after a push of its own
// failed.
func (b *stepBooks) checkWhole(id stepID) {
	for _, s := range b.l.sessions {
		for i, e := range s.entries {
			if s.era == id.era && e.Op == agentproto.Reduce && e.Step == id.step && s.hasEnded(i) && s.failedBefore(i) {
				b.l.Fail("step %d is not dropped, although a push of %s before its REDUCE has failed", id.step, s.name)
			}
			if s.era == id.era && e.Step == id.step && s.spoilsStep(i) {
				b.l.Fail("step %d is not dropped, although %s has pushed in it after it could not end", id.step, s.name)
			}
		}
	}
}

// spoilsStep reports whether an entry could not end its step, and a push of the next one follows
// that the agent has taken nevertheless.
func (s *ring) spoilsStep(i int) bool {
	e := s.entries[i]
	if e.Op != agentproto.Barrier && e.Op != agentproto.Reduce || !e.done || e.c.Status != agentproto.Refused {
		return false
	}
	for i++; i < len(s.entries) && uint32(i) < s.acceptedIndex() && !s.hasEnded(i); i++ {
		if s.entries[i].Op == agentproto.Push {
			return true
		}
	}
	return false
}

// failedBefore reports whether a push before an entry has failed, since the last FLUSH or REDUCE.
func (s *ring) failedBefore(i int) bool {
	for i--; i >= 0; i-- {
		switch e := s.entries[i]; e.Op {
		case agentproto.Flush, agentproto.Reduce:
			return false
		case agentproto.Push, agentproto.PushSums:
			if e.done && e.c.Status != agentproto.OK {
				return true
			}
		}
	}
	return false
}

// addPushes adds acknowledged pushes, and those of which some frames may have been applied.
func (b *stepBooks) addPushes(sums, most []int64, pushes []*asked) {
	for _, e := range pushes {
		if !e.done || e.c.Status != agentproto.OK && e.c.Acknowledged+e.c.Unknown == 0 {
			continue
		}
		for i, key := range e.keys {
			for c := range b.dim {
				at, x := b.index[key]*b.dim+c, int64(e.sent[i*b.dim+c]/b.l.of.gradientUnit())
				most[at] += x
				if e.c.Status == agentproto.OK {
					sums[at] += x
				}
			}
		}
	}
}

// compareSums compares what a REDUCE has returned with the step's pushes.
func (b *stepBooks) compareSums(e *asked, keys []uint64, rows []float32) {
	got := make([]int64, len(b.l.of.keys)*b.dim)
	for i, key := range keys {
		at, ok := b.index[key]
		if !ok || i > 0 && keys[i-1] >= key {
			b.l.Fail("%s: step %d: keys %v", e.s.name, e.Step, keys)
			return
		}
		for c := range b.dim {
			got[at*b.dim+c] = int64(rows[i*b.dim+c] / b.l.of.gradientUnit())
		}
	}
	want, most := b.sumsOf(stepID{e.s.era, e.Step})
	for i := range want {
		if got[i] < want[i] || got[i] > most[i] {
			b.l.Fail("%s: REDUCE returns %d as the sum of key %d in step %d; the pushes of that step sum up to %d",
				e.s.name, got[i], b.l.of.keys[i/b.dim], e.Step, want[i])
			return
		}
	}
}

// comparePulled compares rows with the weights after some steps, which no later step has changed.
func (b *stepBooks) comparePulled(e *asked, steps uint64) {
	switch {
	case !b.l.of.weights && e.c.Status == agentproto.NoWeights:
		return
	case !b.l.of.weights && e.c.Status == agentproto.OK:
		b.l.Fail("%s: a PULL without weights brings some", e.s.name)
		return
	case e.c.Status != agentproto.OK:
		b.checkStatus(e)
		return
	case !b.l.of.sync:
		return
	}
	want := b.weights[steps]
	if want == nil || e.s.era != b.l.serving {
		return
	}
	b.l.result.Pulled++
	for i, key := range e.keys {
		for c := range b.dim {
			if got, is := e.gotRows[i*b.dim+c], want[b.index[key]*b.dim+c]; got != is {
				b.l.Fail("%s: after %d steps the weight of key %d is %v; a plain loop has %v", e.s.name, steps, key, got, is)
				return
			}
		}
	}
}

// tornPushes reports whether a session has ended with pushes for which no step has ended. Those
// that were refused count: their gradients are missing in the step.
func (s *ring) tornPushes() bool {
	if !s.isOver() {
		return false
	}
	open := false
	for i, e := range s.entries {
		if (e.Op == agentproto.Push || e.Op == agentproto.PushSums) && uint32(i) < s.acceptedIndex() {
			open = true
		} else if s.hasEnded(i) {
			open = false
		}
	}
	return open
}

// checkDropped checks that a dropped step has a cause: a push that has failed, a party that has
// pushed and ended, or an agent that has ended, of which each explains one step.
func (b *stepBooks) checkDropped(e *asked) {
	for _, s := range b.l.sessions {
		if s.era != e.s.era || !s.party {
			continue
		}
		s.collectCompletions()
		for i, one := range s.entries {
			if one.Step == e.Step && (one.Op == agentproto.Reduce && s.failedBefore(i) || s.spoilsStep(i)) {
				return
			}
		}
		if s.excuses < 2 && s.tornPushes() {
			s.excuses++
			return
		}
	}
	if b.lost[e.s.era] > 0 {
		b.lost[e.s.era]--
		return
	}
	b.l.Fail("%s is told that step %d was dropped, but no push has failed, and no party or agent has left it", e.s.name,
		e.Step)
}

// checkGone checks that a party that is said to have gone has.
func (b *stepBooks) checkGone(e *asked) {
	for _, s := range b.l.sessions {
		if s.at == e.s.at && s != e.s && s.party && s.isOver() {
			return
		}
	}
	b.l.Fail("%s is told that a party has gone, but none has", e.s.name)
}
