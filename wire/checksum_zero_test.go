// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/libra-ina/libra/wire"
)

// zeroSumFrame is a frame whose UDP checksum is 0, which is sent as 0xffff: the last two bytes of
// its payload ensure that.
func zeroSumFrame(t *testing.T, src, dst wire.Endpoint) []byte {
	payload := make([]byte, wire.HeaderLen+2)
	wire.Header{Type: wire.TypeAck, Flags: wire.FlagRetx, Job: 3, Sender: 4, Epoch: 5, Seq: 6}.Put(payload)
	frame := seal(src, dst, payload)
	offset := len(frame) - len(payload)
	// The checksum is the complement of the sum: as a word of what is summed, it
	// brings the sum to 0xffff, and its complement to 0.
	binary.BigEndian.PutUint16(payload[wire.HeaderLen:], binary.BigEndian.Uint16(frame[offset-2:]))
	frame = seal(src, dst, payload)
	if c := binary.BigEndian.Uint16(frame[offset-2:]); c != 0xffff {
		t.Fatalf("checksum %#04x, want 0xffff", c)
	}
	return frame
}

// TestZeroChecksumIsSentAsOnes lets every writer of checksums write one that is 0. On the wire, 0
// would mean that there is none (RFC 768).
func TestZeroChecksumIsSentAsOnes(t *testing.T) {
	for _, ends := range [][2]wire.Endpoint{{worker, switchHost}, {worker6, switch6}} {
		frame := zeroSumFrame(t, ends[0], ends[1])
		offset := len(frame) - wire.HeaderLen - 2
		check := func(what string, got []byte) {
			t.Helper()
			if c := binary.BigEndian.Uint16(got[offset-2:]); c != 0xffff {
				t.Errorf("%v, %s: checksum %#04x, want 0xffff", ends[0], what, c)
			}
			if _, err := wire.ParseFrame(got, 0); err != nil {
				t.Errorf("%v, %s: %v", ends[0], what, err)
			}
		}
		check("sealed", frame)
		// Source and destination count equally, so the answer's sum is the same.
		check("answered", wire.Reply(append([]byte(nil), frame...), wire.HeaderLen+2))

		// The same frame without a checksum: its sum is right, but it is refused, because nothing
		// protects it.
		binary.BigEndian.PutUint16(frame[offset-2:], 0)
		if _, err := wire.ParseFrame(frame, 0); !errors.Is(err, wire.ErrChecksum) {
			t.Errorf("%v: a frame without a checksum: %v", ends[0], err)
		}
	}
}

// TestLengthsMustAgree varies the lengths of the IP header and of the UDP header
// of a frame whose checksums are right for them.
func TestLengthsMustAgree(t *testing.T) {
	const payload = 20
	for _, v6 := range []bool{false, true} {
		src, dst, udp := worker, switchHost, 34
		if v6 {
			src, dst, udp = worker6, switch6, 54
		}
		whole := seal(src, dst, make([]byte, payload))
		for ip := 0; ip <= 8+payload+2; ip++ {
			for length := 0; length <= 8+payload+2; length++ {
				name := fmt.Sprintf("IPv6 %v: room for %d bytes, a datagram of %d", v6, ip, length)
				frame := append([]byte(nil), whole...)
				setLengths(frame, udp, v6, ip, length)
				p, err := wire.ParseFrame(frame, 0)
				if ip > 8+payload || length > ip || length < 8 {
					if !errors.Is(err, wire.ErrTruncated) {
						t.Errorf("%s: %v, want ErrTruncated", name, err)
					}
				} else if err != nil || len(p.Payload) != length-8 {
					t.Errorf("%s: %d bytes, %v", name, len(p.Payload), err)
				}
			}
		}
	}
}

// setLengths changes the length fields of a frame, with matching checksums.
func setLengths(frame []byte, udp int, v6 bool, ip, length int) {
	add := func(b []byte) (s uint32) {
		for i := 0; i+1 < len(b); i += 2 {
			s += uint32(b[i])<<8 | uint32(b[i+1])
		}
		if len(b)%2 == 1 {
			s += uint32(b[len(b)-1]) << 8
		}
		return s
	}
	fold := func(s uint32) uint16 {
		for s > 0xffff {
			s = s>>16 + s&0xffff
		}
		return ^uint16(s)
	}
	addresses := udp - 8
	if v6 {
		addresses = udp - 32
		binary.BigEndian.PutUint16(frame[18:], uint16(ip))
	} else {
		binary.BigEndian.PutUint16(frame[16:], uint16(20+ip))
		binary.BigEndian.PutUint16(frame[24:], 0)
		binary.BigEndian.PutUint16(frame[24:], fold(add(frame[14:34])))
	}
	binary.BigEndian.PutUint16(frame[udp+4:], uint16(length))
	binary.BigEndian.PutUint16(frame[udp+6:], 0)
	covered := frame[udp:min(udp+length, len(frame))]
	c := fold(add(frame[addresses:udp]) + 17 + uint32(length) + add(covered))
	if c == 0 {
		c = 0xffff
	}
	binary.BigEndian.PutUint16(frame[udp+6:], c)
}

// TestPartialChecksumIsToldApart has a sender leave the checksum to its card, with the pseudo
// header's sum in its place, and others that are simply wrong.
func TestPartialChecksumIsToldApart(t *testing.T) {
	for _, ends := range [][2]wire.Endpoint{{worker, switchHost}, {worker6, switch6}} {
		payload := make([]byte, wire.HeaderLen+7)
		frame := seal(ends[0], ends[1], payload)
		udp := len(frame) - len(payload) - 8
		addresses := udp - 8
		if ends[0] == worker6 {
			addresses = udp - 32
		}
		pseudo := uint32(17 + len(payload) + 8)
		for i := addresses; i < udp; i += 2 {
			pseudo += uint32(binary.BigEndian.Uint16(frame[i:]))
		}
		for pseudo > 0xffff {
			pseudo = pseudo>>16 + pseudo&0xffff
		}
		for _, c := range []struct {
			checksum uint16
			want     error
		}{
			{uint16(pseudo), wire.ErrPartialChecksum},
			{^uint16(pseudo), wire.ErrChecksum},
			{uint16(pseudo) + 1, wire.ErrChecksum},
			{uint16(pseudo) - 1, wire.ErrChecksum},
		} {
			binary.BigEndian.PutUint16(frame[udp+6:], c.checksum)
			_, err := wire.ParseFrame(frame, 0)
			if partial := c.checksum == uint16(pseudo); !errors.Is(err, c.want) || errors.Is(err, wire.ErrPartialChecksum) != partial {
				t.Errorf("%v, checksum %#04x beside a pseudo header of %#04x: %v, want %v", ends[0], c.checksum, pseudo, err, c.want)
			}
		}
	}
}
