package control

import (
	"sync"
	"time"
)

// connection is one stream of a peer: over is closed when the service ends it,
// with the reason in why.
type connection struct {
	over chan struct{}
	why  error
}

func newConnection() *connection { return &connection{over: make(chan struct{})} }

// end ends the stream. It is called once.
func (c *connection) end(why error) {
	c.why = why
	close(c.over)
}

// presence follows whether a peer is connected. A peer whose connection breaks
// may come back within a grace period; after it, gone is called with the lock.
// The caller of its methods holds the lock.
type presence struct {
	lock  sync.Locker
	grace time.Duration
	gone  func()

	conn  *connection // nil while the peer is not connected
	timer *time.Timer // of the grace period
	until time.Time   // its end
}

// connect begins a connection. It replaces one that there is, because that is
// half open: the peer knows that it broke, and we do not yet.
func (p *presence) connect(replaced error) *connection {
	p.stop(replaced)
	p.conn = newConnection()
	return p.conn
}

// disconnect notes that a connection broke. Of one that was replaced, it does
// nothing.
func (p *presence) disconnect(c *connection) {
	if p.conn == c {
		p.conn = nil
		p.await()
	}
}

// await begins the grace period.
func (p *presence) await() {
	p.until = time.Now().Add(p.grace)
	var timer *time.Timer
	timer = time.AfterFunc(p.grace, func() {
		p.lock.Lock()
		defer p.lock.Unlock()
		if p.timer == timer { // else the peer came back while this waited for the lock
			p.timer = nil
			p.gone()
		}
	})
	p.timer = timer
}

// stop ends the connection and the grace period; gone is not called after it.
func (p *presence) stop(why error) {
	if p.conn != nil {
		p.conn.end(why)
		p.conn = nil
	}
	if p.timer != nil {
		p.timer.Stop()
		p.timer = nil
	}
}

func (p *presence) connected() bool { return p.conn != nil }
