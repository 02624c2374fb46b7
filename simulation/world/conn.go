// SPDX-License-Identifier: Apache-2.0

package world

import (
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"time"
)

// end is one end of a connection.
type end struct {
	net      *Connections
	name     string // of the connection; that of its acceptor's end has " back" behind it
	of       *Process
	peer     *end
	local    netip.AddrPort
	rng      *rand.Rand    // of its delays
	out      []byte        // not delivered yet
	preface  int           // bytes of it before the frames
	settled  int           // bytes of it at the last Collect
	fin      bool          // nothing follows out
	silent   bool          // nothing is sent, and the peer is not notified
	due      bool          // a delivery is planned
	again    time.Duration // until the next repetition of what is dropped; 0: nothing is
	dropped  time.Time     // since when
	in       []byte        // delivered
	err      error         // result of a read when in is empty
	closed   bool
	readable chan struct{} // a signal for Read
	deadline time.Time     // of Read; zero: none
}

// planDelivery schedules the next delivery.
func (n *Connections) planDelivery(e *end) {
	if e.due || e.silent || len(e.out) == 0 && !e.fin {
		return
	}
	e.due = true
	n.w.After(delayOf(e.rng), func() { n.deliver(e) })
}

// deliver delivers the next frame.
func (n *Connections) deliver(e *end) {
	n.w.Mu.Lock()
	defer n.w.Mu.Unlock()
	if e.silent {
		e.due = false
		return
	}
	from, to := e.of.host, e.peer.of.host
	if !n.w.Net.Reaches(from, to) || to.paused || to.down {
		n.sendAgain(e)
		return
	}
	e.due, e.again = false, 0
	if e.peer.closed { // the other host no longer knows the connection
		if !e.closed && n.w.Net.Reaches(to, from) {
			e.closeEnd(errReset)
		}
		e.out, e.settled, e.fin = nil, 0, false
		return
	}
	unit := len(e.out)
	if unit > 0 {
		if b, breaks := n.hooks.Message(); breaks && n.breaksAt(e, b) {
			return
		}
	}
	switch {
	case unit == 0:
		n.w.Tell("%s ends\n", e.name)
		e.fin = false
		e.peer.failRead(io.EOF)
		return
	case e.preface > 0:
		unit = min(unit, e.preface)
		e.preface -= unit
	default:
		unit = frameLen(e.out)
	}
	kind := byte(0xff)
	if unit >= frameHead {
		kind = e.out[3]
	}
	n.w.Tell("%s brings a frame of type %d, %d bytes\n", e.name, kind, unit)
	e.peer.in = append(e.peer.in, e.out[:unit]...)
	e.out = append(e.out[:0], e.out[unit:]...)
	e.settled = max(0, e.settled-unit)
	e.peer.signalReader()
	n.planDelivery(e)
}

// sendAgain plans the repetition of data that were dropped. A process that does not run keeps
// nothing from arriving at its host. The lock is held.
func (n *Connections) sendAgain(e *end) {
	to := e.peer.of.host
	if n.w.Net.Reaches(e.of.host, to) && !to.down {
		n.w.After(resend, func() { n.deliver(e) })
		return
	}
	if e.again == 0 {
		e.again, e.dropped = resend, time.Now()
	}
	left := sendLimit - time.Since(e.dropped)
	if left <= 0 {
		n.w.Tell("%s gives up\n", e.name)
		e.closeEnd(errTimeout)
		e.silent, e.due = true, false
		e.out, e.settled = nil, 0
		return
	}
	n.w.After(min(e.again, left), func() { n.deliver(e) })
	e.again *= 2
}

func (e *end) signalReader() {
	select {
	case e.readable <- struct{}{}:
	default:
	}
}

// failRead makes reads fail after all data are read.
func (e *end) failRead(why error) {
	if e.err == nil {
		e.err = why
	}
	e.signalReader()
}

// closeEnd ends this end. The lock is held.
func (e *end) closeEnd(why error) {
	if !e.closed {
		e.closed, e.fin = true, true
		e.failRead(why)
	}
}

func (e *end) Read(b []byte) (int, error) {
	for {
		e.net.w.Mu.Lock()
		n, err := copy(b, e.in), e.err
		e.in = e.in[n:]
		if n == 0 && err == nil && !e.deadline.IsZero() && !time.Now().Before(e.deadline) {
			err = os.ErrDeadlineExceeded
		}
		e.net.w.Mu.Unlock()
		if n > 0 {
			return n, nil
		}
		if err != nil {
			return 0, err
		}
		<-e.readable
	}
}

func (e *end) Write(b []byte) (int, error) {
	e.net.w.Mu.Lock()
	defer e.net.w.Mu.Unlock()
	if e.closed || e.err != nil && !errors.Is(e.err, io.EOF) {
		return 0, errPipe
	}
	e.out = append(e.out, b...)
	e.net.w.Kick()
	return len(b), nil
}

func (e *end) Close() error {
	e.net.w.Mu.Lock()
	defer e.net.w.Mu.Unlock()
	e.closeEnd(net.ErrClosed)
	e.net.w.Kick()
	return nil
}

func (e *end) LocalAddr() net.Addr  { return net.TCPAddrFromAddrPort(e.local) }
func (e *end) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(e.peer.local) }

func (e *end) SetReadDeadline(t time.Time) error {
	e.net.w.Mu.Lock()
	defer e.net.w.Mu.Unlock()
	e.deadline = t
	if !t.IsZero() {
		time.AfterFunc(time.Until(t), e.signalReader)
	}
	return nil
}

func (e *end) SetDeadline(t time.Time) error    { return e.SetReadDeadline(t) }
func (e *end) SetWriteDeadline(time.Time) error { return nil }
