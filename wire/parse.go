// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"net/netip"
)

// Packet is a received frame, decoded in place.
type Packet struct {
	Src, Dst Endpoint
	Payload  []byte // UDP payload: header and body, without Ethernet padding
}

// ParseFrame decodes a received Ethernet frame and verifies its checksums. A port other than 0 is
// the expected UDP destination port.
//
// It returns [ErrForeign] for everything that is not recognised as UDP to that port: other
// protocols and ports, fragments, IP options and extension headers, stacked VLAN tags, and frames
// that end before the UDP header does. Only for a recognised frame does it report damage, with
// [ErrTruncated] or [ErrChecksum]. An [ErrPartialChecksum] is also an ErrChecksum.
func ParseFrame(frame []byte, port uint16) (Packet, error) {
	var p Packet
	l, ok := locate(frame)
	if !ok {
		return p, ErrForeign
	}
	udp := frame[l.udp:]
	p.Src.Port = binary.BigEndian.Uint16(udp)
	p.Dst.Port = binary.BigEndian.Uint16(udp[2:])
	if port != 0 && p.Dst.Port != port {
		return p, ErrForeign
	}
	ip := frame[l.ip:l.udp]
	room := 0 // for the datagram, according to the IP header
	if l.v6() {
		room = int(binary.BigEndian.Uint16(ip[4:]))
	} else {
		room = int(binary.BigEndian.Uint16(ip[2:])) - ipv4Len
	}
	length := int(binary.BigEndian.Uint16(udp[4:]))
	if room > len(udp) || length > room || length < udpLen {
		return p, ErrTruncated
	}
	if !l.v6() && fold(sum(0, ip)) != 0xffff {
		return p, ErrChecksum
	}
	if binary.BigEndian.Uint16(udp[6:]) == 0 {
		return p, ErrChecksum
	}
	if fold(sum(protoUDP+uint64(length), l.checksumOf(frame, length))) != 0xffff {
		if binary.BigEndian.Uint16(udp[6:]) == fold(sum(protoUDP+uint64(length), frame[l.addrs():l.udp])) {
			return p, ErrPartialChecksum
		}
		return p, ErrChecksum
	}
	copy(p.Dst.MAC[:], frame[0:6])
	copy(p.Src.MAC[:], frame[6:12])
	if l.v6() {
		p.Src.IP = netip.AddrFrom16([16]byte(ip[8:24]))
		p.Dst.IP = netip.AddrFrom16([16]byte(ip[24:40]))
	} else {
		p.Src.IP = netip.AddrFrom4([4]byte(ip[12:16]))
		p.Dst.IP = netip.AddrFrom4([4]byte(ip[16:20]))
	}
	p.Payload = udp[udpLen:length]
	return p, nil
}

// layout has the offsets of a frame's headers.
type layout struct{ ip, udp int }

// locate finds the IP and UDP headers of a frame. It returns false unless both are present and have
// no unsupported parts.
func locate(frame []byte) (layout, bool) {
	if len(frame) < EnvelopeLen {
		return layout{}, false
	}
	l := layout{ip: ethLen}
	proto := binary.BigEndian.Uint16(frame[12:])
	if proto == etherVLAN {
		proto = binary.BigEndian.Uint16(frame[16:])
		l.ip += vlanLen
	}
	ip := frame[l.ip:]
	switch proto {
	case etherIPv4:
		l.udp = l.ip + ipv4Len
		if len(ip) < ipv4Len+udpLen || ip[0] != ipv4PlainHeader || ip[9] != protoUDP {
			return l, false
		}
		return l, binary.BigEndian.Uint16(ip[6:])&ipv4Fragment == 0
	case etherIPv6:
		l.udp = l.ip + ipv6Len
		return l, len(ip) >= ipv6Len+udpLen && ip[0]>>4 == 6 && ip[6] == protoUDP
	}
	return l, false
}

func (l layout) v6() bool { return l.udp-l.ip == ipv6Len }

// addrs returns the offset of the IP addresses, the source first.
func (l layout) addrs() int {
	if l.v6() {
		return l.ip + 8
	}
	return l.ip + 12
}

// checksumOf returns the bytes that the UDP checksum covers besides the protocol and the length:
// the addresses, which end at the UDP header, and a datagram of length bytes.
func (l layout) checksumOf(frame []byte, length int) []byte {
	return frame[l.addrs() : l.udp+length]
}
