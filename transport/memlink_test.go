package transport

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/libra-ina/libra/wire"
)

// memNet is a network in memory.
type memNet struct {
	mu    sync.Mutex
	hosts map[netip.AddrPort]*memLink
	// limit is how many payloads wait for a host before more are lost.
	limit int
	free  [][]byte // memory of payloads that have been received
}

func newMemNet() *memNet {
	return &memNet{hosts: map[netip.AddrPort]*memLink{}, limit: 4 * wire.DefaultWindow}
}

// memLink is a [Link] on a memNet.
type memLink struct {
	net    *memNet
	local  wire.Endpoint
	bufs   [][]byte
	free   []Buf
	taken  []bool // by buffer: the endpoint's
	wake   chan struct{}
	stats  LinkStats
	closed bool
	timer  *time.Timer

	inbox []Packet // guarded by net.mu
	lent  [][]byte // payloads of the last Receive
}

var _ Link = (*memLink)(nil)

func (n *memNet) open(addr string) *memLink {
	at := netip.MustParseAddrPort(addr)
	l := &memLink{
		net: n, local: wire.Endpoint{IP: at.Addr(), Port: at.Port()},
		bufs: slab(linkBuffers, wire.MaxPayload), wake: make(chan struct{}, 1),
		taken: make([]bool, linkBuffers),
	}
	for i := range l.bufs {
		l.free = append(l.free, Buf(i))
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.hosts[at] != nil {
		panic(fmt.Sprintf("%v is taken", at))
	}
	n.hosts[at] = l
	return l
}

func (l *memLink) Local() wire.Endpoint { return l.local }
func (l *memLink) MaxPayload() int      { return wire.MaxPayload }
func (l *memLink) Window() int          { return wire.DefaultWindow }

func (l *memLink) Path(_ context.Context, to wire.Endpoint) (*Path, error) {
	return &Path{To: to}, nil
}

func (l *memLink) Join(uint16) error { return nil }

func (l *memLink) Alloc() (Buf, bool) {
	n := len(l.free)
	if n == 0 {
		return 0, false
	}
	b := l.free[n-1]
	l.free = l.free[:n-1]
	l.taken[b] = true
	return b, true
}

func (l *memLink) Payload(b Buf) []byte { return l.bufs[b] }

func (l *memLink) Free(b Buf) {
	if !l.taken[b] {
		panic(fmt.Sprintf("buffer %d is freed twice", b))
	}
	l.taken[b] = false
	l.free = append(l.free, b)
}

func (l *memLink) Send(frames []Frame) (int, error) {
	if l.closed {
		return 0, net.ErrClosed
	}
	for _, f := range frames {
		payload := l.bufs[f.Buf][:f.Len]
		if f.Retx {
			wire.MarkRetx(payload)
		}
		l.deliver(payload, f.To.To)
	}
	return len(frames), nil
}

func (l *memLink) deliver(payload []byte, to wire.Endpoint) {
	l.stats.Sent++
	n := l.net
	n.mu.Lock()
	defer n.mu.Unlock()
	dst := n.hosts[addrPort(to)]
	if dst == nil || len(dst.inbox) >= n.limit {
		return
	}
	if len(n.free) == 0 {
		n.free = slab(rxBatch, wire.MaxPayload)
	}
	mem := n.free[len(n.free)-1]
	n.free = n.free[:len(n.free)-1]
	mem = mem[:copy(mem, payload)]
	dst.inbox = append(dst.inbox, Packet{Packet: wire.Packet{Src: l.local, Dst: to, Payload: mem}})
	dst.Wake()
}

func (l *memLink) Receive(pkts []Packet) (int, error) {
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

func (l *memLink) Reply(pkts []Packet) error {
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

func (l *memLink) Stats() LinkStats { return l.stats }

func (l *memLink) Close() error {
	l.closed = true
	l.net.mu.Lock()
	defer l.net.mu.Unlock()
	if l.net.hosts[addrPort(l.local)] == l {
		delete(l.net.hosts, addrPort(l.local))
	}
	return nil
}

func (n *memNet) addr(s string) netip.Addr { return netip.MustParseAddr(s) }
