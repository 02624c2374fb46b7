// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/transport"
	"github.com/libra-ina/libra/wire"
)

// checkWhole checks that all gradients of a push were applied.
func (l *session) checkWhole(p *push, why string) {
	for n := p.from; n < p.to; n++ {
		if g := l.of.life.ledger.grads.gradientAt(n); g.applied != 1 {
			l.of.life.Fail("%s, but gradient %d of worker %d, for parameter %d, was applied %d times",
				why, n, l.of.sender, g.param, g.applied)
			return
		}
	}
}

// doubt is a push that a flush has not reported, although not all of it was applied. Calls in
// progress may have got the reason and not returned yet.
type doubt struct {
	of   *push
	told []*caller
}

// checkFlushed checks a push that a flush has waited for: all of it is applied, or a call has
// returned that it is not.
func (l *session) checkFlushed(p *push) {
	missing := func(n int) bool { return l.of.life.ledger.grads.gradientAt(n).applied != 1 }
	for n := p.from; n < p.to; n++ {
		if missing(n) {
			l.doubts = append(l.doubts, doubt{p, slices.Clone(l.inside)})
			l.resolveDoubts()
			return
		}
	}
}

// mayBeTold records a call that may return a refusal. The returned function removes it, once.
func (c *caller) mayBeTold() (told func()) {
	l := c.session
	l.inside = append(l.inside, c)
	return sync.OnceFunc(func() {
		if l.isOver() {
			return
		}
		leave := func(all []*caller) []*caller {
			return slices.DeleteFunc(all, func(o *caller) bool { return o == c })
		}
		l.inside = leave(l.inside)
		for i := range l.doubts {
			l.doubts[i].told = leave(l.doubts[i].told)
		}
		l.resolveDoubts()
	})
}

// resolveDoubts judges the doubts that nothing can explain any more.
func (l *session) resolveDoubts() {
	l.doubts = slices.DeleteFunc(l.doubts, func(d doubt) bool {
		if len(d.told) > 0 {
			return false
		}
		// A call that has returned one refusal stands for those of the same time, too.
		told := l.refused || l.denied && (l.evicted || d.of.isDenied())
		if !told && !d.of.failed {
			l.of.life.Fail("a flush has ended, but not all gradients of a push of worker %d,"+
				" which are %d to %d, were applied once",
				l.of.sender, d.of.from, d.of.to-1)
		}
		return true
	})
}

// judgePush compares a push's result with its frames. It returns false if the life has ended.
func (l *session) judgePush(p *push, err error) bool {
	p.judged = true
	if err == nil {
		l.checkWhole(p, "a push is acknowledged")
		return true
	}
	p.failed = true
	applied, denied := 0, 0
	for _, f := range p.frames {
		if f.applied && !f.again || f.wasRenamed() {
			applied++
		}
		if f.denied != 0 {
			denied++
		}
	}
	var e *transport.PushError
	switch {
	case !errors.As(err, &e):
		p.most = 0
	case p.queued:
		// It may share frames with other pushes.
		if e.Acked+e.Refused+e.Unknown+e.Unacked == 0 {
			p.most = 0
		}
	default:
		p.most = e.Acked + e.Refused + e.Unknown + e.Unacked
		if applied < e.Acked || applied > e.Acked+e.Unknown+e.Unacked {
			l.of.life.Fail("of the frames of a push of worker %d, %d are applied: %v", l.of.sender, applied, err)
		}
		if e.Refused > denied {
			l.of.life.Fail("of the frames of a push of worker %d, %d are refused for good: %v", l.of.sender, denied, err)
		}
	}
	l.measureFrames(p)
	return l.isExcused("a push", err)
}

// measureFrames checks that no more frames of a push were sent than reported.
func (l *session) measureFrames(p *push) {
	sent := 0
	for _, f := range p.frames {
		if !f.again {
			sent++
		}
	}
	if p.most >= 0 && sent > p.most {
		l.of.life.Fail("%d frames of a push of worker %d were sent, not %d", sent, l.of.sender, p.most)
	}
}

// isExcused checks that there is a reason for an error. It returns false if the error means that
// the life has ended.
func (l *session) isExcused(what string, err error) bool {
	var refusal wire.Refusal
	switch {
	case errors.Is(err, errCancelled):
		return true
	case errors.As(err, &refusal) && l.of.life.plan.deniesCode(refusal.Code):
		l.denied = true
		return true
	case errors.As(err, &refusal):
		if !l.evicted || refusal.Code != wire.CodeUnknownSender {
			l.of.life.Fail("%s of worker %d was refused: %v", what, l.of.sender, err)
		}
		l.refused = true
		return false
	case isSilent(err):
		if why := l.hearing.givenUpWrongly(err); why != nil {
			l.of.life.Fail("worker %d: %v", l.of.sender, why)
		}
		if ended := l.hearing.endedAt(); l.of.life.Healed() && ended.Sub(l.of.life.HealedAt()) > l.of.life.silenceLimit() {
			l.of.life.Fail("%s of worker %d ends long after the trouble: %v", what, l.of.sender, err)
		}
		return false
	case errors.Is(err, transport.ErrClosed):
		return false
	}
	l.of.life.Fail("%s of worker %d: %v", what, l.of.sender, err)
	return false
}

func isSilent(err error) bool { return errors.As(err, new(*retransmit.SilentPeerError)) }

// settleCalls checks that the end of a worker has settled all its calls.
func (l *session) settleCalls() {
	for _, p := range l.pushes {
		if !p.accepted || p.judged {
			continue
		}
		select {
		case <-p.ticket.Done():
			l.judgePush(p, p.ticket.Wait(context.Background()))
		default:
			l.of.life.Fail("worker %d has ended, but not the ticket of one of its pushes", l.of.sender)
		}
	}
	if l.flushed == l.of.life.plan.callers && !l.evicted && l.link.Held() > 0 {
		l.of.life.Fail("worker %d holds %d buffers at its end, although all is acknowledged", l.of.sender, l.link.Held())
	}
}
