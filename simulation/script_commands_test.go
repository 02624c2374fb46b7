// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/libra-ina/libra/simulation/world"
	"github.com/libra-ina/libra/transport"
	"github.com/libra-ina/libra/wire"
)

const (
	host = `(worker \d+|server|aggregator)`
	onto = host + ` -> ` + host
	keys = `((?:[hc]\d+ )+)`
	word = `(\w+)`
)

// workerCommands are what lines of scripts of workers may say.
var workerCommands = map[string]func(s *script, m []string) error{
	// Life and death of workers.
	`join worker (\d+)`:  withWorker((*script).joinWorker),
	`leave worker (\d+)`: withWorker((*script).leaveJob),
	`crash worker (\d+)`: withWorker(func(s *script, w *worker) error {
		s.crashWorker(w)
		w.session.callers = 0
		s.act.Settle()
		return nil
	}),
	`evict worker (\d+) at (aggregator|server|both)`: func(s *script, m []string) error {
		return withWorker(func(s *script, w *worker) error {
			s.evictWorker(w, map[string]int{"aggregator": 0, "server": 1, "both": 2}[m[1]])
			s.act.Settle()
			return nil
		})(s, m)
	},

	// Calls.
	`push worker (\d+) keys ` + keys + `as ` + word: withCall(func(s *script, c *caller, m []string) error {
		s.beginCall(m[2], c, func() bool { return c.pushRows(s.newBatch(c, m[1])) && c.awaitTicket() })
		return nil
	}),
	`pushlater worker (\d+) keys ` + keys + `as ` + word: withCall(func(s *script, c *caller, m []string) error {
		s.beginCall(m[2], c, func() bool { return c.pushRowsLater(s.newBatch(c, m[1])) && c.awaitTicket() })
		return nil
	}),
	`pull worker (\d+) keys ` + keys + `as ` + word: withCall(func(s *script, c *caller, m []string) error {
		s.beginCall(m[2], c, func() bool { return c.pullRows(s.keysOf(m[1])) })
		return nil
	}),
	`flush worker (\d+) as ` + word: withCall(func(s *script, c *caller, m []string) error {
		s.beginCall(m[1], c, func() bool {
			ended, ok := c.tryFlush()
			return ended && ok
		})
		return nil
	}),
	`prepare worker (\d+) keys ` + keys + `as ` + word: withCall(func(s *script, c *caller, m []string) error {
		s.beginCall("", c, func() bool {
			b, ok := c.prepareBatch(s.keysOf(m[1]))
			s.batches[m[2]] = &scriptBatch{c.session, b}
			return ok && c.locateBatch(b)
		})
		s.act.Settle()
		return c.err
	}),
	`push batch ` + word + ` as ` + word: func(s *script, m []string) error {
		b := s.batches[m[0]]
		if b == nil {
			return fmt.Errorf("no batch %s", m[0])
		}
		c := s.newCaller(b.session)
		s.beginCall(m[1], c, func() bool { return c.pushBatch(b.preparedBatch, false) && c.awaitTicket() })
		return nil
	},
	`cancel ` + word: func(s *script, m []string) error {
		c := s.calls[m[0]]
		if c == nil {
			return fmt.Errorf("no call %s", m[0])
		}
		c.cancel()
		s.act.Settle()
		return nil
	},
	`finish ` + word: func(s *script, m []string) error {
		c := s.calls[m[0]]
		if c == nil {
			return fmt.Errorf("no call %s", m[0])
		}
		s.act.Park("waits for "+m[0], func() bool { return c.returned }, time.Now().Add(bound))
		if !c.returned {
			return fmt.Errorf("%s has not returned", m[0])
		}
		s.act.Settle()
		return nil
	},

	// The network and the hosts.
	`drop ` + onto + ` (\d+)`: withWay(func(s *script, from, to *world.Host, more string) error {
		n, err := strconv.Atoi(more)
		s.Net.Lose(from, to, n)
		return err
	}),
	`hold ` + onto + `()`: withWay(func(s *script, from, to *world.Host, _ string) error {
		s.Net.Hold(from, to)
		s.holds = append(s.holds, [2]*world.Host{from, to})
		return nil
	}),
	`release ` + onto + `()`: withWay(func(s *script, from, to *world.Host, _ string) error {
		s.Net.Release(from, to)
		s.act.Settle()
		return nil
	}),
	`deliver ` + onto + ` (first|last)`: withWay(func(s *script, from, to *world.Host, which string) error {
		return s.deliverHeld(from, to, which, false)
	}),
	`repeat ` + onto + ` (first|last)`: withWay(func(s *script, from, to *world.Host, which string) error {
		return s.deliverHeld(from, to, which, true)
	}),
	`pause ` + host:  withHost(func(h *world.Host) { h.Pause() }),
	`resume ` + host: withHost(func(h *world.Host) { h.Resume() }),
	`settle`: func(s *script, _ []string) error {
		s.act.Settle()
		return nil
	},
	`wait (\S+)`: func(s *script, m []string) error {
		d, err := time.ParseDuration(m[0])
		s.act.Sleep("waits", d)
		s.act.Settle()
		return err
	},
	`harvest`:              func(s *script, _ []string) error { return s.harvestNow(false) },
	`harvest and renumber`: func(s *script, _ []string) error { return s.harvestNow(true) },

	// Checks, beside those of every life.
	`expect ` + word + ` (ok|refused|cancelled|silent|closed|waits)`: func(s *script, m []string) error {
		c := s.calls[m[0]]
		if c == nil {
			return fmt.Errorf("no call %s", m[0])
		}
		if is := c.endState(); is != m[1] {
			return fmt.Errorf("%s is %s, not %s", m[0], is, m[1])
		}
		return nil
	},
	`expect applied ([hc]\d+) = (\d+)`: func(s *script, m []string) error {
		at := s.ledger.index[s.keysOf(m[0])[0]]
		return isNumber(s.appliedTimes(at), m[1])
	},
	`expect kept ` + onto + ` = (\d+)`: withWay(func(s *script, from, to *world.Host, want string) error {
		return isNumber(s.Net.Held(from, to), want)
	}),
	`expect repeated = (\d+)`: func(s *script, m []string) error { return isNumber(s.repeated, m[0]) },
	`expect violation (.+)`: func(s *script, m []string) error {
		s.expects = m[0]
		return nil
	},
	`(?:life|fault) .*`: func(*script, []string) error { return errors.New("the life has begun") },
}

func isNumber(is int, want string) error {
	if strconv.Itoa(is) != want {
		return fmt.Errorf("it is %d", is)
	}
	return nil
}

func withWorker(do func(*script, *worker) error) func(*script, []string) error {
	return func(s *script, m []string) error {
		n, err := strconv.Atoi(m[0])
		if err != nil || n < 1 || n > len(s.workers) {
			return fmt.Errorf("no worker %s", m[0])
		}
		return do(s, s.workers[n-1])
	}
}

func withCall(do func(*script, *caller, []string) error) func(*script, []string) error {
	return func(s *script, m []string) error {
		return withWorker(func(s *script, w *worker) error {
			if w.session == nil {
				return fmt.Errorf("worker %d has not joined", w.sender)
			}
			return do(s, s.newCaller(w.session), m)
		})(s, m)
	}
}

func withWay(do func(s *script, from, to *world.Host, more string) error) func(*script, []string) error {
	return func(s *script, m []string) error {
		from, to := s.hostNamed(m[0]), s.hostNamed(m[1])
		if from == nil || to == nil {
			return fmt.Errorf("no way from %s to %s", m[0], m[1])
		}
		return do(s, from, to, m[2])
	}
}

func withHost(do func(*world.Host)) func(*script, []string) error {
	return func(s *script, m []string) error {
		h := s.hostNamed(m[0])
		if h == nil {
			return fmt.Errorf("no %s", m[0])
		}
		do(h)
		s.act.Settle()
		return nil
	}
}

func (s *script) hostNamed(name string) *world.Host {
	for _, w := range s.workers {
		if w.host.Name() == name {
			return w.host
		}
	}
	for _, h := range s.peerHosts() {
		if h.Name() == name {
			return h
		}
	}
	return nil
}

// joinWorker begins a session.
func (s *script) joinWorker(w *worker) error {
	if w.session != nil {
		w.joined++
	}
	w.startMain()
	s.act.Settle()
	if w.session == nil || w.session.callers == 0 {
		return fmt.Errorf("worker %d has not joined", w.sender)
	}
	return nil
}

// leaveJob ends a session after a flush.
func (s *script) leaveJob(w *worker) error {
	l := w.session
	if l == nil || l.callers == 0 {
		return fmt.Errorf("worker %d has no session", w.sender)
	}
	c := s.beginCall("", s.newCaller(l), nil)
	s.act.Park("waits for a flush", func() bool { return c.returned }, time.Now().Add(bound))
	l.callers = 0
	s.act.Settle()
	return nil
}

func (s *script) newCaller(l *session) *caller {
	c := &caller{life: s.workersLife, session: l, rng: s.Named("caller")}
	c.act = s.NewActor(fmt.Sprintf("call of %s", l.of.host.Name()), l.of.host)
	return c
}

// beginCall begins a call, and returns when nothing else can happen. Without a body it is a flush.
func (s *script) beginCall(name string, c *caller, body func() bool) *scriptCall {
	ctx, cancel := context.WithCancelCause(context.Background())
	c.ctx = ctx
	call := &scriptCall{caller: c, cancel: func() { cancel(errCancelled) }}
	if name != "" {
		s.calls[name] = call
	}
	if body == nil {
		body = func() bool {
			ended, _ := c.tryFlush()
			if ended {
				c.session.flushed++
			}
			return ended
		}
	}
	c.act.Start(func() {
		body()
		call.returned = true
	})
	s.act.Settle()
	return call
}

// endState says how a call has ended.
func (c *scriptCall) endState() string {
	err := c.caller.err
	switch {
	case !c.returned:
		return "waits"
	case err == nil:
		return "ok"
	case errors.Is(err, errCancelled):
		return "cancelled"
	case errors.As(err, new(wire.Refusal)):
		return "refused"
	case isSilent(err):
		return "silent"
	case errors.Is(err, transport.ErrClosed):
		return "closed"
	}
	return err.Error()
}

// keysOf reads keys: h0 is the first hot one, c0 the first cold one.
func (s *script) keysOf(text string) (keys []uint64) {
	for _, name := range strings.Fields(text) {
		n, _ := strconv.Atoi(name[1:])
		if name[0] == 'c' {
			n += s.plan.hot
		}
		keys = append(keys, s.ledger.keys[n%len(s.ledger.keys)])
	}
	return keys
}

// newBatch is a push of new gradients.
func (s *script) newBatch(c *caller, text string) (p *push, keys []uint64, grads []float32) {
	keys = s.keysOf(text)
	p = &push{session: c.session, from: s.ledger.grads.next, most: -1}
	for _, key := range keys {
		grads = c.drawGradients(p, grads, s.ledger.index[key])
	}
	c.recordPush(p)
	return p, keys, grads
}

// appliedTimes is how often gradients of a row were applied.
func (s *script) appliedTimes(row int) (n int) {
	for i := 1; i < s.ledger.grads.next; i++ {
		if g := s.ledger.grads.gradientAt(i); int(g.param) == row*s.plan.dim {
			n += int(g.applied)
		}
	}
	return n
}

func (s *script) deliverHeld(from, to *world.Host, which string, again bool) error {
	at := 0
	if which == "last" {
		at = s.Net.Held(from, to) - 1
	}
	err := s.Net.Deliver(from, to, at, again)
	s.act.Settle()
	return err
}

// harvestNow brings the sums of a bank to the store, which may be replaced by a restored one.
func (s *script) harvestNow(renumber bool) error {
	s.harvest++
	if !s.workersLife.bringHarvest(s.act, s.harvest, s.Named("harvest"), func() bool { return renumber }) {
		return errors.New("the harvest fails")
	}
	s.act.Settle()
	return nil
}
