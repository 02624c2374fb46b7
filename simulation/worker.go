// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/simulation/world"
	"github.com/libra-ina/libra/transport"
)

// worker is a place for workers: their lives push there one after another, until all calls are
// made.
type worker struct {
	life    *workersLife
	sender  uint16
	host    *world.Host
	act     *world.Actor
	session *session
	joined  int // sessions before the current one
	left    int // calls
	rng     *rand.Rand
	// begin starts the callers of a session.
	begin func(*session)
}

// session is a worker's process, from its admission to its end.
type session struct {
	of      *worker
	w       *transport.Worker
	link    *world.Link
	hearing *hearing // of link
	callers int      // that have not ended
	flushed int      // of the ended ones, how many ended after everything was acknowledged
	pushes  []*push
	crashed bool
	evicted bool
	refused bool // and a call has returned it
	denied  bool // a call has returned a refusal for what a receiver held

	inside []*caller // callers in a call that may return a refusal
	doubts []doubt
}

// isOver reports whether the callers of a life must end.
func (l *session) isOver() bool { return l.crashed || l.of.life.Over() }

// runSessions runs the lives of a worker.
func (w *worker) runSessions() {
	s := w.life
	for ; ; w.joined++ {
		if err := w.joinJob(); err != nil {
			if !s.Over() {
				s.Fail("worker %d cannot join: %v", w.sender, err)
			}
			return
		}
		l := w.session
		w.act.Park("working", func() bool { return l.callers == 0 }, time.Time{})
		if !l.isOver() {
			w.act.Do("Close")
			err := l.w.Close()
			w.act.Yield("closed")
			if err != nil && !l.crashed && !s.Over() && !isSilent(err) {
				s.Fail("worker %d ends with %v", w.sender, err)
			}
			if !l.isOver() {
				l.settleCalls()
			}
		}
		if s.Over() || w.left <= 0 {
			return
		}
		w.act.Sleep("dead", time.Duration(w.rng.IntN(20_000))*time.Microsecond)
	}
}

// joinJob ends the previous life's admission, if any, and begins another life.
func (w *worker) joinJob() (err error) {
	s := w.life
	hot, cold := s.newEpoch(), s.newEpoch()
	steps := []func() error{
		func() error { return s.withdrawHot(w.sender) },
		func() error { return s.withdrawCold(w.act, w.sender, func() bool { return true }) },
		func() error { return s.admitHot(w.sender, hot, w.host) },
		func() error { return s.admitCold(w.act, w.sender, cold, w.host) },
	}
	if w.joined == 0 {
		steps = steps[2:]
	}
	// The two services see the end of a life and the start of the next at different times.
	if w.rng.IntN(2) == 0 {
		for i := 0; i < len(steps); i += 2 {
			steps[i], steps[i+1] = steps[i+1], steps[i]
		}
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
		w.act.Yield("joining")
		if s.Over() {
			return world.ErrGone
		}
	}
	l := &session{of: w, callers: s.plan.callers, hearing: newHearing(w.host, s.countRepeat)}
	l.link = s.Open(w.host, w.host.Name(), l.hearing)
	cfg := transport.WorkerConfig{
		Link: l.link, Gate: l.link.Enter, Job: job, Sender: w.sender, AggregatorEpoch: hot, ServerEpoch: cold,
		HotSet: s.hot, Layout: s.plan.layout, Stripes: s.plan.stripes,
		Mode: aggregator.Combine, Arithmetic: aggregator.Exact, Exp: s.plan.exp,
		Aggregator: s.switched.Endpoint(), Server: s.servers[0].host.Endpoint(), Flow: s.plan.flow,
		Sample: s.plan.sample,
	}
	for _, v := range s.servers[1:] {
		cfg.MoreServers = append(cfg.MoreServers, transport.ServerPeer{At: v.host.Endpoint(), Epoch: cold})
	}
	if l.w, err = transport.NewWorker(context.Background(), cfg); err != nil {
		return err
	}
	w.session = l
	s.result.Workers++
	w.begin(l)
	return nil
}

// startCallers starts the callers of a session, which draw their calls.
func (w *worker) startCallers(l *session) {
	s := w.life
	for i := range s.plan.callers {
		stream := streamCaller + uint64(w.sender)<<32 + uint64(w.joined)<<8 + uint64(i) + 1
		c := &caller{life: s, session: l, rng: s.options.random(stream)}
		c.act = s.NewActor(fmt.Sprintf("caller %d of worker %d", i, w.sender), w.host)
		c.act.Start(func() {
			c.runCalls()
			l.callers--
		})
	}
}

func (s *workersLife) newEpoch() uint16 {
	if s.options.fault == sameEpoch {
		return 1
	}
	s.epochs++
	return s.epochs
}

func (s *workersLife) withdrawHot(sender uint16) error {
	delete(s.ledger.members[s.switched], sender)
	if err := s.model.RemoveSender(job, sender); err != nil && !errors.Is(err, aggregator.ErrNoSender) {
		return err
	}
	return nil
}

func (s *workersLife) admitHot(sender, epoch uint16, at *world.Host) error {
	s.ledger.admitSender(s.switched, sender, epoch, at.Endpoint())
	from := at.Endpoint()
	return s.model.AddSender(job, aggregator.SenderConfig{ID: sender, Epoch: epoch, IP: from.IP, Port: from.Port})
}

// withdrawCold and admitCold run in turns: the ledger's record of the server's senders changes when
// the call returns, and two must not return at once.
func (s *workersLife) withdrawCold(a *world.Actor, sender uint16, still func() bool) error {
	for _, v := range s.servers {
		if err := s.withdrawAt(v, a, sender, still); err != nil {
			return err
		}
	}
	return nil
}

func (s *workersLife) withdrawAt(v *server, a *world.Actor, sender uint16, still func() bool) error {
	s.lockServer(a)
	defer s.unlockServer(a)
	if !still() {
		return nil // another life was admitted while this call waited for its turn
	}
	err := v.ps.Remove(context.Background(), sender)
	delete(s.ledger.members[v.host], sender)
	return err
}

func (s *workersLife) admitCold(a *world.Actor, sender, epoch uint16, at *world.Host) error {
	for _, v := range s.servers {
		if err := s.admitAt(v, a, sender, epoch, at); err != nil {
			return err
		}
	}
	return nil
}

func (s *workersLife) admitAt(v *server, a *world.Actor, sender, epoch uint16, at *world.Host) error {
	s.lockServer(a)
	defer s.unlockServer(a)
	err := v.ps.Admit(context.Background(), sender, at.Endpoint().AddrPort(), epoch)
	s.ledger.admitSender(v.host, sender, epoch, at.Endpoint())
	return err
}

func (s *workersLife) lockServer(a *world.Actor) {
	a.Park("its turn at the server", func() bool { return !s.locked || s.Over() }, time.Time{})
	s.locked = true
	a.Rush(true) // otherwise the server would know before the ledger does
	a.Do("a call of the server")
}

func (s *workersLife) unlockServer(a *world.Actor) {
	s.locked = false
	a.Rush(false)
}

// evictWorker ends an admission while its worker lives.
func (s *workersLife) evictWorker(w *worker, where int) {
	l := w.session
	if l == nil || l.callers == 0 || l.crashed {
		return
	}
	s.result.Evictions++
	l.evicted = true
	a := s.NewActor(fmt.Sprintf("eviction of worker %d", w.sender), nil)
	a.Start(func() {
		var err error
		lives := func() bool { return w.session == l && l.callers > 0 && !s.Over() }
		if where != 1 && lives() {
			err = s.withdrawHot(w.sender)
		}
		a.Yield("evicting")
		if where != 0 && lives() {
			err = errors.Join(err, s.withdrawCold(a, w.sender, lives))
		}
		if err != nil && !s.Over() {
			s.Fail("eviction of worker %d: %v", w.sender, err)
		}
	})
}

// crashWorker ends a worker's process at once.
func (s *workersLife) crashWorker(w *worker) {
	l := w.session
	if l == nil || l.callers == 0 || l.crashed {
		return
	}
	s.result.Crashes++
	l.crashed = true
	l.link.Crash()
	w.host.Resume()
}
