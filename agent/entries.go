// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent

import (
	"context"
	"fmt"
	"math"

	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/aggregator"
)

// entryCharge is the charge for an entry in flight in addition to the bytes that were read.
const entryCharge = 4096

// hasUnread reports whether the client has unread entries.
func (s *session) hasUnread() bool {
	return s.ended == nil && !s.held.Load() && s.mem.SQTail.Load() != s.head
}

// beginEntries begins some of the client's entries, and reports whether it began any.
func (s *session) beginEntries() (any bool) {
	for range turnEntries {
		if s.ended != nil || !s.held.Load() && !s.readEntry() || !s.beginEntry() {
			break
		}
		any = true
	}
	if any {
		s.mem.SQHead.Store(s.head)
	}
	return any
}

// readEntry reads the next entry, if any. It ends a client that breaks the protocol.
func (s *session) readEntry() bool {
	entries := s.layout.Entries
	tail := s.mem.SQTail.Load()
	if tail == s.head {
		return false
	}
	seen := s.mem.CQHead.Load() // after the tail: cq_head was at least this when the tail was stored
	if n := s.completionsWritten() - seen; n > entries {
		return s.endHostile(fmt.Errorf("%w: cq_head is %d after %d completions",
			agentproto.BadIndex, seen, s.completionsWritten()))
	}
	if tail-s.head > entries || tail-seen > entries {
		return s.endHostile(fmt.Errorf("%w: sq_tail is %d, sq_head %d, cq_head %d in rings of %d",
			agentproto.BadIndex, tail, s.head, seen, entries))
	}
	copy(s.raw[:], s.mem.Entry(s.head)[:]) // read only once
	var err error
	if s.entry, err = agentproto.ParseEntry(&s.raw, s.layout.BufferBytes); err != nil {
		return s.endHostile(err)
	}
	return true
}

func (s *session) endHostile(why error) bool {
	s.job.log.Warn("client breaks the protocol", "client", s.number, "name", s.name,
		"user", s.who.Uid, "process", s.who.Pid, "reason", why)
	s.endSession(why)
	return false
}

// isBlocked reports whether an entry cannot begin yet: it does not fit the client's memory for
// entries in flight, or it is a push after a BARRIER or REDUCE that is not answered, so that it
// belongs to the next step.
func (s *session) isBlocked(op agentproto.Op, charge int64) bool {
	if inFlight := s.charge.Load(); inFlight > 0 && inFlight+charge > int64(s.layout.BufferBytes) {
		return true
	}
	return isPush(op) && s.ending.Load() > 0
}

// mustWait is isBlocked, and makes whoever answers an entry wake the worker.
func (s *session) mustWait(op agentproto.Op, charge int64) bool {
	if s.isBlocked(op, charge) {
		s.held.Store(true)
		if s.isBlocked(op, charge) { // whatever settles after this sees held
			return true
		}
	}
	s.held.Store(false)
	return false
}

func isPush(op agentproto.Op) bool { return op == agentproto.Push || op == agentproto.PushSums }

// beginEntry starts the newest entry, or returns false.
func (s *session) beginEntry() bool {
	e := &s.entry
	charge := chargeOf(e)
	if s.mustWait(e.Op, charge) {
		return false
	}
	s.charge.Add(charge)
	s.retainMemory()
	w := newWork(s, e, charge)
	s.taken++
	s.head++
	if w.c.Status == agentproto.OK {
		s.startOperation(w, e)
	} else {
		w.refuseEntry()
	}
	return true
}

// chargeOf returns the bytes charged for an entry in flight.
func chargeOf(e *agentproto.Entry) int64 {
	// Keys of a prepared batch count too: an entry in flight keeps them after their release.
	charge := int64(entryCharge) + 8*int64(e.N)
	if isPush(e.Op) {
		charge += 4 * int64(e.N) * int64(e.Dim)
	}
	return charge
}

// newWork describes an entry. An entry that cannot begin has a status in its completion.
func newWork(s *session, e *agentproto.Entry, charge int64) *work {
	w := works.Get().(*work)
	*w = work{s: s, keys: w.keys[:0], values: w.values[:0], charge: charge, step: e.Step}
	w.c = agentproto.Completion{Tag: e.Tag, Op: e.Op, Ticket: s.taken}
	switch {
	case e.Dim != 0 && int(e.Dim) != s.job.cfg.Dim, e.Dim == 0 && e.Op.HasRows() && (!e.Op.MayBeEmpty() || e.N > 0):
		w.c.Status = agentproto.Dimension
	case e.Op == agentproto.PushSums && s.job.cfg.Mode != aggregator.FetchAdd:
		w.c.Status = agentproto.BadMode
	case e.Op == agentproto.Reduce && s.job.cfg.Reduce == nil:
		w.c.Status = agentproto.BadMode
	case e.Op == agentproto.Harvest && s.own == nil:
		w.c.Status = agentproto.NotOwner
	case (e.Op == agentproto.Barrier || e.Op == agentproto.Reduce) && s.parties == 0:
		w.c.Status = agentproto.NoParty
	case e.Op == agentproto.Prepare && uint64(e.N)*uint64(s.job.cfg.Dim) > math.MaxUint32:
		w.c.Status = agentproto.NoMemory // a push of it would be too large for the worker
	case e.Batch != 0 && e.Op != agentproto.Release:
		if w.batch = s.findBatch(e.Batch, e.N); w.batch == nil {
			w.c.Status = agentproto.NoBatch
		}
	}
	return w
}

// copyKeys returns the keys of an entry, copied unless they are prepared.
func (w *work) copyKeys(e *agentproto.Entry) []uint64 {
	if w.batch != nil {
		return w.batch.keys
	}
	w.s.counters.bytesRead.Add(8 * uint64(e.N))
	w.keys = append(w.keys, w.s.mem.Keys(e.Keys, int(e.N))...)
	return w.keys
}

// startOperation executes an entry, or starts to.
func (s *session) startOperation(w *work, e *agentproto.Entry) {
	switch e.Op {
	case agentproto.Push, agentproto.PushSums:
		s.startPush(w, e)
	case agentproto.Flush, agentproto.Barrier, agentproto.Reduce:
		if e.N > 0 {
			w.sumKeys, w.sumRows = s.mem.Keys(e.Keys, int(e.N)), s.mem.Floats(e.Values, int(e.N)*int(e.Dim))
		}
		if w.ends = e.Op != agentproto.Flush; w.ends {
			s.ending.Add(1)
		}
		w.queueInOrder()
		w.Settled(nil)
	case agentproto.Harvest:
		if e.N > 0 {
			w.sumKeys, w.sumRows = s.mem.Keys(e.Keys, int(e.N)), s.mem.Floats(e.Values, int(e.N)*int(e.Dim))
		}
		s.own.queueHarvest(w)
	case agentproto.Pull:
		s.counters.pulls.Add(1)
		s.counters.keysPulled.Add(uint64(e.N))
		w.request.Pull, w.request.Keys, w.request.Values = true, w.copyKeys(e), s.mem.Floats(e.Values, int(e.N)*int(e.Dim))
		w.submitRequest()
	case agentproto.Sums:
		into, rows, first := s.mem.Keys(e.Keys, int(e.N)), s.mem.Floats(e.Values, int(e.N)*int(e.Dim)), e.Step
		w.runSlow(func(context.Context) error { return s.copySums(into, rows, first) })
	case agentproto.Release:
		w.c.Status = s.releaseBatch(e.Batch)
		w.Settled(nil)
	case agentproto.Prepare:
		w.copyKeys(e)
		w.runSlow(func(context.Context) error { return s.prepareBatch(w) })
	case agentproto.Stats:
		at := e.Values
		w.runSlow(func(ctx context.Context) error { return s.writeStats(ctx, at) })
	}
}

// startPush submits a copy of a push to the job's worker. An accepted push is sent completely, even
// if its client ends.
func (s *session) startPush(w *work, e *agentproto.Entry) {
	s.counters.pushes.Add(1)
	s.counters.keysPushed.Add(uint64(e.N))
	if s.late.Load() {
		s.job.barrier.pushedLate()
	}
	w.queueInOrder()
	scalars := int(e.N) * int(e.Dim)
	s.counters.bytesRead.Add(4 * uint64(scalars))
	keys := w.copyKeys(e)
	for _, l := range s.job.learners {
		l.offerKeys(keys)
	}
	w.values = append(w.values, s.mem.Floats(e.Values, scalars)...)
	if at := s.job.numbers.Check(w.values); at >= 0 {
		w.badGradient(at, keys[at/s.job.cfg.Dim])
		w.Settled(nil)
		return
	}
	r := &w.request
	r.Keys, r.Values = keys, w.values
	if !s.job.cfg.Separate {
		r.From = s.number // pushes of the same client are not added up
	}
	switch {
	case e.Op == agentproto.PushSums:
		r.Sums = s.mem.Floats(e.Sums, scalars)
	case w.batch != nil:
		r.Prepared = w.batch.places
	}
	w.submitRequest()
}
