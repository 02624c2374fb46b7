// SPDX-License-Identifier: Apache-2.0

package control

import (
	"sync"
	"time"
)

// connection is one stream of a peer: over is closed when the service ends it, with the reason in
// why.
type connection struct {
	over chan struct{}
	why  error
}

func newConnection() *connection { return &connection{over: make(chan struct{})} }

// endStream ends the stream. It must be called only once.
func (c *connection) endStream(why error) {
	c.why = why
	close(c.over)
}

// deadline calls a function, with the lock held, when its time expires before it is stopped. The
// caller of its methods holds the lock.
type deadline struct {
	lock  sync.Locker
	timer *time.Timer // nil while the timer is stopped
}

// startTimer starts or restarts the timer.
func (d *deadline) startTimer(limit time.Duration, over func()) {
	var timer *time.Timer
	timer = time.AfterFunc(limit, func() {
		d.lock.Lock()
		defer d.lock.Unlock()
		if d.timer == timer { // else it was stopped while this waited for the lock
			d.timer = nil
			over()
		}
	})
	d.timer = timer
}

// isAwaited reports whether the timer is running.
func (d *deadline) isAwaited() bool { return d.timer != nil }

// stopTimer reports whether the timer was running. The function is not called after it.
func (d *deadline) stopTimer() bool {
	if d.timer == nil {
		return false
	}
	d.timer.Stop()
	d.timer = nil
	return true
}

// presence tracks whether a peer is connected. A peer whose connection breaks may reconnect within
// a grace period; after it, gone is called with the lock held. The caller of its methods holds the
// lock.
type presence struct {
	grace time.Duration
	gone  func()

	conn     *connection // nil while the peer is disconnected
	deadline deadline    // of the grace period
	until    time.Time   // end of the grace period
}

func newPresence(lock sync.Locker, grace time.Duration, gone func()) presence {
	return presence{grace: grace, gone: gone, deadline: deadline{lock: lock}}
}

// beginConnection begins a connection. It replaces an existing one, which is half open: the peer
// has detected its failure before us.
func (p *presence) beginConnection(replaced error) *connection {
	p.stopPresence(replaced)
	p.conn = newConnection()
	return p.conn
}

// connectionBroke records that a connection broke. It ignores a connection that was replaced.
func (p *presence) connectionBroke(c *connection) {
	if p.conn == c {
		p.conn = nil
		p.awaitReturn()
	}
}

// awaitReturn begins the grace period.
func (p *presence) awaitReturn() { p.awaitFor(p.grace) }

// awaitFor begins a grace period of another length.
func (p *presence) awaitFor(limit time.Duration) {
	p.until = time.Now().Add(limit)
	p.deadline.startTimer(limit, p.gone)
}

// stopPresence ends the connection and the grace period; gone is not called after it.
func (p *presence) stopPresence(why error) {
	if p.conn != nil {
		p.conn.endStream(why)
		p.conn = nil
	}
	p.deadline.stopTimer()
}

func (p *presence) isConnected() bool { return p.conn != nil }
