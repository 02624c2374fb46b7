// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"
)

// A control connection carries the frames of HTTP/2 one by one: each is an event, so that the
// effects of one end before the next arrives.
const (
	prefaceLen = 24 // length of a client's preface
	frameHead  = 9
	resend     = 200 * time.Millisecond // of segments that a partition has dropped
)

var (
	errReset   = &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}
	errPipe    = &net.OpError{Op: "write", Net: "tcp", Err: syscall.EPIPE}
	errRefused = &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
)

// tcp has the control connections of a cluster. Its lock guards all fields.
type tcp struct {
	s         *sim
	listeners map[netip.AddrPort]*listener
	ends      []*end     // open ends
	dials     []*dialing // since the last collect
	count     map[string]int
}

// listener is a net.Listener of a process.
type listener struct {
	of       *process
	at       netip.AddrPort
	incoming chan *end
	closed   chan struct{}
}

// dialing is a connection in setup.
type dialing struct {
	name string
	of   *process
	to   netip.AddrPort
	rng  *rand.Rand
	done chan error
	end  *end
}

// end is one end of a connection.
type end struct {
	net      *tcp
	name     string
	of       *process
	peer     *end
	local    netip.AddrPort
	rng      *rand.Rand
	out      []byte // not delivered yet
	preface  int    // bytes of it before the frames
	settled  int    // bytes of it at the last collect
	fin      bool   // nothing follows out
	silent   bool   // nothing is sent, and the peer is not notified
	due      bool   // a delivery is planned
	in       []byte // delivered
	err      error  // result of a read when in is empty
	closed   bool
	readable chan struct{}
	deadline time.Time
}

// named returns random numbers that depend only on a name, not on when they are drawn.
func (s *sim) named(name string) *rand.Rand {
	h := fnv.New64a()
	_, _ = io.WriteString(h, name)
	return s.random(h.Sum64() | 1<<63)
}

func (n *tcp) listen(p *process, at netip.AddrPort) (net.Listener, error) {
	n.s.mu.Lock()
	defer n.s.mu.Unlock()
	if p.dead.Load() {
		return nil, errGone
	}
	if n.listeners[at] != nil {
		return nil, &net.OpError{Op: "listen", Net: "tcp", Err: syscall.EADDRINUSE}
	}
	l := &listener{of: p, at: at, incoming: make(chan *end, 64), closed: make(chan struct{})}
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
	n := l.of.c.tcp
	n.s.mu.Lock()
	defer n.s.mu.Unlock()
	n.shut(l)
	return nil
}

func (n *tcp) shut(l *listener) {
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
		(<-l.incoming).close(errReset)
	}
}

func (l *listener) Addr() net.Addr { return net.TCPAddrFromAddrPort(l.at) }

func (n *tcp) dial(ctx context.Context, p *process, addr string) (net.Conn, error) {
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		return nil, err
	}
	n.s.mu.Lock()
	if p.dead.Load() {
		n.s.mu.Unlock()
		return nil, errGone
	}
	way := p.name + ">" + addr
	n.count[way]++
	d := &dialing{name: fmt.Sprintf("%s#%d", way, n.count[way]), of: p, to: to, done: make(chan error, 1)}
	d.rng = n.s.named(d.name)
	n.dials = append(n.dials, d)
	n.s.mu.Unlock()
	n.s.kick()
	select {
	case err := <-d.done:
		if err != nil {
			return nil, err
		}
		return d.end, nil
	case <-ctx.Done():
		n.s.mu.Lock()
		defer n.s.mu.Unlock()
		if d.end != nil {
			d.end.close(errReset)
		}
		d.of = nil
		return nil, ctx.Err()
	}
}

// collect plans the requests of goroutines since the last call, in an order that does not depend on
// which of them ran first. All are blocked.
func (n *tcp) collect() {
	slices.SortFunc(n.dials, func(a, b *dialing) int { return cmp.Compare(a.name, b.name) })
	for _, d := range n.dials {
		n.s.after(delayOf(d.rng), func() { n.connect(d) })
	}
	n.dials = n.dials[:0]
	for _, e := range n.ends {
		e.settle()
		n.plan(e)
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

// plan schedules the next delivery.
func (n *tcp) plan(e *end) {
	if e.due || e.silent || len(e.out) == 0 && !e.fin {
		return
	}
	e.due = true
	n.s.after(delayOf(e.rng), func() { n.deliver(e) })
}

// settle sorts the frames written since the last collect into an order that does not depend on
// which goroutine wrote first: frames of no call, or of a call with a single frame among them, come
// first. HTTP/2 allows that.
func (e *end) settle() {
	fresh := e.out[e.settled:]
	if e.settled == 0 && e.preface > 0 {
		fresh = fresh[min(len(fresh), e.preface):]
	}
	e.settled = len(e.out)
	if len(fresh) == 0 {
		return
	}
	var frames [][]byte
	calls := map[uint32]bool{}
	for rest := fresh; len(rest) > 0; {
		unit := frameLen(rest)
		frames = append(frames, rest[:unit])
		if k := rest[3]; k == frameHeaders || k == frameData {
			calls[streamOf(rest)] = true
		}
		rest = rest[unit:]
	}
	if len(frames) < 2 {
		return
	}
	slices.SortStableFunc(frames, func(a, b []byte) int {
		x, y := !calls[streamOf(a)], !calls[streamOf(b)]
		switch {
		case x != y && x:
			return -1
		case x != y:
			return 1
		case x:
			return cmp.Or(cmp.Compare(a[3], b[3]), cmp.Compare(streamOf(a), streamOf(b)))
		}
		return 0
	})
	copy(fresh, slices.Concat(frames...))
}

const (
	frameData    = 0
	frameHeaders = 1
)

// frameLen returns the length of b's first frame, limited to b.
func frameLen(b []byte) int {
	if len(b) < frameHead {
		return len(b)
	}
	return min(len(b), frameHead+int(binary.BigEndian.Uint32(b)>>8))
}

func streamOf(frame []byte) uint32 { return binary.BigEndian.Uint32(frame[5:]) }

// reaches reports whether a segment that is sent now arrives.
func (n *tcp) reaches(from, to *host) bool {
	return n.s.net.cut[[2]*host{from, to}] <= 0
}

// connect makes a connection, or tries again.
func (n *tcp) connect(d *dialing) {
	n.s.mu.Lock()
	defer n.s.mu.Unlock()
	if d.of == nil || d.of.dead.Load() {
		d.done <- errGone
		return
	}
	there := n.s.cluster.hostOf(d.to.Addr())
	if !n.reaches(d.of.host, there) || !n.reaches(there, d.of.host) || there.down {
		n.s.after(resend, func() { n.connect(d) })
		return
	}
	l := n.listeners[d.to]
	if l == nil || len(l.incoming) == cap(l.incoming) {
		n.s.tell("%s is refused\n", d.name)
		d.done <- errRefused
		return
	}
	n.s.tell("%s connects\n", d.name)
	a := &end{net: n, name: d.name, of: d.of, rng: d.rng, preface: prefaceLen, readable: make(chan struct{}, 1)}
	b := &end{net: n, name: d.name + " back", of: l.of, rng: n.s.named(d.name + " back"), readable: make(chan struct{}, 1)}
	a.local, b.local = netip.AddrPortFrom(d.of.host.at.IP, 40000), d.to
	a.peer, b.peer = b, a
	n.ends = append(n.ends, a, b)
	d.end = a
	l.incoming <- b
	d.done <- nil
	n.s.cluster.result.Connections++
}

// deliver delivers the next frame.
func (n *tcp) deliver(e *end) {
	n.s.mu.Lock()
	defer n.s.mu.Unlock()
	if e.silent {
		e.due = false
		return
	}
	from, to := e.of.host, e.peer.of.host
	if !n.reaches(from, to) || to.paused || to.down {
		n.s.after(resend, func() { n.deliver(e) })
		return
	}
	e.due = false
	if e.peer.closed { // the other host no longer knows the connection
		if !e.closed && n.reaches(to, from) {
			e.close(errReset)
		}
		e.out, e.settled, e.fin = nil, 0, false
		return
	}
	unit := len(e.out)
	if unit > 0 {
		if n.s.cluster.moment(byMessages); n.meets(e) {
			return
		}
	}
	switch {
	case unit == 0:
		n.s.tell("%s ends\n", e.name)
		e.fin = false
		e.peer.fail(io.EOF)
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
	n.s.tell("%s brings a frame of type %d, %d bytes\n", e.name, kind, unit)
	e.peer.in = append(e.peer.in, e.out[:unit]...)
	e.out = append(e.out[:0], e.out[unit:]...)
	e.settled = max(0, e.settled-unit)
	e.peer.signal()
	n.plan(e)
}

func (e *end) signal() {
	select {
	case e.readable <- struct{}{}:
	default:
	}
}

// fail makes reads fail after all data are read.
func (e *end) fail(why error) {
	if e.err == nil {
		e.err = why
	}
	e.signal()
}

// close ends this end. The lock is held.
func (e *end) close(why error) {
	if !e.closed {
		e.closed, e.fin = true, true
		e.fail(why)
	}
}

func (e *end) Read(b []byte) (int, error) {
	for {
		e.net.s.mu.Lock()
		n, err := copy(b, e.in), e.err
		e.in = e.in[n:]
		if n == 0 && err == nil && !e.deadline.IsZero() && !time.Now().Before(e.deadline) {
			err = os.ErrDeadlineExceeded
		}
		e.net.s.mu.Unlock()
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
	e.net.s.mu.Lock()
	defer e.net.s.mu.Unlock()
	if e.closed || e.err != nil && !errors.Is(e.err, io.EOF) {
		return 0, errPipe
	}
	e.out = append(e.out, b...)
	e.net.s.kick()
	return len(b), nil
}

func (e *end) Close() error {
	e.net.s.mu.Lock()
	defer e.net.s.mu.Unlock()
	e.close(net.ErrClosed)
	e.net.s.kick()
	return nil
}

func (e *end) LocalAddr() net.Addr  { return net.TCPAddrFromAddrPort(e.local) }
func (e *end) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(e.peer.local) }

func (e *end) SetReadDeadline(t time.Time) error {
	e.net.s.mu.Lock()
	defer e.net.s.mu.Unlock()
	e.deadline = t
	if !t.IsZero() {
		time.AfterFunc(time.Until(t), e.signal)
	}
	return nil
}

func (e *end) SetDeadline(t time.Time) error    { return e.SetReadDeadline(t) }
func (e *end) SetWriteDeadline(time.Time) error { return nil }

// kill closes all connections of a process. With silence its peers are not notified until they send
// something.
func (n *tcp) kill(p *process, silence bool) {
	for _, l := range n.listeners {
		if l.of == p {
			n.shut(l)
		}
	}
	for _, e := range n.ends {
		if e.of == p && !e.closed {
			e.close(errGone)
			e.out, e.settled, e.silent = nil, 0, silence
		}
	}
}

// breakage is how a connection breaks: for both ends, or for one end without notice to the other.
type breakage struct{ which, how int }

// breakOne breaks a connection.
func (n *tcp) breakOne(which, how int) {
	n.s.mu.Lock()
	defer n.s.mu.Unlock()
	var open []*end
	for _, e := range n.ends {
		if !e.closed && !e.peer.closed {
			open = append(open, e)
		}
	}
	if len(open) > 0 {
		n.breakEnd(open[which%len(open)], how)
	}
}

// meets reports whether the connection breaks at the next message to the peer of e, which may be
// lost.
func (n *tcp) meets(e *end) bool {
	c := n.s.cluster
	b, ok := c.breaks[c.moments[byMessages]]
	if !ok || n.s.healed || e.closed {
		return false
	}
	if b.which%2 == 0 {
		e = e.peer
	}
	n.breakEnd(e, b.how)
	return true
}

// breakEnd breaks a connection at one end first. The lock is held.
func (n *tcp) breakEnd(e *end, how int) {
	n.s.tell("%s breaks, way %d\n", e.name, how)
	n.s.cluster.result.Broken++
	for _, p := range n.s.cluster.procs {
		if !p.ready { // its work until then is not repeated
			n.s.cluster.happened |= Reset
		}
	}
	switch how {
	case 0:
		e.close(errReset)
		e.peer.close(errReset)
	case 1: // half open: the other end has to find out
		if e.preface == 0 && strings.HasSuffix(e.name, " back") {
			n.s.cluster.happened |= Reset // its client does not find out within its limit
		}
		e.close(errReset)
		e.silent = true
		e.peer.silent = true
	default: // like the first, but data in flight still arrive
		e.close(errReset)
	}
}

// tell traces an event with its time.
func (s *sim) tell(format string, args ...any) {
	s.trace("%9d "+format, append([]any{time.Since(s.began).Microseconds()}, args...)...)
}
