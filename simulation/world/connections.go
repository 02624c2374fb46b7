// SPDX-License-Identifier: Apache-2.0

package world

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"
)

const (
	// resend is how long what a partition has dropped takes to be sent again. For data it doubles
	// each time.
	resend = 200 * time.Millisecond
	// sendLimit is how long the kernel sends data again (TCP_USER_TIMEOUT), as package access sets
	// it. Then the connection ends, and the other host does not learn of it.
	sendLimit = 11 * time.Second
)

var (
	errTimeout = &net.OpError{Op: "write", Net: "tcp", Err: syscall.ETIMEDOUT}
	errReset   = &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}
	errPipe    = &net.OpError{Op: "write", Net: "tcp", Err: syscall.EPIPE}
	errRefused = &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
)

// Connections are the control connections of a world. The world's lock guards all fields.
type Connections struct {
	w         *World
	hooks     ConnectionHooks
	listeners map[netip.AddrPort]*listener
	ends      []*end         // open ends
	dials     []*dialing     // since the last Collect
	count     map[string]int // dials, by process and address
	made      int
	broken    int
}

// ConnectionHooks are what a life has to do with its connections. The world's lock is held.
type ConnectionHooks struct {
	// Message is called before each delivery, and returns how the connection breaks at it, if it
	// does.
	Message func() (b Breakage, breaks bool)
	// Breaks is called when a connection breaks. unnoticed means that its client does not find out
	// within its limit.
	Breaks func(unnoticed bool)
}

// NewConnections adds control connections to a world.
func (w *World) NewConnections(hooks ConnectionHooks) *Connections {
	w.conns = &Connections{w: w, hooks: hooks, listeners: map[netip.AddrPort]*listener{}, count: map[string]int{}}
	return w.conns
}

// Made returns how many connections were made.
func (n *Connections) Made() int { return n.made }

// Broken returns how many connections were broken.
func (n *Connections) Broken() int { return n.broken }

// Listens reports whether a process listens at an address.
func (n *Connections) Listens(at netip.AddrPort) bool { return n.listeners[at] != nil }

// listener is a net.Listener of a process.
type listener struct {
	net      *Connections
	of       *Process
	at       netip.AddrPort
	incoming chan *end
	closed   chan struct{}
}

// dialing is a connection in setup.
type dialing struct {
	name string
	of   *Process // nil: it is given up
	to   netip.AddrPort
	rng  *rand.Rand // of its delays
	done chan error // its result
	end  *end       // the process's, once it is connected
}

// Listen opens a socket of a process.
func (n *Connections) Listen(p *Process, at netip.AddrPort) (net.Listener, error) {
	n.w.Mu.Lock()
	defer n.w.Mu.Unlock()
	if p.Dead() {
		return nil, ErrGone
	}
	if n.listeners[at] != nil {
		return nil, &net.OpError{Op: "listen", Net: "tcp", Err: syscall.EADDRINUSE}
	}
	l := &listener{net: n, of: p, at: at, incoming: make(chan *end, 64), closed: make(chan struct{})}
	n.listeners[at] = l
	return l, nil
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case e := <-l.incoming:
		return e, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	n := l.net
	n.w.Mu.Lock()
	defer n.w.Mu.Unlock()
	n.closeListener(l)
	return nil
}

// closeListener resets the connections that nobody has accepted. The lock is held.
func (n *Connections) closeListener(l *listener) {
	if n.listeners[l.at] == l {
		delete(n.listeners, l.at)
	}
	select {
	case <-l.closed:
		return
	default:
		close(l.closed)
	}
	for len(l.incoming) > 0 {
		(<-l.incoming).closeEnd(errReset)
	}
}

func (l *listener) Addr() net.Addr { return net.TCPAddrFromAddrPort(l.at) }

// Dial connects a process with an address.
func (n *Connections) Dial(ctx context.Context, p *Process, addr string) (net.Conn, error) {
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		return nil, err
	}
	n.w.Mu.Lock()
	if p.Dead() {
		n.w.Mu.Unlock()
		return nil, ErrGone
	}
	route := p.name + ">" + addr
	n.count[route]++
	d := &dialing{name: fmt.Sprintf("%s#%d", route, n.count[route]), of: p, to: to, done: make(chan error, 1)}
	d.rng = n.w.Named(d.name)
	n.dials = append(n.dials, d)
	n.w.Mu.Unlock()
	n.w.Kick()
	select {
	case err := <-d.done:
		if err != nil {
			return nil, err
		}
		return d.end, nil
	case <-ctx.Done():
		n.w.Mu.Lock()
		defer n.w.Mu.Unlock()
		if d.end != nil {
			d.end.closeEnd(errReset)
		}
		d.of = nil
		return nil, ctx.Err()
	}
}

// Collect plans the requests of goroutines since its last call, in an order that does not depend on
// which of them ran first. All are blocked.
func (n *Connections) Collect() {
	if n == nil {
		return
	}
	slices.SortFunc(n.dials, func(a, b *dialing) int { return cmp.Compare(a.name, b.name) })
	for _, d := range n.dials {
		n.w.After(delayOf(d.rng), func() { n.connect(d) })
	}
	n.dials = n.dials[:0]
	for _, e := range n.ends {
		e.sortFrames()
		n.planDelivery(e)
	}
	n.ends = slices.DeleteFunc(n.ends, func(e *end) bool {
		return e.closed && e.peer.closed && !e.due && !e.peer.due
	})
}

func delayOf(rng *rand.Rand) time.Duration {
	d := time.Duration(20_000 + rng.IntN(180_000))
	if rng.IntN(16) == 0 {
		d += time.Duration(rng.IntN(5_000_000))
	}
	return d
}

// connect makes a connection, or tries again.
func (n *Connections) connect(d *dialing) {
	n.w.Mu.Lock()
	defer n.w.Mu.Unlock()
	if d.of == nil || d.of.Dead() {
		d.done <- ErrGone
		return
	}
	there := n.w.Net.HostOf(d.to.Addr())
	if there == nil || !n.w.Net.Reaches(d.of.host, there) || !n.w.Net.Reaches(there, d.of.host) || there.down {
		n.w.After(resend, func() { n.connect(d) })
		return
	}
	l := n.listeners[d.to]
	if l == nil || len(l.incoming) == cap(l.incoming) {
		n.w.Tell("%s is refused\n", d.name)
		d.done <- errRefused
		return
	}
	n.w.Tell("%s connects\n", d.name)
	a := &end{net: n, name: d.name, of: d.of, rng: d.rng, preface: prefaceLen, readable: make(chan struct{}, 1)}
	b := &end{net: n, name: d.name + " back", of: l.of, rng: n.w.Named(d.name + " back"), readable: make(chan struct{}, 1)}
	a.local, b.local = netip.AddrPortFrom(d.of.host.at.IP, 40000), d.to
	a.peer, b.peer = b, a
	n.ends = append(n.ends, a, b)
	d.end = a
	l.incoming <- b
	d.done <- nil
	n.made++
}

// kill closes all connections of a process. With silence its peers are not notified until they send
// something. The lock is held.
func (n *Connections) kill(p *Process, silence bool) {
	if n == nil {
		return
	}
	for _, l := range n.listeners {
		if l.of == p {
			n.closeListener(l)
		}
	}
	for _, e := range n.ends {
		if e.of == p && !e.closed {
			e.closeEnd(ErrGone)
			e.out, e.settled, e.silent = nil, 0, silence
		}
	}
}
