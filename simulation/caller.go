// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/libra-ina/libra/simulation/world"
	"github.com/libra-ina/libra/transport"
)

var errCancelled = errors.New("simulation: the caller has given up")

// caller is a goroutine of a training process, which pushes and pulls.
type caller struct {
	life    *workersLife
	session *session
	act     *world.Actor
	rng     *rand.Rand
	tickets []*push // waiting

	prepared []*preparedBatch

	ctx context.Context // of its calls; nil: drawn for each
	err error           // that the last call has returned
}

// push is a batch that a caller has submitted.
type push struct {
	session  *session
	from, to int // numbers of its gradients
	queued   bool
	ticket   *transport.Ticket
	accepted bool // the call has returned a ticket
	judged   bool
	failed   bool
	most     int // number of its frames if known, else -1
	frames   []*frame
}

func (c *caller) runCalls() {
	w := c.session.of
	for w.left > 0 && !c.session.isOver() {
		w.left--
		c.life.result.Calls++
		if !c.makeCall() {
			return
		}
	}
	for len(c.tickets) > 0 && !c.session.isOver() {
		if !c.awaitTicket() {
			return
		}
	}
	for !c.session.isOver() {
		ended, ok := c.tryFlush()
		if ended {
			c.session.flushed++
		}
		if ended || !ok {
			return
		}
	}
}

// makeCall makes one call, and returns false if the life has ended.
func (c *caller) makeCall() bool {
	hasty := c.life.plan.hasty && c.rng.IntN(8) > 0 && len(c.tickets) <= c.life.plan.tickets
	switch n := c.rng.IntN(16); {
	case n < 6 || hasty:
		return c.pushSome()
	case n < 9:
		return c.pushSomeLater()
	case n < 11:
		return c.pullSome()
	case n < 12:
		return c.flushAll()
	case n < 14 || len(c.tickets) > c.life.plan.tickets:
		return len(c.tickets) == 0 || c.awaitTicket()
	default:
		c.act.Sleep("idle", time.Duration(c.rng.IntN(3000))*time.Microsecond)
		return true
	}
}

// beginCall names the next call and gives it a context, which may end.
func (c *caller) beginCall(name string) context.Context {
	c.act.Yield("calls " + name)
	c.act.Do(name)
	if c.ctx != nil {
		return c.ctx
	}
	if c.life.plan.kinds&Cancel != 0 && !c.life.Healed() && c.rng.IntN(6) == 0 {
		return c.givenUp(time.Duration(c.rng.IntN(5000)) * time.Microsecond)
	}
	return context.Background()
}

// givenUp returns a context that ends in a while.
func (c *caller) givenUp(soon time.Duration) context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	var try func()
	try = func() {
		if c.act.At("wake") {
			// Otherwise it would choose at random between two reasons to continue.
			c.life.After(50*time.Microsecond, try)
			return
		}
		c.life.result.Cancelled++
		cancel(errCancelled)
	}
	c.life.After(soon, try)
	return ctx
}

// hasReturned parks after a call, and reports whether its result counts.
func (c *caller) hasReturned(err error) bool {
	c.err = err
	c.act.Yield("returns from " + c.act.Doing())
	return !c.session.isOver()
}

// drawBatch draws rows, with a new gradient each.
func (c *caller) drawBatch(most int) (p *push, keys []uint64, grads []float32) {
	l := c.life.ledger
	p = &push{session: c.session, from: l.grads.next, most: -1}
	for range 1 + c.rng.IntN(most) {
		at := c.rng.IntN(len(l.keys))
		if l.grads.next+l.dim >= maxGrads {
			break
		}
		keys = append(keys, l.keys[at])
		grads = c.drawGradients(p, grads, at)
	}
	c.recordPush(p)
	return p, keys, grads
}

// drawGradients appends new gradients of a row.
func (c *caller) drawGradients(p *push, grads []float32, at int) []float32 {
	l := c.life.ledger
	for col := range l.dim {
		grads = append(grads, l.gradientOf(p, at*l.dim+col, c.rng.IntN(2) == 0 && c.life.plan.positive == 0))
	}
	return grads
}

// recordPush records a push with all its gradients.
func (c *caller) recordPush(p *push) {
	p.to = c.life.ledger.grads.next
	c.session.pushes = append(c.session.pushes, p)
	c.life.result.Pushes++
}

func (c *caller) pushSome() bool {
	if c.rng.IntN(2) == 0 {
		return c.pushPrepared()
	}
	return c.pushRows(c.drawBatch(c.life.plan.rows))
}

func (c *caller) pushRows(p *push, keys []uint64, grads []float32) bool {
	ctx := c.beginCall("Push")
	ticket, err := c.session.w.Push(ctx, keys, grads)
	if !c.hasReturned(err) {
		return false
	}
	for i := range grads {
		grads[i] = -1 // the caller owns the slices again
	}
	if err != nil {
		return c.session.judgePush(p, err)
	}
	p.ticket, p.accepted = ticket, true
	c.tickets = append(c.tickets, p)
	return true
}

func (c *caller) pushSomeLater() bool {
	return c.pushRowsLater(c.drawBatch(min(8, c.life.plan.rows)))
}

func (c *caller) pushRowsLater(p *push, keys []uint64, grads []float32) bool {
	p.queued = true
	c.beginCall("PushLater")
	ticket, err := c.session.w.PushLater(context.Background(), keys, grads)
	if !c.hasReturned(err) {
		return false
	}
	if err != nil {
		return c.session.judgePush(p, err)
	}
	p.ticket, p.accepted = ticket, true
	c.tickets = append(c.tickets, p)
	return true
}

// awaitTicket waits for the oldest ticket.
func (c *caller) awaitTicket() bool {
	p := c.tickets[0]
	ctx := c.beginCall("Ticket.Wait")
	defer c.mayBeTold()()
	err := p.ticket.Wait(ctx)
	if !c.hasReturned(err) {
		return false
	}
	if errors.Is(err, errCancelled) && !errors.As(err, new(*transport.PushError)) {
		return true
	}
	c.tickets = c.tickets[1:]
	return c.session.judgePush(p, err)
}

func (c *caller) pullSome() bool {
	l := c.life.ledger
	keys := make([]uint64, 1+c.rng.IntN(c.life.plan.rows))
	for i := range keys {
		keys[i] = l.keys[c.rng.IntN(len(l.keys))]
	}
	return c.pullRows(keys)
}

func (c *caller) pullRows(keys []uint64) bool {
	l := c.life.ledger
	rows := make([]float32, len(keys)*l.dim)
	ctx, since := c.beginCall("Pull"), c.life.Step()
	err := c.session.w.Pull(ctx, keys, rows)
	if !c.hasReturned(err) {
		return false
	}
	if err != nil {
		return c.session.isExcused("a pull", err)
	}
	for i, key := range keys {
		if row := rows[i*l.dim:][:l.dim]; !l.wasHeld(key, since, row) {
			c.life.Fail("a pull of key %d by worker %d brings %v, which the store did not hold", key, c.session.of.sender, row)
		}
	}
	return true
}

// flushAll flushes, and again if it has given up: the second reports what the first did not.
func (c *caller) flushAll() bool {
	ended, ok := c.tryFlush()
	if !ended && ok {
		_, ok = c.tryFlush()
	}
	return ok
}

// refusedMeanwhile sometimes ends an admission while a flush waits, and makes its caller give up at
// about that time.
func (c *caller) refusedMeanwhile(ctx context.Context) context.Context {
	s, w := c.life, c.session.of
	rng := s.Named(fmt.Sprintf("flush of %s at call %d", c.act.Name(), s.result.Calls))
	often, where, soon := rng.IntN(8) == 0, rng.IntN(3), time.Duration(rng.IntN(300))*time.Microsecond
	givesUp, by := rng.IntN(2) == 0, time.Duration(rng.IntN(300))*time.Microsecond
	if !often || s.plan.kinds&Evict == 0 {
		return ctx
	}
	s.After(soon, func() {
		if !s.Healed() && c.act.Doing() == "Flush" {
			s.evictWorker(w, where)
		}
	})
	if givesUp && s.plan.kinds&Cancel != 0 && !s.Healed() {
		return c.givenUp(by)
	}
	return ctx
}

// tryFlush flushes, and reports whether everything is acknowledged and whether the life continues.
func (c *caller) tryFlush() (ended, ok bool) {
	before := append([]*push(nil), c.session.pushes...)
	accepted := before[:0]
	for _, p := range before {
		if p.accepted && !p.failed {
			accepted = append(accepted, p)
		}
	}
	ctx := c.refusedMeanwhile(c.beginCall("Flush"))
	told := c.mayBeTold()
	defer told()
	err := c.session.w.Flush(ctx)
	if !c.hasReturned(err) {
		return false, false
	}
	if err != nil {
		ok = c.session.isExcused("a flush", err)
		if ok && c.ctx == nil && c.rng.IntN(2) == 0 { // then its wait may be over when the next begins
			c.act.Sleep("has given up", time.Millisecond<<c.rng.IntN(8))
		}
		return false, ok
	}
	told()
	for _, p := range accepted {
		c.session.checkFlushed(p)
	}
	return true, true
}
