// SPDX-License-Identifier: Apache-2.0

package grpctest

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"testing"

	"google.golang.org/grpc"
)

// Address is the address of the service of a [Network].
const Address = "192.0.2.1:7700"

// Network carries connections to one service in memory, so that tests of grace periods and leases
// run in a bubble of fake time. It is the service's listener.
type Network struct {
	accepted chan net.Conn
	closed   chan struct{}
	once     sync.Once
}

// NewNetwork returns a network without a service.
func NewNetwork() *Network {
	return &Network{accepted: make(chan net.Conn), closed: make(chan struct{})}
}

// Accept is the service's.
func (n *Network) Accept() (net.Conn, error) {
	select {
	case c := <-n.accepted:
		return c, nil
	case <-n.closed:
		return nil, net.ErrClosed
	}
}

// Close makes further connections fail.
func (n *Network) Close() error { n.once.Do(func() { close(n.closed) }); return nil }

// Addr is [Address].
func (n *Network) Addr() net.Addr { return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(Address)) }

// Connect makes a connection to the service and returns its other end.
func (n *Network) Connect(ctx context.Context, from net.Addr) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case n.accepted <- end{theirs, n.Addr(), from}:
		return ours, nil
	case <-n.closed:
		return nil, ErrCut
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

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

// ErrCut is the error of a connection that breaks.
var ErrCut = errors.New("cable cut")

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
		return 0, ErrCut
	}
}

func (c *cable) Write(b []byte) (int, error) {
	select {
	case <-c.cut:
		return 0, ErrCut
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

// Client is one host's connection to a service; it reconnects by itself.
type Client struct {
	*grpc.ClientConn
	mu     sync.Mutex
	cables []*cable
	down   bool
}

func (c *Client) each(f func(*cable)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, cable := range c.cables {
		f(cable)
	}
	c.cables = nil
}

// Connections returns how many connections were made since the last that broke.
func (c *Client) Connections() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.cables)
}

// Break closes the connections, like the death of the client's process.
func (c *Client) Break() { c.each(func(cable *cable) { cable.Conn.Close() }) }

// HalfOpen makes the client notice a broken connection, but not the service.
func (c *Client) HalfOpen() { c.each((*cable).cutHalf) }

// Vanish breaks the connection for good.
func (c *Client) Vanish() {
	c.StayAway()
	c.Break()
}

// StayAway lets the client make no new connections.
func (c *Client) StayAway() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.down = true
}

// ComeBack ends Vanish and StayAway.
func (c *Client) ComeBack() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.down = false
}

// Serve starts a service on a network of its own, until the test ends.
func Serve(t *testing.T, s *grpc.Server) *Network {
	t.Helper()
	n := NewNetwork()
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

// Socket is a client's end of a connection that breaks with the errors of TCP.
type Socket struct{ net.Conn }

// Read is the connection's.
func (s Socket) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	if errors.Is(err, io.ErrClosedPipe) { // by this side: the other's end is io.EOF
		err = &net.OpError{Op: "read", Net: "tcp", Err: net.ErrClosed}
	}
	return n, err
}

// Write is the connection's.
func (s Socket) Write(b []byte) (int, error) {
	n, err := s.Conn.Write(b)
	if errors.Is(err, io.ErrClosedPipe) {
		err = &net.OpError{Op: "write", Net: "tcp", Err: syscall.EPIPE}
	}
	return n, err
}

// Dialer makes connections to the service from no particular host.
func (n *Network) Dialer() grpc.DialOption {
	return grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		c, err := n.Connect(ctx, n.Addr())
		if err != nil {
			return nil, err
		}
		return Socket{c}, nil
	})
}

// Dial connects from a host.
func (n *Network) Dial(t *testing.T, from string, options ...grpc.DialOption) *Client {
	t.Helper()
	c := &Client{}
	remote := net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(from), 40000))
	conn, err := grpc.NewClient("passthrough:///"+Address, append(slices.Clone(options),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			c.mu.Lock()
			down := c.down
			c.mu.Unlock()
			if down {
				return nil, ErrCut
			}
			ours, err := n.Connect(ctx, remote)
			if err != nil {
				return nil, err
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
