// SPDX-License-Identifier: Apache-2.0

package link

import (
	"context"
	"fmt"
	"math/bits"
	"net"
	"net/netip"
	"time"

	"github.com/libra-ina/libra/telemetry"
	"github.com/libra-ina/libra/wire"
)

const (
	// udpRoom is the size of a receive buffer: larger than a payload of Libra, so that a datagram
	// that is too long is detected instead of truncated.
	udpRoom = 2048

	// udpBuffer is the buffer size that a socket requests for each direction: a few peers' full
	// windows of frames.
	udpBuffer = 8 << 20

	// udpCharge is the size that the kernel charges a receive buffer for a datagram of a full-sized
	// frame: the data and its bookkeeping.
	udpCharge = 2304

	// udpWindowMax bounds the window of UDP links. More frames in flight only lengthen the queue of
	// a kernel socket, until timeouts shorter than the queueing delay retransmit frames that are
	// not lost (see BenchmarkUDP).
	udpWindowMax = 128

	// udpSenders is the assumed number of senders that fill a receive buffer at the same time.
	udpSenders = 4

	// linkBuffers is the number of transmit buffers: the windows of a worker's two flows, the batch
	// that is being packed, and the same again.
	linkBuffers = 4 * wire.DefaultWindow
)

// udpSocket moves batches of datagrams through a kernel UDP socket. mmsgSocket does so with one
// system call per batch; netSocket works on every system.
type udpSocket interface {
	localAddr() netip.AddrPort
	// preparePath returns the path to an address of the socket's family.
	preparePath(to wire.Endpoint) *udpPath
	// receiveBatch reads up to len(pkts) datagrams, each into one of room.
	receiveBatch(pkts []Packet, room [][]byte) (int, error)
	// sendFrames sends up to batchSize frames, frame f from payloads[f.Buf].
	sendFrames(frames []Frame, payloads [][]byte) udpSent
	// replyBatch sends the answers of a batch of packets that receiveBatch returned, and returns
	// their number.
	replyBatch(pkts []Packet) (answers int, s udpSent)
	waitReadable(limit time.Duration) error
	wakeUp()
	closeSocket() error
}

// udpSent is the result of sending a batch.
type udpSent struct {
	taken   int   // datagrams that the socket accepted
	refused []int // those of them that the kernel refused to send; valid until the next batch
	why     error // the latest reason
}

type udpPath struct {
	to       wire.Endpoint
	sockaddr []byte // in the kernel's format; mmsgSocket only
}

func (p *udpPath) To() wire.Endpoint { return p.to }

// udpLink is a [Link] on a kernel UDP socket.
type udpLink struct {
	sock     udpSocket
	local    wire.Endpoint
	zone     uint32 // index of the interface of a link-local address
	window   int
	payloads [][]byte // transmit buffers
	free     []Buf
	room     [][]byte // receive buffers
	stats    Stats
	tap      udpTap
	closed   bool
}

var _ Link = (*udpLink)(nil)

// OpenUDP returns a link on a kernel UDP socket that is bound to an address of this host; port 0
// selects a free one. It needs no privileges. The address must not be a wildcard, because peers
// accept answers only from the address that they sent to. A link-local address needs its zone. The
// link needs no [Join]: the aggregator of the UDP backend sends each sender its own copy, and a
// worker of another aggregator gets results when it retransmits.
//
// The socket requests 8 MB of receive buffer. If the system grants less (net.core.rmem_max), the
// link's Window is smaller, so that bursts of frames do not overrun the peer.
func OpenUDP(local netip.AddrPort) (Link, error) { return openUDP(local, openUDPSocket) }

// openSocket binds a socket and requests receive and send buffers of the given size. It returns the
// size of the receive buffer that it got. The zone is the index of the interface of a link-local
// address.
type openSocket func(local netip.AddrPort, zone uint32, buffer int) (_ udpSocket, got int, err error)

func openUDP(local netip.AddrPort, open openSocket) (Link, error) {
	local = netip.AddrPortFrom(local.Addr().Unmap(), local.Port())
	if !local.Addr().IsValid() || local.Addr().IsUnspecified() {
		return nil, fmt.Errorf("%w: udp: %v is not an address of this host that peers can answer to", ErrConfig, local.Addr())
	}
	zone, err := checkZone(local.Addr())
	if err != nil {
		return nil, fmt.Errorf("link: udp: %w", err)
	}
	sock, buffer, err := open(local, zone, udpBuffer)
	if err != nil {
		return nil, fmt.Errorf("link: udp: %w", err)
	}
	bound := sock.localAddr()
	l := &udpLink{
		sock:     sock,
		local:    wire.Endpoint{IP: bound.Addr().WithZone(""), Port: bound.Port()},
		zone:     zone,
		window:   udpWindow(buffer),
		payloads: make([][]byte, linkBuffers),
		room:     slab(batchSize, udpRoom),
		tap:      newUDPTap(),
	}
	copy(l.payloads, slab(linkBuffers, l.maxPayload()))
	l.free = make([]Buf, linkBuffers)
	for i := range l.free {
		l.free[i] = Buf(linkBuffers - 1 - i)
	}
	return l, nil
}

// udpWindow returns the number of frames, a power of two, that each of a few senders may have in
// flight to a receive buffer.
func udpWindow(buffer int) int {
	n := max(16, buffer/udpCharge/udpSenders)
	return min(udpWindowMax, 1<<(bits.Len(uint(n))-1))
}

// slab returns n slices of the same size from one allocation.
func slab(n, size int) [][]byte {
	mem := make([]byte, n*size)
	s := make([][]byte, n)
	for i := range s {
		s[i] = mem[i*size : (i+1)*size : (i+1)*size]
	}
	return s
}

func (l *udpLink) Local() wire.Endpoint { return l.local }

func (l *udpLink) Limits() Limits {
	return Limits{MaxPayload: l.maxPayload(), Window: l.window}
}

// maxPayload assumes an MTU of 1500 bytes.
func (l *udpLink) maxPayload() int { return maxPayload(wire.DefaultMTU, l.local.IP) }

// maxPayload returns the largest UDP payload that fits an MTU.
func maxPayload(mtu int, ip netip.Addr) int {
	const ipv4, ipv6, udp = 20, 40, 8
	if ip.Is4() {
		return mtu - ipv4 - udp
	}
	return mtu - ipv6 - udp
}

func (l *udpLink) Path(_ context.Context, to wire.Endpoint) (Path, error) {
	var err error
	if to.IP, err = peerZone(to.IP.Unmap(), l.zone); err != nil {
		return nil, fmt.Errorf("%w: no path from udp address %v to %v: %w", ErrConfig, l.local, to, err)
	}
	if !to.IP.IsValid() || to.Port == 0 || to.IP.Is4() != l.local.IP.Is4() {
		return nil, fmt.Errorf("%w: no path from udp address %v to %v", ErrConfig, l.local, to)
	}
	return l.sock.preparePath(to), nil
}

func (l *udpLink) Alloc() (Buf, bool) {
	n := len(l.free)
	if n == 0 {
		return 0, false
	}
	b := l.free[n-1]
	l.free = l.free[:n-1]
	return b, true
}

func (l *udpLink) Payload(b Buf) []byte { return l.payloads[b] }

// Free can reuse the buffer at once: the kernel has copied the data.
func (l *udpLink) Free(b Buf) { l.free = append(l.free, b) }

func (l *udpLink) Send(frames []Frame) (int, error) {
	if l.closed {
		return 0, net.ErrClosed
	}
	taken := 0
	for taken < len(frames) {
		batch := frames[taken:min(len(frames), taken+batchSize)]
		for _, f := range batch {
			if f.Retx {
				wire.MarkRetx(l.payloads[f.Buf])
			}
		}
		shown, listening := l.tap.beginBatch()
		s := l.sock.sendFrames(batch, l.payloads)
		l.countSent(&s)
		if listening {
			l.showSent(&shown, batch, &s)
		}
		taken += s.taken
		if s.taken < len(batch) {
			break
		}
	}
	return taken, nil
}

func (l *udpLink) countSent(s *udpSent) {
	l.stats.Sent += uint64(s.taken - len(s.refused))
	l.stats.SendError += uint64(len(s.refused))
	if s.why != nil {
		l.stats.LastError = s.why
	}
}

func (l *udpLink) Receive(pkts []Packet) (int, error) {
	if l.closed {
		return 0, net.ErrClosed
	}
	n, err := l.sock.receiveBatch(pkts, l.room)
	if err != nil {
		return 0, fmt.Errorf("link: udp at %v: %w", l.local, err)
	}
	l.showReceived(pkts[:n])
	whole := 0
	for _, p := range pkts[:n] {
		if len(p.Payload) > l.maxPayload() {
			l.stats.Truncated++
			continue
		}
		p.Dst = l.local
		pkts[whole] = p
		whole++
	}
	l.stats.Received += uint64(whole)
	return whole, nil
}

func (l *udpLink) Reply(pkts []Packet) error {
	if l.closed {
		return net.ErrClosed
	}
	for len(pkts) > 0 {
		batch := pkts[:min(len(pkts), batchSize)]
		shown, listening := l.tap.beginBatch()
		answers, s := l.sock.replyBatch(batch)
		l.countSent(&s)
		if listening {
			l.showReplies(&shown, batch, &s)
		}
		l.stats.NoRoom += uint64(answers - s.taken)
		pkts = pkts[len(batch):]
	}
	return nil
}

func (l *udpLink) Wait(limit time.Duration) error {
	if l.closed {
		return net.ErrClosed
	}
	return l.sock.waitReadable(limit)
}

// StampArrivals implements [Stamper]: with the times that the kernel gives datagrams.
func (l *udpLink) StampArrivals(sample int) bool {
	s, ok := l.sock.(interface{ stampDatagrams(telemetry.Draw) bool })
	return ok && s.stampDatagrams(telemetry.NewDraw(sample))
}

// Watch implements [Watcher].
func (l *udpLink) Watch(fd int) bool {
	s, ok := l.sock.(interface{ watchDescriptor(fd int) })
	if ok {
		s.watchDescriptor(fd)
	}
	return ok
}

func (l *udpLink) Wake() { l.sock.wakeUp() }

func (l *udpLink) Stats() Stats { return l.stats }

func (l *udpLink) Close() error {
	l.closed = true
	l.tap.closeListeners()
	return l.sock.closeSocket()
}
