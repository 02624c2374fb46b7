// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"encoding/binary"
	"net/netip"

	"github.com/libra-ina/libra/wire"
)

// readdress changes sender or receiver.
func (g *Generator) readdress(src, dst wire.Endpoint) (_, _ wire.Endpoint) {
	switch g.rng.IntN(8) {
	case 0:
		src.MAC[g.rng.IntN(6)] ^= 1 << g.rng.IntN(8)
	case 1:
		src.IP = Host(g.rng.IntN(200)).IP
	case 2:
		src = Host(g.rng.IntN(Senders))
	case 3:
		src.Port = uint16(g.rng.Uint32N(65536))
	case 4:
		dst = Host(g.rng.IntN(4))
	case 5:
		dst.Port = uint16(g.rng.Uint32N(65536))
	case 6:
		dst.MAC = Host(g.rng.IntN(4)).MAC
	case 7:
		dst = Host(g.rng.IntN(4))
		src.IP, dst.IP = netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2")
	}
	return src, dst
}

// seal writes a frame with the payload to the generator's buffer.
func (g *Generator) seal(src, dst wire.Endpoint, payload []byte) []byte {
	e, err := wire.NewEnvelope(src, dst)
	if err != nil {
		panic(err) // readdress keeps the addresses' families the same
	}
	frame := g.buf[:e.Len()+len(payload)]
	copy(frame[e.Len():], payload)
	e.Seal(frame)
	return frame
}

// tag inserts a VLAN tag.
func (g *Generator) tag(frame []byte) []byte {
	frame = frame[:len(frame)+4]
	copy(frame[16:], frame[12:])
	binary.BigEndian.PutUint16(frame[12:], 0x8100)
	binary.BigEndian.PutUint16(frame[14:], uint16(g.rng.Uint32N(65536)))
	return frame
}

// damage changes a sealed frame and keeps its checksums. The headers come before offset 46.
func (g *Generator) damage(frame []byte) []byte {
	const headers = 46
	switch g.rng.IntN(11) {
	case 0, 1:
		frame[g.rng.IntN(min(headers, len(frame)))] ^= 1 << g.rng.IntN(8)
	case 2:
		frame[g.rng.IntN(min(headers, len(frame)))] = byte(g.rng.Uint32())
	case 3:
		frame[g.rng.IntN(len(frame))] ^= 1 << g.rng.IntN(8)
	case 4:
		frame = frame[:14+g.rng.IntN(len(frame)-13)]
	case 5: // padding
		n := len(frame) + g.rng.IntN(64)
		for i := len(frame); i < n; i++ {
			g.buf[i] = byte(g.rng.Uint32())
		}
		frame = g.buf[:n]
	case 6: // an IPv4 header field, and the header checksum
		at := 14 + g.rng.IntN(20)
		if len(frame) >= 34 {
			frame[at] ^= 1 << g.rng.IntN(8)
			fixIPv4(frame)
		}
	case 7: // no UDP checksum, or the other representation of zero
		if len(frame) >= 42 {
			binary.BigEndian.PutUint16(frame[40:], -uint16(g.rng.IntN(2)))
		}
	case 8:
		frame = g.trail(frame)
	case 9:
		zeroChecksum(frame)
	case 10:
		PartialChecksum(frame)
	}
	return frame
}

// trail makes an untagged frame's UDP datagram end before the IP packet. The trailing bytes are not
// zero, and often one more stripe, which no receiver may add.
func (g *Generator) trail(frame []byte) []byte {
	if len(frame) < wire.EnvelopeLen || isTagged(frame) {
		return frame
	}
	n := [...]int{1, 2, 3, 4, 40, wire.StripeLen, wire.StripeLen}[g.rng.IntN(7)]
	for range n {
		frame = append(frame, byte(1+g.rng.IntN(255)))
	}
	if end := len(frame) - n; n == wire.StripeLen && end-n >= wire.EnvelopeLen+wire.HeaderLen {
		copy(frame[end:], frame[end-n:end])
	}
	ip := frame[14:34]
	binary.BigEndian.PutUint16(ip[2:], binary.BigEndian.Uint16(ip[2:])+uint16(n))
	fixIPv4(frame)
	return frame
}

// zeroChecksum chooses the source port of an untagged, sealed frame so that the UDP checksum is 0,
// and writes 0 instead of 0xffff: 0 means no checksum.
func zeroChecksum(frame []byte) {
	if len(frame) < wire.EnvelopeLen || isTagged(frame) {
		return
	}
	port, check := frame[34:36], frame[40:42]
	sum := uint32(binary.BigEndian.Uint16(port)) + uint32(binary.BigEndian.Uint16(check))
	binary.BigEndian.PutUint16(port, uint16(sum>>16+sum&0xffff))
	binary.BigEndian.PutUint16(check, 0)
}

// PartialChecksum gives an untagged frame the UDP checksum that Linux leaves for a network card to
// complete: the sum of the pseudo header.
func PartialChecksum(frame []byte) {
	if len(frame) < wire.EnvelopeLen || isTagged(frame) {
		return
	}
	const protoUDP = 17
	sum := uint32(protoUDP) + uint32(binary.BigEndian.Uint16(frame[38:]))
	for at := 26; at < 34; at += 2 {
		sum += uint32(binary.BigEndian.Uint16(frame[at:]))
	}
	sum = sum>>16 + sum&0xffff
	sum = sum>>16 + sum&0xffff
	binary.BigEndian.PutUint16(frame[40:], uint16(sum))
}

func isTagged(frame []byte) bool { return frame[12] == 0x81 && frame[13] == 0 }

// fixIPv4 computes the checksum of an untagged frame's IPv4 header.
func fixIPv4(frame []byte) {
	ip := frame[14:34]
	binary.BigEndian.PutUint16(ip[10:], 0)
	var sum uint32
	for i := 0; i < len(ip); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	sum = sum>>16 + sum&0xffff
	sum = sum>>16 + sum&0xffff
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum))
}
