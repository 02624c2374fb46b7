// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/transport"
)

// worker is a place for workers: their lives push there one after another, until all calls are
// made.
type worker struct {
	s      *sim
	sender uint16
	host   *host
	act    *actor
	life   *life
	left   int // calls
	rng    *rand.Rand
}

// life is a worker's process, from its admission to its end.
type life struct {
	of      *worker
	w       *transport.Worker
	link    *simLink
	callers int // that have not ended
	flushed int // of the ended ones, how many ended after everything was acknowledged
	pushes  []*push
	crashed bool
	evicted bool
	refused bool // and a call has returned it

	inside []*caller // callers in a call that may return a refusal
	doubts []doubt
}

// over reports whether the callers of a life must end.
func (l *life) over() bool { return l.crashed || l.of.s.over }

// main runs the lives of a worker.
func (w *worker) main() {
	s := w.s
	for n := 0; ; n++ {
		if err := w.join(n); err != nil {
			if !s.over {
				s.fail("worker %d cannot join: %v", w.sender, err)
			}
			return
		}
		l := w.life
		w.act.park("working", func() bool { return l.callers == 0 }, time.Time{})
		if !l.over() {
			w.act.doing = "Close"
			err := l.w.Close()
			w.act.yield("closed")
			if err != nil && !l.crashed && !s.over && !isSilent(err) {
				s.fail("worker %d ends with %v", w.sender, err)
			}
			if !l.over() {
				l.settle()
			}
		}
		if s.over || w.left <= 0 {
			return
		}
		w.act.sleep("dead", time.Duration(w.rng.IntN(20_000))*time.Microsecond)
	}
}

// join ends the previous life's admission, if any, and begins another life.
func (w *worker) join(n int) (err error) {
	s := w.s
	hot, cold := s.newEpoch(), s.newEpoch()
	steps := []func() error{
		func() error { return s.withdrawHot(w.sender) },
		func() error { return s.withdrawCold(w.act, w.sender, func() bool { return true }) },
		func() error { return s.admitHot(w.sender, hot, w.host) },
		func() error { return s.admitCold(w.act, w.sender, cold, w.host) },
	}
	if n == 0 {
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
		w.act.yield("joining")
		if s.over {
			return errGone
		}
	}
	l := &life{of: w, callers: s.plan.callers, link: s.open(w.host)}
	cfg := transport.WorkerConfig{
		Link: l.link, Gate: l.link.Enter, Job: job, Sender: w.sender, AggregatorEpoch: hot, ServerEpoch: cold,
		HotSet: s.hot, Layout: s.plan.layout, Stripes: s.plan.stripes,
		Mode: aggregator.Combine, Arithmetic: aggregator.Exact, Exp: ps.DefaultExp,
		Aggregator: s.switched.at, Server: s.servers[0].host.at, Flow: s.plan.flow,
	}
	for _, v := range s.servers[1:] {
		cfg.MoreServers = append(cfg.MoreServers, transport.ServerPeer{At: v.host.at, Epoch: cold})
	}
	if l.w, err = transport.NewWorker(context.Background(), cfg); err != nil {
		return err
	}
	w.life = l
	s.result.Workers++
	for i := range s.plan.callers {
		c := &caller{s: s, life: l, rng: rand.New(rand.NewPCG(s.options.Seed, streamCaller+uint64(w.sender)<<32+uint64(n)<<8+uint64(i)+1))}
		c.act = s.newActor(fmt.Sprintf("caller %d of worker %d", i, w.sender), w.host)
		c.act.start(func() {
			c.main()
			l.callers--
		})
	}
	return nil
}

func (s *sim) newEpoch() uint16 {
	if s.options.fault == sameEpoch {
		return 1
	}
	s.epochs++
	return s.epochs
}

func (s *sim) withdrawHot(sender uint16) error {
	delete(s.ledger.members[s.switched], sender)
	if err := s.model.RemoveSender(job, sender); err != nil && !errors.Is(err, aggregator.ErrNoSender) {
		return err
	}
	return nil
}

func (s *sim) admitHot(sender, epoch uint16, at *host) error {
	s.ledger.admit(s.switched, sender, epoch, at.at)
	return s.model.AddSender(job, aggregator.SenderConfig{ID: sender, Epoch: epoch, IP: at.at.IP, Port: at.at.Port})
}

// withdrawCold and admitCold run in turns: the ledger's record of the server's senders changes when
// the call returns, and two must not return at once.
func (s *sim) withdrawCold(a *actor, sender uint16, still func() bool) error {
	for _, v := range s.servers {
		if err := s.withdrawAt(v, a, sender, still); err != nil {
			return err
		}
	}
	return nil
}

func (s *sim) withdrawAt(v *server, a *actor, sender uint16, still func() bool) error {
	s.lock(a)
	defer s.unlock(a)
	if !still() {
		return nil // another life was admitted while this call waited for its turn
	}
	err := v.ps.Remove(context.Background(), sender)
	delete(s.ledger.members[v.host], sender)
	return err
}

func (s *sim) admitCold(a *actor, sender, epoch uint16, at *host) error {
	for _, v := range s.servers {
		if err := s.admitAt(v, a, sender, epoch, at); err != nil {
			return err
		}
	}
	return nil
}

func (s *sim) admitAt(v *server, a *actor, sender, epoch uint16, at *host) error {
	s.lock(a)
	defer s.unlock(a)
	err := v.ps.Admit(context.Background(), sender, at.at.AddrPort(), epoch)
	s.ledger.admit(v.host, sender, epoch, at.at)
	return err
}

func (s *sim) lock(a *actor) {
	a.park("its turn at the server", func() bool { return !s.locked || s.over }, time.Time{})
	s.locked, a.hasty = true, true // otherwise the server would know before the ledger does
	a.doing = "a call of the server"
}

func (s *sim) unlock(a *actor) { s.locked, a.hasty = false, false }

// evict ends an admission while its worker lives.
func (s *sim) evict(w *worker, where int) {
	l := w.life
	if l == nil || l.callers == 0 || l.crashed {
		return
	}
	s.result.Evictions++
	l.evicted = true
	a := s.newActor(fmt.Sprintf("eviction of worker %d", w.sender), nil)
	a.start(func() {
		var err error
		lives := func() bool { return w.life == l && l.callers > 0 && !s.over }
		if where != 1 && lives() {
			err = s.withdrawHot(w.sender)
		}
		a.yield("evicting")
		if where != 0 && lives() {
			err = errors.Join(err, s.withdrawCold(a, w.sender, lives))
		}
		if err != nil && !s.over {
			s.fail("eviction of worker %d: %v", w.sender, err)
		}
	})
}

// crash ends a worker's process at once.
func (s *sim) crash(w *worker) {
	l := w.life
	if l == nil || l.callers == 0 || l.crashed {
		return
	}
	s.result.Crashes++
	l.crashed, l.link.crashed = true, true
	w.host.resume()
	l.link.inbox, l.link.queue = nil, nil
}
