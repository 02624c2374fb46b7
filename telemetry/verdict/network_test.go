// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/wire"
)

// network is a network in memory, whose frames take a time on their way.
type network struct {
	mu     sync.Mutex
	oneWay time.Duration
	hosts  map[netip.AddrPort]*memoryLink
	cuts   map[*memoryLink]bool
	more   map[*memoryLink]time.Duration
}

func newNetwork(oneWay time.Duration) *network {
	return &network{oneWay: oneWay, hosts: map[netip.AddrPort]*memoryLink{}, cuts: map[*memoryLink]bool{},
		more: map[*memoryLink]time.Duration{}}
}

// delay makes the frames from and to a link take longer, cut makes them be lost, heal ends that.
func (n *network) delay(l *memoryLink, d time.Duration) { n.change(func() { n.more[l] = d }) }
func (n *network) cut(l *memoryLink)                    { n.change(func() { n.cuts[l] = true }) }
func (n *network) heal()                                { n.change(func() { clear(n.cuts) }) }

func (n *network) change(fn func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	fn()
}

// carry delivers payloads, those to the same link together.
func (n *network) carry(from *memoryLink, to map[netip.AddrPort][]link.Packet) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for at, pkts := range to {
		l := n.hosts[at]
		if n.cuts[from] || n.cuts[l] {
			continue
		}
		time.AfterFunc(n.oneWay+n.more[from]+n.more[l], func() {
			l.mu.Lock()
			l.inbox = append(l.inbox, pkts...)
			l.mu.Unlock()
			l.Wake()
		})
	}
}

// memoryLink is a link on a network. Some of its calls take time, where an endpoint makes them in
// one part of a frame's time only:
//
//   - "alloc" before a frame is filled;
//   - "queue" when the frame is looked up to which an answer belongs;
//   - "process" when that frame is freed;
//   - "receive" before packets are received.
type memoryLink struct {
	net   *network
	local wire.Endpoint
	bufs  [][]byte
	free  []link.Buf
	wake  chan struct{}
	look  bool // the next Payload belongs to an answer

	single atomic.Bool // it receives one packet at a time: no answer waits for another

	mu     sync.Mutex
	inbox  []link.Packet
	slow   map[string]time.Duration
	closed bool
}

type memoryPath wire.Endpoint

func (p memoryPath) To() wire.Endpoint { return wire.Endpoint(p) }

func (n *network) open(at netip.AddrPort) *memoryLink {
	l := &memoryLink{net: n, local: wire.Endpoint{IP: at.Addr(), Port: at.Port()}, wake: make(chan struct{}, 1),
		slow: map[string]time.Duration{}}
	for i := range 2 * wire.DefaultWindow {
		l.bufs = append(l.bufs, make([]byte, wire.DefaultPayload))
		l.free = append(l.free, link.Buf(i))
	}
	n.change(func() { n.hosts[at] = l })
	return l
}

// slowDown makes a call take longer.
func (l *memoryLink) slowDown(call string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.slow[call] = longer
}

func (l *memoryLink) spend(call string) {
	l.mu.Lock()
	d := l.slow[call]
	l.mu.Unlock()
	time.Sleep(d)
}

func (l *memoryLink) Local() wire.Endpoint { return l.local }
func (l *memoryLink) Limits() link.Limits {
	return link.Limits{MaxPayload: wire.DefaultPayload, Window: wire.DefaultWindow}
}
func (l *memoryLink) Path(_ context.Context, to wire.Endpoint) (link.Path, error) {
	return memoryPath(to), nil
}
func (l *memoryLink) Stats() link.Stats { return link.Stats{} }

func (l *memoryLink) Alloc() (link.Buf, bool) {
	l.look = false
	l.spend("alloc")
	n := len(l.free)
	if n == 0 {
		return 0, false
	}
	b := l.free[n-1]
	l.free = l.free[:n-1]
	return b, true
}

func (l *memoryLink) Payload(b link.Buf) []byte {
	if l.look {
		l.spend("queue")
	}
	return l.bufs[b]
}

func (l *memoryLink) Free(b link.Buf) {
	l.spend("process")
	l.free = append(l.free, b)
}

func (l *memoryLink) Send(frames []link.Frame) (int, error) {
	all := map[netip.AddrPort][]link.Packet{}
	for _, f := range frames {
		payload := l.bufs[f.Buf][:f.Len]
		if f.Retx {
			wire.MarkRetx(payload)
		}
		l.pack(all, f.To.To(), payload)
	}
	l.net.carry(l, all)
	return len(frames), nil
}

// pack adds a copy of a payload.
func (l *memoryLink) pack(all map[netip.AddrPort][]link.Packet, to wire.Endpoint, payload []byte) {
	p := link.Packet{}
	p.Src, p.Payload = l.local, append(make([]byte, 0, wire.DefaultPayload), payload...)
	all[to.AddrPort()] = append(all[to.AddrPort()], p)
}

func (l *memoryLink) Receive(pkts []link.Packet) (int, error) {
	l.mu.Lock()
	waiting, closed := len(l.inbox), l.closed
	l.mu.Unlock()
	if closed {
		return 0, net.ErrClosed
	}
	if waiting > 0 {
		l.spend("receive")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	room := len(pkts)
	if l.single.Load() {
		room = 1
	}
	n := copy(pkts[:room], l.inbox)
	l.inbox = l.inbox[n:]
	l.look = n > 0
	return n, nil
}

func (l *memoryLink) Reply(pkts []link.Packet) error {
	all := map[netip.AddrPort][]link.Packet{}
	for _, p := range pkts {
		if p.Reply > 0 {
			l.pack(all, p.Src, p.Payload[:p.Reply])
		}
	}
	l.net.carry(l, all)
	return nil
}

func (l *memoryLink) Wait(limit time.Duration) error {
	if limit < 0 {
		<-l.wake
		return nil
	}
	select {
	case <-l.wake:
	case <-time.After(limit):
	}
	return nil
}

func (l *memoryLink) Wake() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *memoryLink) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	return nil
}
