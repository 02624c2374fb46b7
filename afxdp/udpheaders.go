// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// UDPHeaders are the headers of a UDP packet that a program builds itself. [UDPConn] finds the MAC
// addresses by itself; others get that of the next hop from the kernel's table ("ip neigh",
// netlink's NeighList).
type UDPHeaders struct {
	FromMAC, ToMAC [6]byte        // addresses of the interface and of the next hop
	From, To       netip.AddrPort // of one family
}

// Put writes a packet with these headers and the payload, which is copied, to the start of the
// frame's bytes, checksums included. The hop limit is 64; routers must not fragment an IPv4 packet.
// It returns the length of the packet, for Desc.Len. The error is an ErrDescriptor: the packet does
// not fit, or the addresses are invalid or of different families.
func (h *UDPHeaders) Put(frame, payload []byte) (length int, err error) {
	u := UDP{ip: 14, udp: 14 + 20}
	if h.From.Addr().Is6() {
		u.udp = 14 + 40
	}
	length = u.udp + udpHeader + len(payload)
	switch from, to := h.From.Addr(), h.To.Addr(); {
	case !from.IsValid() || from.BitLen() != to.BitLen() || from.Is4In6() || to.Is4In6():
		return 0, fmt.Errorf("%w: a UDP packet from %v to %v: addresses of one family are needed", ErrDescriptor, from, to)
	case length > len(frame) || length-u.ip > 1<<16-1:
		return 0, fmt.Errorf("%w: a UDP payload of %d bytes does not fit: there is room for %d", ErrDescriptor,
			len(payload), max(0, len(frame)-u.udp-udpHeader))
	}
	u.packet = frame[:length]
	copy(u.packet[u.udp+udpHeader:], payload)
	copy(frame, h.ToMAC[:])
	copy(frame[6:], h.FromMAC[:])
	ip := frame[u.ip:u.udp]
	clear(ip)
	if u.v4() {
		binary.BigEndian.PutUint16(frame[12:], etherIPv4)
		ip[0], ip[9] = plainIPv4, protoUDP
		binary.BigEndian.PutUint16(ip[6:], dontFragment)
	} else {
		binary.BigEndian.PutUint16(frame[12:], etherIPv6)
		ip[0], ip[6] = 6<<4, protoUDP
	}
	putAddress(ip, 0, h.From.Addr())
	putAddress(ip, 1, h.To.Addr())
	binary.BigEndian.PutUint16(frame[u.udp:], h.From.Port())
	binary.BigEndian.PutUint16(frame[u.udp+2:], h.To.Port())
	u.complete()
	return length, nil
}

const dontFragment = 1 << 14

// putAddress writes the address of the source, 0, or the destination, 1, into an IP header.
func putAddress(ip []byte, which int, a netip.Addr) {
	if a.Is4() {
		b := a.As4()
		copy(ip[12+4*which:], b[:])
		return
	}
	b := a.As16()
	copy(ip[8+16*which:], b[:])
}
