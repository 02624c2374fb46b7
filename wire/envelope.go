// SPDX-License-Identifier: Apache-2.0

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

	ipv4PlainHeader  = 0x45   // version 4, five words: no options
	ipv4DontFragment = 0x4000 // the ID of such a datagram is free (RFC 6864)
	ipv4Fragment     = 0x3fff // more-fragments bit and fragment offset

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

// AddrPort returns the endpoint without its Ethernet address.
func (e Endpoint) AddrPort() netip.AddrPort { return netip.AddrPortFrom(e.IP, e.Port) }

func (e Endpoint) String() string { return e.AddrPort().String() }

// Envelope writes the Ethernet, IP and UDP headers of one flow. Everything that is the same in all
// frames is prepared once.
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
		s, d := src.IP.As4(), dst.IP.As4()
		copy(ip[12:], s[:])
		copy(ip[16:], d[:])
		addrs = ip[12:20]
		putIPv4(ip)
		e.ip = sum(0, ip[:ipv4Len])
	} else {
		e.n = ethLen + ipv6Len + udpLen
		binary.BigEndian.PutUint16(e.head[12:], etherIPv6)
		s, d := src.IP.As16(), dst.IP.As16()
		copy(ip[8:], s[:])
		copy(ip[24:], d[:])
		addrs = ip[8:40]
		putIPv6(ip)
	}
	udp := e.head[e.n-udpLen:]
	binary.BigEndian.PutUint16(udp[0:], src.Port)
	binary.BigEndian.PutUint16(udp[2:], dst.Port)
	e.pseudo = sum(sum(protoUDP, addrs), udp[:4])
	return e, nil
}

// putIPv4 writes the first 12 bytes of an IPv4 header except the length: no type of service, no ID,
// one fragment, no checksum yet.
func putIPv4(ip []byte) {
	binary.BigEndian.PutUint16(ip, ipv4PlainHeader<<8)
	binary.BigEndian.PutUint32(ip[4:], ipv4DontFragment)
	binary.BigEndian.PutUint32(ip[8:], hopLimit<<24|protoUDP<<16)
}

// putIPv6 writes the first 8 bytes of an IPv6 header except the length: no traffic class, no flow
// label.
func putIPv6(ip []byte) {
	binary.BigEndian.PutUint32(ip, 6<<28)
	ip[6], ip[7] = protoUDP, hopLimit
}

// Len returns the number of bytes before the [Header].
func (e *Envelope) Len() int { return e.n }

// Payload returns the part of a frame buffer that holds an n-byte payload.
func (e *Envelope) Payload(frame []byte, n int) []byte { return frame[e.n : e.n+n] }

// Seal writes the headers and both checksums before the payload, which must already be in place
// from Len() on. The frame's length is the slice's.
func (e *Envelope) Seal(frame []byte) {
	payload := frame[e.n:]
	length := udpLen + len(payload)
	copy(frame, e.head[:e.n])
	ip := frame[ethLen:]
	if e.n == EnvelopeLen {
		total := ipv4Len + length
		binary.BigEndian.PutUint16(ip[2:], uint16(total))
		binary.BigEndian.PutUint16(ip[10:], ^fold(e.ip+uint64(total)))
	} else {
		binary.BigEndian.PutUint16(ip[4:], uint16(length))
	}
	udp := frame[e.n-udpLen:]
	binary.BigEndian.PutUint16(udp[4:], uint16(length))
	// The length counts twice: in the pseudo header and in the UDP header.
	binary.BigEndian.PutUint16(udp[6:], udpChecksum(sum(e.pseudo+2*uint64(length), payload)))
}
