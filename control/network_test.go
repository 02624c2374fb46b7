// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"

	"google.golang.org/grpc"
)

// network carries control connections in memory, so that tests of grace periods
// and leases run in a bubble of fake time.
type network struct {
	address  net.Addr // of the service
	accepted chan net.Conn
	closed   chan struct{}
	once     sync.Once
}

func (n *network) Accept() (net.Conn, error) {
	select {
	case c := <-n.accepted:
		return c, nil
	case <-n.closed:
		return nil, net.ErrClosed
	}
}
func (n *network) Close() error   { n.once.Do(func() { close(n.closed) }); return nil }
func (n *network) Addr() net.Addr { return n.address }

// cable is a client's end of a connection.
type cable struct {
	net.Conn
	cut chan struct{} // closed when the client's half is dead
	one sync.Once
}

// end is a service's end, with the location of the other.
type end struct {
	net.Conn
	local, remote net.Addr
}

func (e end) LocalAddr() net.Addr  { return e.local }
func (e end) RemoteAddr() net.Addr { return e.remote }

var errCut = errors.New("cable cut")

// cutHalf breaks only the client's half: the service does not notice until its pings are not
// answered.
func (c *cable) cutHalf() { c.one.Do(func() { close(c.cut) }) }

func (c *cable) Read(b []byte) (int, error) {
	type result struct {
		n   int
		err error
	}
	read := make(chan result, 1)
	buf := make([]byte, len(b))
	go func() {
		n, err := c.Conn.Read(buf)
		read <- result{n, err}
	}()
	select {
	case r := <-read:
		return copy(b, buf[:r.n]), r.err
	case <-c.cut:
		go func() { _, _ = io.Copy(io.Discard, c.Conn) }() // the service's writes do not fail
		return 0, errCut
	}
}

func (c *cable) Write(b []byte) (int, error) {
	select {
	case <-c.cut:
		return 0, errCut
	default:
		return c.Conn.Write(b)
	}
}

func (c *cable) Close() error {
	select {
	case <-c.cut:
		return nil
	default:
		return c.Conn.Close()
	}
}

// client is one host's connection to a service; it reconnects by itself.
type client struct {
	*grpc.ClientConn
	mu     sync.Mutex
	cables []*cable
	down   bool
}

func (c *client) each(f func(*cable)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, cable := range c.cables {
		f(cable)
	}
	c.cables = nil
}

// breaks closes the connections, like the death of the client's process.
func (c *client) breaks() { c.each(func(cable *cable) { cable.Conn.Close() }) }

// halfOpens makes the client notice a broken connection, but not the service.
func (c *client) halfOpens() { c.each((*cable).cutHalf) }

// vanish breaks the connection for good.
func (c *client) vanish() {
	c.mu.Lock()
	c.down = true
	c.mu.Unlock()
	c.breaks()
}

// comeBack ends vanish.
func (c *client) comeBack() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.down = false
}

// newNetwork starts a service on its own network.
func newNetwork(t *testing.T, sec Security, register func(*grpc.Server)) *network {
	t.Helper()
	n := &network{
		address:  net.TCPAddrFromAddrPort(netip.MustParseAddrPort("192.0.2.1:7700")),
		accepted: make(chan net.Conn), closed: make(chan struct{}),
	}
	s := NewServer(sec)
	register(s)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = s.Serve(n)
	}()
	t.Cleanup(func() {
		s.Stop()
		<-served
	})
	return n
}

// socket is a client's end of a connection that breaks with the errors of TCP.
type socket struct{ net.Conn }

func (s socket) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	if errors.Is(err, io.ErrClosedPipe) { // by this side: the other's end is io.EOF
		err = &net.OpError{Op: "read", Net: "tcp", Err: net.ErrClosed}
	}
	return n, err
}

func (s socket) Write(b []byte) (int, error) {
	n, err := s.Conn.Write(b)
	if errors.Is(err, io.ErrClosedPipe) {
		err = &net.OpError{Op: "write", Net: "tcp", Err: syscall.EPIPE}
	}
	return n, err
}

// dialer makes connections to the service from no particular host.
func (n *network) dialer() grpc.DialOption {
	return grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		select {
		case n.accepted <- end{theirs, n.address, n.address}:
			return socket{ours}, nil
		case <-n.closed:
			return nil, errCut
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	})
}

// dial connects from a host.
func (n *network) dial(t *testing.T, sec Security, from string, options ...grpc.DialOption) *client {
	t.Helper()
	c := &client{}
	remote := net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(from), 40000))
	conn, err := grpc.NewClient("passthrough:///192.0.2.1:7700", append(append(dialOptions(sec, "192.0.2.1", EitherService()), options...),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			c.mu.Lock()
			down := c.down
			c.mu.Unlock()
			if down {
				return nil, errCut
			}
			ours, theirs := net.Pipe()
			select {
			case n.accepted <- end{theirs, n.address, remote}:
			case <-n.closed:
				return nil, errCut
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			cable := &cable{Conn: ours, cut: make(chan struct{})}
			c.mu.Lock()
			defer c.mu.Unlock()
			c.cables = append(c.cables, cable)
			return cable, nil
		}))...)
	if err != nil {
		t.Fatal(err)
	}
	c.ClientConn = conn
	t.Cleanup(func() { conn.Close() })
	return c
}
