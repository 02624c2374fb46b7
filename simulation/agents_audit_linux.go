// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"math"
	"time"

	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/control/access"
	"github.com/libra-ina/libra/simulation/world"
)

// auditLimit is when weights that lack pushes are wrong. A connection of which one end broke may
// carry no harvest until the other end gives it up, after at most [access.Outage]; the job may be
// gone by then, and server and agents start again.
const auditLimit = 3 * access.Outage

// startAudit compares the weights of an asynchronous job with all its pushes. Those of the others
// were compared after each step.
func (l *agentsLife) startAudit() {
	if l.of.sync {
		l.audited = true
		return
	}
	act := l.NewActor("auditor", nil)
	act.Start(func() {
		for begin := time.Now(); !l.Over() && !l.Failed(); {
			act.Sleep("waits for harvests", 300*time.Millisecond)
			if sums := l.readSums(act); sums != nil && l.books.auditSums(sums, time.Since(begin) >= auditLimit) {
				l.audited = true
				l.Kick()
				return
			}
		}
	})
}

// readSums pulls all rows by a client that takes no steps, and returns what was subtracted from
// them; nil if there is no agent that answers.
func (l *agentsLife) readSums(act *world.Actor) []int64 {
	host := agentName(l.cfg.Workers[0].ID)
	s := l.openSession(act, l.procs[host], "auditor", 0)
	if s == nil {
		return nil
	}
	r := &program{p: &party{l: l, host: host}, l: l, name: "auditor", s: s, rng: l.options.named("auditor")}
	defer s.closeSocket()
	var sums []int64
	keys, initial := l.of.keys, l.books.initial
	for len(keys) > 0 {
		n := min(slotRows, len(keys))
		e := &asked{Entry: agentproto.Entry{Op: agentproto.Pull}, keys: keys[:n]}
		if !r.callAgent(act, e) || e.c.Status != agentproto.OK {
			return nil
		}
		for _, is := range e.gotRows {
			sums = append(sums, int64(math.Round(float64(initial[0])-float64(is))))
			initial = initial[1:]
		}
		keys = keys[n:]
	}
	return sums
}

// auditSums reports whether sums hold each push once that was acknowledged, or accepted from a
// program that has died since, and no push twice. At the last try they must. Hot rows of a push may
// be missing if isLost.
func (b *stepBooks) auditSums(sums []int64, last bool) bool {
	least, most := make([]int64, len(sums)), make([]int64, len(sums))
	b.l.result.Lost = 0
	for _, s := range b.l.sessions {
		s.collectCompletions()
		for i, e := range s.entries {
			low, high := b.pushCounts(s, i)
			if high == 0 {
				continue
			}
			lost := low > 0 && b.isLost(s, i)
			if lost {
				b.l.result.Lost++
			}
			for k, key := range e.keys {
				for c := range b.dim {
					x := int64(e.sent[k*b.dim+c])
					if !lost || !b.isHot(key) {
						least[b.index[key]*b.dim+c] += low * x
					}
					most[b.index[key]*b.dim+c] += high * x
				}
			}
		}
	}
	for i, is := range sums {
		key := b.l.of.keys[i/b.dim]
		if is > most[i] {
			b.l.Fail("the weights of key %d have %d; all pushes of it sum up to at most %d", key, is, most[i])
			return false
		}
		if is < least[i] {
			if last {
				b.l.Fail("the weights of key %d have %d; the pushes of it that count sum up to %d", key, is, least[i])
			}
			return false
		}
	}
	return true
}

// pushCounts returns how often a push must be in the weights at least, and may be at most.
func (b *stepBooks) pushCounts(s *ring, i int) (least, most int64) {
	e := s.entries[i]
	switch {
	case e.Op != agentproto.Push || b.expectedRefusal(e) != agentproto.OK || uint32(i) >= s.acceptedIndex() && !e.done:
		return 0, 0
	case s.era != b.l.serving: // its server has ended, with what was in no checkpoint
		return 0, 1
	case e.done && e.c.Status == agentproto.OK:
		return 1, 1
	case !e.done && !s.lost && !(s.at.ended && s.at.err != nil): // its program has ended, not its agent
		return 1, 1
	case e.done && e.c.Acknowledged+e.c.Unknown == 0 && e.c.Refused > 0:
		return 0, 0
	}
	return 0, 1
}
