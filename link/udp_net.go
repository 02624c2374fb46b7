// SPDX-License-Identifier: Apache-2.0

package link

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/libra-ina/libra/wire"
)

// glance is the duration of a read that should not block.
const glance = 20 * time.Microsecond

// netSocket is a UDP socket of the standard library, for systems without a system call for several
// datagrams. On Linux only tests use it.
type netSocket struct {
	conn *net.UDPConn
	addr netip.AddrPort
	zone string // for link-local addresses

	refused []int // datagrams of the last batch that the kernel refused to send

	// first is a datagram that waitReadable has read.
	first     Packet
	firstData []byte

	mu      sync.Mutex // orders wake and the deadline of a wait
	pending bool
	waiting bool
}

// largest sets a buffer of n bytes, or half of that, and so on, until the system's limits allow it.
// It returns the size that was set, or less than 64 KiB, which every system allows.
func largest(n int, set func(int) error) int {
	for n >= 1<<16 && set(n) != nil {
		n /= 2
	}
	return n
}

// openNetSocket is an [openSocket].
func openNetSocket(local netip.AddrPort, _ uint32, buffer int) (udpSocket, int, error) {
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(local))
	if err != nil {
		return nil, 0, err
	}
	got := largest(buffer, conn.SetReadBuffer)
	largest(buffer, conn.SetWriteBuffer)
	zone := local.Addr().Zone()
	bound := netip.AddrPortFrom(local.Addr(), conn.LocalAddr().(*net.UDPAddr).AddrPort().Port())
	return &netSocket{conn: conn, addr: bound, zone: zone, firstData: make([]byte, udpRoom)}, got, nil
}

func (s *netSocket) localAddr() netip.AddrPort { return s.addr }

func (s *netSocket) preparePath(to wire.Endpoint) *udpPath { return &udpPath{to: to} }

func (s *netSocket) receiveBatch(pkts []Packet, room [][]byte) (int, error) {
	n := 0
	if s.first.Payload != nil && len(pkts) > 0 {
		pkts[0] = s.first
		pkts[0].Payload = room[0][:copy(room[0], s.first.Payload)]
		s.first = Packet{}
		n++
	}
	for ; n < min(len(pkts), len(room)); n++ {
		// A read with an expired deadline would fail at once.
		s.setDeadline(time.Now().Add(glance))
		p, err := s.readDatagram(room[n])
		if err != nil {
			return n, err
		}
		if p.Payload == nil {
			break
		}
		pkts[n] = p
	}
	return n, nil
}

// readDatagram reads a datagram; the payload is nil if none arrived before the deadline.
func (s *netSocket) readDatagram(buf []byte) (p Packet, err error) {
	n, from, err := s.conn.ReadFromUDPAddrPort(buf)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return p, nil
	case errors.Is(err, net.ErrClosed):
		return p, err
	case err != nil:
		return p, nil // an ICMP error for an earlier datagram
	}
	p.Payload, p.Src.IP, p.Src.Port = buf[:n], from.Addr().Unmap().WithZone(""), from.Port()
	return p, nil
}

func (s *netSocket) writeDatagram(data []byte, to netip.AddrPort) error {
	_, err := s.conn.WriteToUDPAddrPort(data, inZone(to, s.zone))
	return err
}

// inZone adds the zone of the socket to a link-local address. Linux takes the zone from the address
// that the socket is bound to; other systems do not.
func inZone(to netip.AddrPort, zone string) netip.AddrPort {
	if to.Addr().IsLinkLocalUnicast() {
		return netip.AddrPortFrom(to.Addr().WithZone(zone), to.Port())
	}
	return to
}

func (s *netSocket) sendFrames(frames []Frame, payloads [][]byte) udpSent {
	s.refused = s.refused[:0]
	var why error
	for i, f := range frames {
		if err := s.writeDatagram(payloads[f.Buf][:f.Len], f.To.(*udpPath).to.AddrPort()); err != nil {
			s.refused, why = append(s.refused, i), err
		}
	}
	return udpSent{len(frames), s.refused, why}
}

func (s *netSocket) replyBatch(pkts []Packet) (answers int, _ udpSent) {
	s.refused = s.refused[:0]
	var why error
	for _, p := range pkts {
		if p.Reply > 0 {
			if err := s.writeDatagram(p.Payload[:p.Reply], p.Src.AddrPort()); err != nil {
				s.refused, why = append(s.refused, answers), err
			}
			answers++
		}
	}
	return answers, udpSent{answers, s.refused, why}
}

// waitReadable blocks in a read, which wake ends by moving its deadline.
func (s *netSocket) waitReadable(limit time.Duration) (err error) {
	if s.first.Payload != nil {
		return nil
	}
	var deadline time.Time
	if limit >= 0 {
		deadline = time.Now().Add(limit)
	}
	s.mu.Lock()
	if s.pending {
		s.pending = false
		s.mu.Unlock()
		return nil
	}
	s.waiting = true
	s.setDeadline(deadline)
	s.mu.Unlock()
	s.first, err = s.readDatagram(s.firstData)
	s.mu.Lock()
	s.waiting, s.pending = false, false
	s.mu.Unlock()
	return err
}

func (s *netSocket) wakeUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = true
	if s.waiting {
		s.setDeadline(time.Now())
	}
}

// setDeadline sets the deadline of current and later reads. It fails only on a closed socket, where
// they fail too.
func (s *netSocket) setDeadline(t time.Time) { _ = s.conn.SetReadDeadline(t) }

func (s *netSocket) closeSocket() error {
	err := s.conn.Close()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
