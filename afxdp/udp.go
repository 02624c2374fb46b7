// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"
)

// UDP is a view of a UDP packet that [ParseUDP] found in the bytes of a received packet, for a
// program that reads and answers it in place. It is valid as long as the frame is the caller's.
type UDP struct {
	packet []byte // from the Ethernet header to the end of the IP packet
	ip     int    // offset of the IP header
	udp    int    // offset of the UDP header
}

// ParseUDP looks for a UDP packet over IPv4 or IPv6, after at most one VLAN tag: a packet that
// [MatchUDP] matches, with lengths that are within the packet. ok is false for any other; u is then
// unusable and its methods panic. It does not verify checksums, see ChecksumValid. Ethernet padding
// is excluded.
func ParseUDP(packet []byte) (u UDP, ok bool) {
	if len(packet) < 14 {
		return UDP{}, false
	}
	h := look(packet)
	if !h.ports || h.protocol != protoUDP {
		return UDP{}, false
	}
	u.ip = 14
	if binary.BigEndian.Uint16(packet[12:]) == etherVLAN {
		u.ip = 18
	}
	ip := packet[u.ip:]
	header, length := 20, int(binary.BigEndian.Uint16(ip[2:]))
	if h.etherType == etherIPv6 {
		header, length = 40, 40+int(binary.BigEndian.Uint16(ip[4:]))
	}
	u.udp = u.ip + header
	own := int(binary.BigEndian.Uint16(packet[u.udp+4:]))
	if length > len(ip) || own < udpHeader || header+own > length {
		return UDP{}, false
	}
	u.packet = packet[:u.udp+own]
	return u, true
}

const udpHeader = 8

// Payload returns the bytes after the UDP header. Its capacity ends with that of the packet, which
// for packets of [UMEM.Packet] is the frame's end.
func (u UDP) Payload() []byte { return u.packet[u.udp+udpHeader:] }

// VLAN returns the tag's control information, whose low 12 bits are the VLAN's number; ok is false
// for a packet without a tag.
func (u UDP) VLAN() (tci uint16, ok bool) {
	if !u.tagged() {
		return 0, false
	}
	return binary.BigEndian.Uint16(u.packet[14:]), true
}

func (u UDP) tagged() bool { return u.ip == 18 }

// Source returns the address and port of the sender.
func (u UDP) Source() netip.AddrPort { return u.address(0) }

// Destination returns the address and port that the packet was sent to.
func (u UDP) Destination() netip.AddrPort { return u.address(1) }

// address returns the address and port of the source, 0, or the destination, 1.
func (u UDP) address(which int) netip.AddrPort {
	port := binary.BigEndian.Uint16(u.packet[u.udp+2*which:])
	from, size := u.addresses()
	a, _ := netip.AddrFromSlice(u.packet[from+which*size : from+(which+1)*size])
	return netip.AddrPortFrom(a, port)
}

// addresses returns the offset of the source address, which the destination's follows, and the size
// of each.
func (u UDP) addresses() (from, size int) {
	if u.v4() {
		return u.ip + 12, 4
	}
	return u.ip + 8, 16
}

func (u UDP) v4() bool { return u.udp-u.ip == 20 }

// ChecksumValid verifies the checksums of the UDP packet and of an IPv4 header (RFC 768, 791 and
// 8200). Packets that never left the machine, such as those of a veth pair from the kernel's
// sockets, may have no checksum yet: for these a false means nothing.
func (u UDP) ChecksumValid() bool {
	if u.v4() && fold(sum(0, u.packet[u.ip:u.udp])) != 0xffff {
		return false
	}
	if binary.BigEndian.Uint16(u.packet[u.udp+6:]) == 0 {
		return u.v4() // "no checksum", which IPv6 does not have
	}
	return fold(u.pseudo(sum(0, u.packet[u.udp:]))) == 0xffff
}

// Reply turns the packet into an answer with this payload, in place: Ethernet and IP addresses and
// ports are swapped, lengths and checksums are new, the hop limit is 64, a VLAN tag stays. payload
// may be the packet's own, changed and with a different length; otherwise it is copied. Reply
// returns the length of the packet, for Desc.Len.
//
// The error, which leaves the packet unchanged, is an ErrDescriptor: the payload does not fit the
// frame or an IP packet, or the packet has no address to answer from or to, because it was sent to
// several machines or from no port. The caller must ensure that the answer fits the interface's
// MTU.
func (u UDP) Reply(payload []byte) (length int, err error) {
	length = u.udp + udpHeader + len(payload)
	switch {
	case length > cap(u.packet):
		return 0, fmt.Errorf("%w: a UDP payload of %d bytes does not fit: there is room for %d", ErrDescriptor,
			len(payload), cap(u.packet)-u.udp-udpHeader)
	case length-u.ip > 1<<16-1:
		return 0, fmt.Errorf("%w: a UDP payload of %d bytes is longer than an IP packet", ErrDescriptor, len(payload))
	case !u.answerable():
		return 0, fmt.Errorf("%w: a packet from %v to %v, %x, has no answer", ErrDescriptor, u.Source(), u.Destination(),
			u.packet[:6])
	}
	u.packet = u.packet[:length]
	copy(u.packet[u.udp+udpHeader:], payload)

	swap(u.packet, 0, 6)
	from, size := u.addresses()
	swap(u.packet, from, size)
	swap(u.packet, u.udp, 2)
	u.complete()
	return length, nil
}

// complete writes the lengths, the hop limit and the checksums.
func (u UDP) complete() {
	ip, udp := u.packet[u.ip:], u.packet[u.udp:]
	binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
	if u.v4() {
		binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
		ip[8], ip[10], ip[11] = hopLimit, 0, 0
		binary.BigEndian.PutUint16(ip[10:], ^fold(sum(0, ip[:20])))
	} else {
		binary.BigEndian.PutUint16(ip[4:], uint16(len(udp)))
		ip[7] = hopLimit
	}
	udp[6], udp[7] = 0, 0
	check := ^fold(u.pseudo(sum(0, udp)))
	if check == 0 {
		check = 0xffff // zero means that there is none
	}
	binary.BigEndian.PutUint16(udp[6:], check)
}

const hopLimit = 64 // recommended by RFC 1700

// answerable reports whether the packet went from one machine to this one alone.
func (u UDP) answerable() bool {
	from, to := u.Source(), u.Destination()
	one := func(a netip.Addr) bool {
		return !a.IsMulticast() && !a.IsUnspecified() && a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
	}
	const group = 1 // bit of an Ethernet address
	return (u.packet[0]|u.packet[6])&group == 0 && one(from.Addr()) && one(to.Addr()) && from.Port() != 0
}

// swap exchanges n bytes at an offset with the n bytes after them.
func swap(b []byte, at, n int) {
	for i := at; i < at+n; i++ {
		b[i], b[i+n] = b[i+n], b[i]
	}
}

// pseudo adds the pseudo-header of the UDP packet to a sum.
func (u UDP) pseudo(acc uint64) uint64 {
	from, size := u.addresses()
	length := uint64(len(u.packet) - u.udp)
	acc = sum(acc, u.packet[from:from+2*size])
	acc, carry := bits.Add64(acc, length+protoUDP, 0)
	return acc + carry
}

// sum adds the 16-bit words of b in ones' complement (RFC 1071), eight bytes at a time, which gives
// the same result.
func sum(acc uint64, b []byte) uint64 {
	var carry uint64
	for ; len(b) >= 8; b = b[8:] {
		acc, carry = bits.Add64(acc, binary.BigEndian.Uint64(b), carry)
	}
	var rest [8]byte
	copy(rest[:], b)
	acc, carry = bits.Add64(acc, binary.BigEndian.Uint64(rest[:]), carry)
	return acc + carry
}

// fold reduces a sum to 16 bits.
func fold(acc uint64) uint16 {
	acc = acc>>32 + acc&(1<<32-1)
	for acc > 1<<16-1 {
		acc = acc>>16 + acc&(1<<16-1)
	}
	return uint16(acc)
}
