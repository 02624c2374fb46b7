// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/libra-ina/libra/internal/agentproto"
	"github.com/libra-ina/libra/transport"
)

// barrier is where the parties among a job's clients meet at the end of a step, before
// the host meets the others.
type barrier struct {
	job *job

	mu      sync.Mutex
	parties uint32
	members []*session // parties that have come
	gone    bool       // a party has ended: no barrier can be complete
	coming  []*work    // REDUCEs of parties at the step that is due, perhaps before their turn
	waiting []*work    // of parties at that step, in their turn
	due     uint64
	meeting bool // the host meets the others; its parties may be gone

	asks *asking // belongs to the worker's goroutine
}

// asking is a step whose sums the host asks for by frames. That may be before all that its parties have pushed is settled.
type asking struct {
	all   []*work
	turns int // of those whose turn has come
	ended bool
	sums  Sums
	err   error
}

// join takes a session in, if it is a party, and returns the step that is due.
func (b *barrier) join(s *session) (due uint64, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s.parties == 0 {
		return b.due, nil
	}
	switch n := len(b.members); {
	case b.meeting && n == 0:
		return 0, fmt.Errorf("%w: those before are gone, but this host still waits for the other hosts at the end of step %d", agentproto.Parties, b.due)
	case b.gone:
		return 0, fmt.Errorf("%w: one of %d is gone, %d are still there", agentproto.Parties, b.parties, n)
	case n > 0 && s.parties != b.parties:
		return 0, fmt.Errorf("%w: it gave %d, the others gave %d", agentproto.Parties, s.parties, b.parties)
	case uint32(n) == b.parties && n > 0:
		return 0, fmt.Errorf("%w: all %d are there", agentproto.Parties, n)
	}
	b.parties = s.parties
	b.members = append(b.members, s)
	return b.due, nil
}

// come is called in the worker's goroutine when a party's REDUCE is read. If no push of the parties has failed until now, the
// end of the step follows what they have pushed, and need not wait for its answers.
func (b *barrier) come(w *work) {
	b.mu.Lock()
	defer b.mu.Unlock()
	same := func(other *work) bool { return other.s == w.s }
	if !b.job.cfg.SumsInFrames || b.meeting || b.gone || w.step != b.due || !slices.Contains(b.members, w.s) || slices.ContainsFunc(b.coming, same) {
		return // arrive knows what to say
	}
	b.coming = append(b.coming, w)
	failed := func(w *work) bool { return w.s.failing() }
	if uint32(len(b.coming)) == b.parties && !slices.ContainsFunc(b.coming, failed) {
		b.ask(b.coming, 0)
	}
}

// failing reports whether a push has failed for which the client has got no FLUSH or REDUCE yet.
func (s *session) failing() bool {
	failed := s.failed.Status != agentproto.OK
	for w := s.first; w != nil; w = w.next {
		failed = failed || w.c.Status != agentproto.OK || w.err != nil
	}
	return failed
}

// arrive is called in the worker's goroutine when all that a party pushed before its BARRIER or REDUCE is settled.
func (b *barrier) arrive(w *work) {
	if a := b.asks; a != nil && slices.Contains(a.all, w) {
		a.turns++
		b.tell()
		return
	}
	if !b.wait(w) {
		w.answer()
	}
}

// wait has a party wait for the others, if it may. If it is the last one, the host meets the other hosts.
func (b *barrier) wait(w *work) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	twice := slices.ContainsFunc(b.waiting, func(other *work) bool { return other.s == w.s })
	switch {
	case b.gone || !slices.Contains(b.members, w.s):
		w.c.Status = agentproto.PartyGone
		return false
	case w.step != b.due || twice || b.meeting:
		w.c.Status, w.c.Detail = agentproto.BadStep, b.due
		return false
	}
	b.waiting = append(b.waiting, w)
	if uint32(len(b.waiting)) < b.parties {
		return true
	}
	all := b.waiting
	if reduces(all) && refusedOf(all) == nil && b.job.cfg.SumsInFrames {
		b.ask(all, len(all))
		return true
	}
	b.begin()
	b.meet(all)
	return true
}

// begin notes that the host meets the others. The caller holds the lock.
func (b *barrier) begin() { b.coming, b.waiting, b.meeting = nil, nil, true }

func reduces(all []*work) bool {
	return slices.ContainsFunc(all, func(w *work) bool { return w.c.Op == agentproto.Reduce })
}

func refusedOf(all []*work) *DroppedError {
	for _, w := range all {
		if w.refused != nil {
			return w.refused
		}
	}
	return nil
}

// ask has the host meet the other workers of the job by frames. The turn of some of its parties has come. The caller holds
// the lock.
func (b *barrier) ask(all []*work, turns int) {
	b.begin()
	a := &asking{all: all, turns: turns}
	b.asks = a
	step := &transport.Step{Number: all[0].step}
	step.Done = func(err error) {
		a.ended, a.err, a.sums = true, err, Sums{Keys: step.Keys, Rows: step.Sums}
		b.tell()
	}
	b.job.cfg.Worker.EndStep(step)
}

// tell answers all parties when the sums are there and their turn has come. What frames do not tell, the job's service does.
func (b *barrier) tell() {
	a := b.asks
	if !a.ended || a.turns < len(a.all) {
		return
	}
	b.asks = nil
	if a.err != nil {
		b.meet(a.all)
		return
	}
	b.answer(a.all, a.sums, nil)
}

// meet has the host meet the other workers of the job at its service. It is called in the worker's goroutine.
func (b *barrier) meet(all []*work) {
	cfg, step, reduces := &b.job.cfg, all[0].step, reduces(all)
	a := Arrival{Refused: refusedOf(all)}
	a.HotSent, a.HotAnswered = cfg.Worker.HotFrames()
	b.job.others.Go(func() {
		var (
			err  error
			sums Sums
		)
		switch {
		case reduces:
			sums, err = cfg.Reduce(b.job.ctx, step, a)
		case cfg.Barrier != nil:
			err = cfg.Barrier(b.job.ctx, step)
		}
		b.answer(all, sums, err)
	})
}

// answer ends the step, and answers all parties.
func (b *barrier) answer(all []*work, sums Sums, err error) {
	var dropped *DroppedError
	over := err == nil || errors.As(err, &dropped)
	b.mu.Lock()
	b.meeting = false
	if over {
		b.due++
	}
	b.mu.Unlock()
	if !over {
		b.job.log.Warn("barrier failed", "step", all[0].step, "error", err)
	}
	for _, w := range all {
		switch {
		case err == nil && w.c.Op == agentproto.Reduce:
			w.s.mu.Lock()
			w.s.sums = &sums
			w.s.mu.Unlock()
			w.c.Detail = uint64(len(sums.Keys))
			n := copy(w.sumKeys, sums.Keys)
			copy(w.sumRows, sums.Rows[:n*b.job.cfg.Dim])
		case err == nil:
		case dropped != nil:
			w.c.Status, w.c.Key, w.c.KeyKnown = agentproto.Dropped, dropped.Key, dropped.KeyKnown
		case b.job.ctx.Err() != nil:
			w.c.Status = agentproto.JobEnded
		default:
			w.c.Status, w.c.Peer = agentproto.Refused, agentproto.Server
		}
		w.answer()
	}
}

// progress returns how many parties have come to the end of the step that is due, of how many: all of them while the host
// meets the others.
func (b *barrier) progress() (arrived, parties uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.meeting {
		return uint64(b.parties), uint64(b.parties)
	}
	return uint64(len(b.waiting)), uint64(b.parties)
}

// leave takes a session out that has ended. If it was a party, those that wait fail.
func (b *barrier) leave(s *session) {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.Index(b.members, s)
	if i < 0 {
		return
	}
	b.members = slices.Delete(b.members, i, i+1)
	b.gone = len(b.members) > 0
	b.coming = nil
	for _, w := range b.waiting {
		w.c.Status = agentproto.PartyGone
		w.answer()
	}
	b.waiting = nil
}
