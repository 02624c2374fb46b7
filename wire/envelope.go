package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
)

const (
	ethLen  = 14
	vlanLen = 4
	ipv4Len = 20
	ipv6Len = 40
	udpLen  = 8

	etherIPv4 = 0x0800
	etherIPv6 = 0x86dd
	etherVLAN = 0x8100
	protoUDP  = 17
	hopLimit  = 64

	// EnvelopeLen is the number of bytes before the [Header] of an untagged
	// IPv4 frame.
	EnvelopeLen = ethLen + ipv4Len + udpLen

	// MaxEnvelopeLen is the number of bytes before the Header of a tagged
	// IPv6 frame, the longest that is accepted.
	MaxEnvelopeLen = ethLen + vlanLen + ipv6Len + udpLen
)

// Endpoint is one end of a flow.
type Endpoint struct {
	MAC  [6]byte
	IP   netip.Addr
	Port uint16
}

func (e Endpoint) String() string {
	return netip.AddrPortFrom(e.IP, e.Port).String()
}

// Envelope writes the Ethernet, IP and UDP headers of one flow. Everything
// that does not change from frame to frame is prepared once.
type Envelope struct {
	head   [ethLen + ipv6Len + udpLen]byte
	n      int
	pseudo uint64 // sum of addresses, protocol and ports
	ip     uint64 // sum of the IPv4 header without length and checksum
}

// NewEnvelope prepares the headers of frames from src to dst. Both addresses
// must be of the same family.
func NewEnvelope(src, dst Endpoint) (*Envelope, error) {
	if !src.IP.IsValid() || !dst.IP.IsValid() {
		return nil, errors.New("wire: envelope needs a source and a destination address")
	}
	src.IP, dst.IP = src.IP.Unmap(), dst.IP.Unmap()
	if src.IP.Is4() != dst.IP.Is4() {
		return nil, fmt.Errorf("wire: %v and %v are of different address families", src.IP, dst.IP)
	}
	e := &Envelope{}
	copy(e.head[0:], dst.MAC[:])
	copy(e.head[6:], src.MAC[:])
	ip := e.head[ethLen:]
	var addrs []byte
	if src.IP.Is4() {
		e.n = EnvelopeLen
		binary.BigEndian.PutUint16(e.head[12:], etherIPv4)
		ip[0] = 0x45
		ip[6] = 0x40 // don't fragment; the ID of such a datagram is free (RFC 6864)
		ip[8], ip[9] = hopLimit, protoUDP
		s, d := src.IP.As4(), dst.IP.As4()
		copy(ip[12:], s[:])
		copy(ip[16:], d[:])
		addrs = ip[12:20]
		e.ip = sum(0, ip[:ipv4Len])
	} else {
		e.n = ethLen + ipv6Len + udpLen
		binary.BigEndian.PutUint16(e.head[12:], etherIPv6)
		ip[0] = 0x60
		ip[6], ip[7] = protoUDP, hopLimit
		s, d := src.IP.As16(), dst.IP.As16()
		copy(ip[8:], s[:])
		copy(ip[24:], d[:])
		addrs = ip[8:40]
	}
	udp := e.head[e.n-udpLen:]
	binary.BigEndian.PutUint16(udp[0:], src.Port)
	binary.BigEndian.PutUint16(udp[2:], dst.Port)
	e.pseudo = sum(sum(protoUDP, addrs), udp[:4])
	return e, nil
}

// Len returns the number of bytes before the [Header].
func (e *Envelope) Len() int { return e.n }

// Payload returns the part of a frame buffer that holds an n-byte payload.
func (e *Envelope) Payload(frame []byte, n int) []byte { return frame[e.n : e.n+n] }

// Seal writes the headers in front of the payload, which must be in place from
// Len() on, and both checksums. The frame's length is the slice's.
func (e *Envelope) Seal(frame []byte) {
	payload := frame[e.n:]
	length := udpLen + len(payload)
	copy(frame, e.head[:e.n])
	if e.n == EnvelopeLen {
		ip := frame[ethLen:]
		total := ipv4Len + length
		binary.BigEndian.PutUint16(ip[2:], uint16(total))
		// e.ip was summed as 64-bit words, so the length goes in at the place
		// where a 16-bit word of the same column adds the same.
		binary.BigEndian.PutUint16(ip[10:], ^fold(uint64(fold(e.ip))+uint64(total)))
	} else {
		binary.BigEndian.PutUint16(frame[ethLen+4:], uint16(length))
	}
	udp := frame[e.n-udpLen:]
	binary.BigEndian.PutUint16(udp[4:], uint16(length))
	acc := uint64(fold(e.pseudo)) + 2*uint64(length)
	binary.BigEndian.PutUint16(udp[6:], udpChecksum(acc+uint64(fold(sum(0, payload)))))
}

// MarkRetx sets [FlagRetx] in a sealed frame and adjusts the UDP checksum by
// the difference (RFC 1624), without reading the payload again.
func (e *Envelope) MarkRetx(frame []byte) {
	payload := frame[e.n:]
	old := binary.BigEndian.Uint16(payload)
	MarkRetx(payload)
	diff := binary.BigEndian.Uint16(payload)
	c := frame[e.n-2 : e.n]
	acc := uint64(^binary.BigEndian.Uint16(c)) + uint64(^old) + uint64(diff)
	binary.BigEndian.PutUint16(c, udpChecksum(acc))
}

// udpChecksum folds and inverts a sum; a result of 0 is sent as 0xffff,
// because 0 means that there is no checksum (RFC 768).
func udpChecksum(acc uint64) uint16 {
	if c := ^fold(acc); c != 0 {
		return c
	}
	return 0xffff
}

// Packet is a received frame, taken apart in place.
type Packet struct {
	Src, Dst Endpoint
	Payload  []byte // UDP payload: header and body, without Ethernet padding
}

// ParseFrame takes a received Ethernet frame apart and verifies its checksums.
// A port other than 0 is the UDP destination port that is ours. It returns
// [ErrForeign] for anything that is not UDP to that port (fragments, IP
// options and extension headers included), [ErrTruncated] and [ErrChecksum]
// for damaged frames.
func ParseFrame(frame []byte, port uint16) (Packet, error) {
	var p Packet
	if len(frame) < ethLen {
		return p, ErrTruncated
	}
	copy(p.Dst.MAC[:], frame[0:6])
	copy(p.Src.MAC[:], frame[6:12])
	proto := binary.BigEndian.Uint16(frame[12:])
	b := frame[ethLen:]
	if proto == etherVLAN {
		if len(b) < vlanLen {
			return p, ErrTruncated
		}
		proto, b = binary.BigEndian.Uint16(b[2:]), b[vlanLen:]
	}
	var addrs []byte
	switch proto {
	case etherIPv4:
		if len(b) < ipv4Len {
			return p, ErrTruncated
		}
		fragment := binary.BigEndian.Uint16(b[6:])&0x3fff != 0
		if b[0] != 0x45 || b[9] != protoUDP || fragment {
			return p, ErrForeign
		}
		total := int(binary.BigEndian.Uint16(b[2:]))
		if total < ipv4Len+udpLen || total > len(b) {
			return p, ErrTruncated
		}
		if fold(sum(0, b[:ipv4Len])) != 0xffff {
			return p, ErrChecksum
		}
		addrs = b[12:20]
		p.Src.IP = netip.AddrFrom4([4]byte(b[12:16]))
		p.Dst.IP = netip.AddrFrom4([4]byte(b[16:20]))
		b = b[ipv4Len:total]
	case etherIPv6:
		if len(b) < ipv6Len {
			return p, ErrTruncated
		}
		if b[0]>>4 != 6 || b[6] != protoUDP {
			return p, ErrForeign
		}
		length := int(binary.BigEndian.Uint16(b[4:]))
		if length < udpLen || length > len(b)-ipv6Len {
			return p, ErrTruncated
		}
		addrs = b[8:40]
		p.Src.IP = netip.AddrFrom16([16]byte(b[8:24]))
		p.Dst.IP = netip.AddrFrom16([16]byte(b[24:40]))
		b = b[ipv6Len : ipv6Len+length]
	default:
		return p, ErrForeign
	}
	p.Src.Port = binary.BigEndian.Uint16(b[0:])
	p.Dst.Port = binary.BigEndian.Uint16(b[2:])
	if port != 0 && p.Dst.Port != port {
		return p, ErrForeign
	}
	length := int(binary.BigEndian.Uint16(b[4:]))
	if length < udpLen || length > len(b) {
		return p, ErrTruncated
	}
	if binary.BigEndian.Uint16(b[6:]) == 0 {
		return p, ErrChecksum
	}
	b = b[:length]
	if fold(sum(sum(protoUDP+uint64(length), addrs), b)) != 0xffff {
		return p, ErrChecksum
	}
	p.Payload = b[udpLen:]
	return p, nil
}
