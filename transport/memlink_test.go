// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/transport/endpoint"
	"github.com/libra-ina/libra/wire"
)

// linkBuffers is the number of a memLink's transmit buffers: the windows of a worker's two flows,
// the batch that is being packed, and the same number again.
const linkBuffers = 4 * wire.DefaultWindow

// slab returns n payloads on one piece of memory.
func slab(n int) [][]byte {
	const size = wire.DefaultPayload
	mem := make([]byte, n*size)
	s := make([][]byte, n)
	for i := range s {
		s[i] = mem[i*size : (i+1)*size : (i+1)*size]
	}
	return s
}

// memNet is a network in memory.
type memNet struct {
	mu    sync.Mutex
	hosts map[netip.AddrPort]*memLink
	// limit is the number of payloads that may wait for a host before more are lost.
	limit int
	free  [][]byte // memory of payloads that have been received
}

func newMemNet() *memNet {
	return &memNet{hosts: map[netip.AddrPort]*memLink{}, limit: 4 * wire.DefaultWindow}
}

// memLink is a [link.Link] on a memNet.
type memLink struct {
	net    *memNet
	local  wire.Endpoint
	bufs   [][]byte
	free   []link.Buf
	taken  []bool // by buffer: the endpoint's
	wake   chan struct{}
	stats  link.Stats
	closed bool
	timer  *time.Timer

	inbox []link.Packet // guarded by net.mu
	lent  [][]byte      // payloads of the last Receive
}

var _ link.Link = (*memLink)(nil)

func (n *memNet) open(addr string) *memLink {
	at := netip.MustParseAddrPort(addr)
	l := &memLink{
		net: n, local: wire.Endpoint{IP: at.Addr(), Port: at.Port()},
		bufs: slab(linkBuffers), wake: make(chan struct{}, 1),
		taken: make([]bool, linkBuffers),
	}
	for i := range l.bufs {
		l.free = append(l.free, link.Buf(i))
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.hosts[at] != nil {
		panic(fmt.Sprintf("%v is taken", at))
	}
	n.hosts[at] = l
	return l
}

// silence loses all frames to a host, until the returned function is called.
func (n *memNet) silence(ip netip.Addr) (end func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for at, l := range n.hosts {
		if at.Addr() == ip {
			delete(n.hosts, at)
			return func() {
				n.mu.Lock()
				defer n.mu.Unlock()
				n.hosts[at] = l
			}
		}
	}
	panic(fmt.Sprintf("no host has the address %v", ip))
}

func (l *memLink) Local() wire.Endpoint { return l.local }

func (l *memLink) Limits() link.Limits {
	return link.Limits{MaxPayload: wire.DefaultPayload, Window: wire.DefaultWindow}
}

func (l *memLink) Path(_ context.Context, to wire.Endpoint) (link.Path, error) {
	if !to.IP.IsValid() || to.Port == 0 {
		return nil, fmt.Errorf("%w: no path to %v", link.ErrConfig, to)
	}
	return memPath(to), nil
}

// memPath is a path of a memLink.
type memPath wire.Endpoint

func (p memPath) To() wire.Endpoint { return wire.Endpoint(p) }

func (l *memLink) Alloc() (link.Buf, bool) {
	n := len(l.free)
	if n == 0 {
		return 0, false
	}
	b := l.free[n-1]
	l.free = l.free[:n-1]
	l.taken[b] = true
	return b, true
}

func (l *memLink) Payload(b link.Buf) []byte { return l.bufs[b] }

func (l *memLink) Free(b link.Buf) {
	if !l.taken[b] {
		panic(fmt.Sprintf("buffer %d is freed twice", b))
	}
	l.taken[b] = false
	l.free = append(l.free, b)
}

func (l *memLink) Send(frames []link.Frame) (int, error) {
	if l.closed {
		return 0, net.ErrClosed
	}
	for _, f := range frames {
		payload := l.bufs[f.Buf][:f.Len]
		if f.Retx {
			wire.MarkRetx(payload)
		}
		l.deliver(payload, f.To.To())
	}
	return len(frames), nil
}

func (l *memLink) deliver(payload []byte, to wire.Endpoint) {
	l.stats.Sent++
	n := l.net
	n.mu.Lock()
	defer n.mu.Unlock()
	dst := n.hosts[to.AddrPort()]
	if dst == nil || len(dst.inbox) >= n.limit {
		return
	}
	if len(n.free) == 0 {
		n.free = slab(endpoint.Batch)
	}
	mem := n.free[len(n.free)-1]
	n.free = n.free[:len(n.free)-1]
	mem = mem[:copy(mem, payload)]
	dst.inbox = append(dst.inbox, link.Packet{Packet: wire.Packet{Src: l.local, Dst: to, Payload: mem}})
	dst.Wake()
}

func (l *memLink) Receive(pkts []link.Packet) (int, error) {
	if l.closed {
		return 0, net.ErrClosed
	}
	l.net.mu.Lock()
	defer l.net.mu.Unlock()
	l.net.free = append(l.net.free, l.lent...)
	l.lent = l.lent[:0]
	n := copy(pkts, l.inbox)
	for _, p := range pkts[:n] {
		l.lent = append(l.lent, p.Payload[:cap(p.Payload)])
	}
	l.inbox = append(l.inbox[:0], l.inbox[n:]...)
	l.stats.Received += uint64(n)
	return n, nil
}

func (l *memLink) Reply(pkts []link.Packet) error {
	if l.closed {
		return net.ErrClosed
	}
	for _, p := range pkts {
		if p.Reply > 0 {
			l.deliver(p.Payload[:p.Reply], p.Src)
		}
	}
	return nil
}

func (l *memLink) Wait(limit time.Duration) error {
	if l.closed {
		return net.ErrClosed
	}
	if limit < 0 {
		<-l.wake
		return nil
	}
	if l.timer == nil {
		l.timer = time.NewTimer(limit)
	} else {
		l.timer.Reset(limit)
	}
	select {
	case <-l.wake:
	case <-l.timer.C:
	}
	l.timer.Stop()
	return nil
}

func (l *memLink) Wake() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *memLink) Stats() link.Stats { return l.stats }

func (l *memLink) Close() error {
	l.closed = true
	l.net.mu.Lock()
	defer l.net.mu.Unlock()
	if l.net.hosts[l.local.AddrPort()] == l {
		delete(l.net.hosts, l.local.AddrPort())
	}
	return nil
}

func (n *memNet) addr(s string) netip.Addr { return netip.MustParseAddr(s) }
