// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/transport"
	"github.com/libra-ina/libra/wire"
)

// barrier is where a job's parties on this host meet at the end of a step, before the host
// meets the other hosts.
type barrier struct {
	job *job

	mu      sync.Mutex
	parties uint32
	members []*session // parties that have joined
	gone    bool       // a party has left: no barrier can complete
	left    uint64     // the party that left first, see [agentproto.Completion.Party]
	waiting []*work    // of parties at the end of the due step
	due     uint64
	meeting bool // the host meets the other hosts; its parties may have left

	// drop is not nil if the sums of the due step would be wrong: a party that left has pushed in it,
	// or gradients of it were refused and the host could not meet the other hosts.
	drop *DroppedError

	sums sumsPair // of the last steps that ended in frames; used only by the worker's goroutine
}

// addParty adds a session if it is a party, and returns the due step.
func (b *barrier) addParty(s *session) (due uint64, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s.parties == 0 {
		return b.due, nil
	}
	switch n := len(b.members); {
	case b.meeting && n == 0:
		return 0, fmt.Errorf("%w: the previous parties have ended, but this host still waits for the other hosts "+
			"at the end of step %d", agentproto.Parties, b.due)
	case b.gone:
		return 0, fmt.Errorf("%w: one of %d has ended, %d remain", agentproto.Parties, b.parties, n)
	case n > 0 && s.parties != b.parties:
		return 0, fmt.Errorf("%w: it gave %d, the other clients gave %d", agentproto.Parties, s.parties, b.parties)
	case uint32(n) == b.parties && n > 0:
		return 0, fmt.Errorf("%w: all %d have joined", agentproto.Parties, n)
	}
	b.parties = s.parties
	b.members = append(b.members, s)
	return b.due, nil
}

// partyArrived is called in the worker's goroutine when all pushes of a party before its BARRIER
// are settled.
func (b *barrier) partyArrived(w *work) {
	b.mu.Lock()
	defer b.mu.Unlock()
	twice := slices.ContainsFunc(b.waiting, func(other *work) bool { return other.s == w.s })
	switch {
	case b.gone || !slices.Contains(b.members, w.s):
		b.setIncomplete(w)
	case w.step != b.due || twice || b.meeting: // all parties are at the step for which the host meets the others
		w.c.Status, w.c.Detail = agentproto.BadStep, b.due
	default:
		if w.c.Op == agentproto.Reduce {
			w.refused = w.s.refusedBefore()
		}
		b.waiting = append(b.waiting, w)
		if uint32(len(b.waiting)) == b.parties {
			all := b.waiting
			b.waiting, b.meeting = nil, true
			var a Arrival
			a.HotSent, a.HotAnswered = b.job.cfg.Worker.HotFrames()
			reduces := false
			for _, w := range all {
				reduces = reduces || w.c.Op == agentproto.Reduce
				a.Refused = cmp.Or(a.Refused, w.refused)
			}
			torn := b.drop != nil
			a.Refused = cmp.Or(a.Refused, b.drop)
			b.drop = nil
			if reduces && a.Refused == nil && b.job.cfg.SumsInFrames {
				b.endStep(all, a)
				return
			}
			b.job.goroutines.Go(func() { b.meetHosts(all, a, reduces, torn) })
		}
		return
	}
	w.answerEntry()
}

// endStep makes the host meet the job's other workers by frames, and by the control service if that
// fails.
func (b *barrier) endStep(all []*work, a Arrival) {
	sums := b.sums.unusedSums()
	step := &transport.Step{Number: all[0].step, Keys: sums.Keys, Sums: sums.Rows}
	step.Done = func(err error) {
		if err != nil {
			b.job.goroutines.Go(func() { b.meetHosts(all, a, true, false) })
			return
		}
		sums.Sums = Sums{Keys: step.Keys, Rows: step.Sums}
		b.answerParties(all, a, sums, nil)
	}
	b.job.cfg.Worker.EndStep(step)
}

// meetHosts makes the host meet the job's other workers at the control service, and answers all
// parties.
func (b *barrier) meetHosts(all []*work, a Arrival, reduces, torn bool) {
	var (
		err  error
		sums stepSums
		cfg  = &b.job.cfg
	)
	if torn { // pushes in flight belong to this step, too; the clients that a failure concerns have left
		_ = cfg.Worker.Flush(b.job.ctx)
		b.job.awaitTurn("meets the hosts")
		_ = cfg.Worker.Do(b.job.ctx, func() { a.HotSent, a.HotAnswered = cfg.Worker.HotFrames() })
	}
	switch {
	case reduces, a.Refused != nil && cfg.Reduce != nil: // only this call can drop a step
		sums.Sums, err = cfg.Reduce(b.job.ctx, all[0].step, a)
	case cfg.Barrier != nil:
		err = cfg.Barrier(b.job.ctx, all[0].step)
	}
	b.job.awaitTurn("answers parties")
	b.answerParties(all, a, &sums, err)
}

// answerParties ends the step, unless the host could not meet the others, and answers all parties.
func (b *barrier) answerParties(all []*work, a Arrival, sums *stepSums, err error) {
	var dropped *DroppedError
	over := err == nil || errors.As(err, &dropped)
	b.mu.Lock()
	b.meeting = false
	if over {
		b.due++
	} else {
		b.drop = cmp.Or(a.Refused, b.drop)
	}
	for _, w := range all {
		switch {
		case over:
			w.s.pushedBefore = w.s.counters.pushes.Load() // none has begun since the party came
			w.s.late.Store(false)
		case !slices.Contains(b.members, w.s): // it has left, and the step is still due
			b.tearStep(w.s)
		default:
			w.s.late.Store(true)
		}
	}
	b.mu.Unlock()
	if !over {
		b.job.log.Warn("barrier failed", "step", all[0].step, "error", err)
	}
	for _, w := range all {
		switch {
		case err == nil && w.c.Op == agentproto.Reduce:
			w.s.keepSums(sums)
			w.c.Detail = uint64(len(sums.Keys))
			n := copy(w.sumKeys, sums.Keys)
			copy(w.sumRows, sums.Rows[:n*b.job.cfg.Dim])
		case err == nil:
		case dropped != nil:
			w.c.Status, w.c.Key, w.c.KeyKnown = agentproto.Dropped, dropped.Key, dropped.KeyKnown
			if dropped.Sum {
				w.c.Peer, w.c.Refusal = agentproto.Server, uint16(wire.CodeOverflow)
			}
		case b.job.ctx.Err() != nil:
			b.setIncomplete(w)
		case errors.Is(err, agentproto.JobEnded):
			w.c.Status = agentproto.JobEnded
		default:
			w.c.Status, w.c.Peer = agentproto.Refused, agentproto.Server
		}
		w.answerEntry()
	}
}

// partiesArrived returns how many parties are at the end of the due step, and of how many: all of
// them while the host meets the others.
func (b *barrier) partiesArrived() (arrived, parties uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.meeting {
		return uint64(b.parties), uint64(b.parties)
	}
	return uint64(len(b.waiting)), uint64(b.parties)
}

// removeParty removes an ended session. If it was a party, waiting parties fail, and the due step
// is torn if the session pushed in it: the next parties that reduce get it dropped.
func (b *barrier) removeParty(s *session) {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.Index(b.members, s)
	if i < 0 {
		return
	}
	b.members = slices.Delete(b.members, i, i+1)
	if !b.gone {
		b.left = agentproto.PartyDetail(s.number, uint32(s.who.Pid))
	}
	b.gone = len(b.members) > 0
	if !b.meeting { // else its pushes belong to the step that ends
		b.tearStep(s)
	}
	for _, w := range b.waiting {
		b.setIncomplete(w)
		w.answerEntry()
	}
	b.waiting = nil
}

// tearStep marks the due step to be dropped, if a party that left has pushed in it.
func (b *barrier) tearStep(s *session) {
	if s.counters.pushes.Load() > s.pushedBefore && b.drop == nil {
		b.drop = new(DroppedError)
	}
}

// pushedLate marks the due step to be dropped: a party pushes after its end, which the host could
// not meet the others for.
func (b *barrier) pushedLate() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.drop == nil {
		b.drop = new(DroppedError)
	}
}

// openStep returns the due step, and whether parties have left it torn.
func (b *barrier) openStep() (due uint64, torn bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.due, b.drop != nil
}

// setIncomplete sets why a barrier cannot complete: a party left, or the job has ended. Call it in
// the worker's goroutine, or after the end of the job's context.
func (b *barrier) setIncomplete(w *work) {
	w.c.Status = agentproto.PartyGone
	_ = errors.As(b.job.ended, &w.c.Status)
	if w.c.Status == agentproto.PartyGone {
		w.c.Detail = b.left
	}
}

// undoAddParty removes a session that was not welcomed. The others still wait for all parties.
func (b *barrier) undoAddParty(s *session) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.members = slices.DeleteFunc(b.members, func(other *session) bool { return other == s })
}
