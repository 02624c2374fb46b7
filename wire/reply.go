// SPDX-License-Identifier: Apache-2.0

package wire

import "encoding/binary"

// PutAck writes the payload that acknowledges the frame with header request
// and returns it, a prefix of b.
func PutAck(b []byte, request Header) []byte {
	request.Type, request.Flags = TypeAck, 0
	request.Put(b)
	return b[:HeaderLen]
}

// An ACK with [FlagCover] reports on CoverBits frames: the one that it answers, CoverAhead after it
// and the rest before it.
const (
	CoverBits  = 64
	CoverAhead = 31
	CoverLen   = HeaderLen + CoverBits/8 // of its payload
)

// PutCover writes the payload that acknowledges the frame with header request and frames around it:
// bit i of cover stands for number Seq+[CoverAhead]-i, or in a job with rounds for the sender at
// position i. It returns the payload, a prefix of b.
func PutCover(b []byte, request Header, cover uint64) []byte {
	request.Type, request.Flags = TypeAck, FlagCover
	request.Put(b)
	binary.BigEndian.PutUint64(b[HeaderLen:], cover)
	return b[:CoverLen]
}

// Cover returns the cover of an ACK that [PutCover] wrote, or 0 for an ACK without [FlagCover].
// [ParseAck] must have accepted the payload.
func Cover(payload []byte, h Header) uint64 {
	if h.Flags&FlagCover == 0 {
		return 0
	}
	return binary.BigEndian.Uint64(payload[HeaderLen:])
}

// PutSums writes the header of an acknowledgement with the sums of n stripes and returns the
// payload, a prefix of b. The caller must write all bytes of the stripes; they have the layout of
// the request's.
func PutSums(b []byte, request Header, n int) []byte {
	request.Type, request.Flags = TypeAck, FlagSum|request.Flags&FlagDense
	request.Put(b)
	return b[:HotLen(n)]
}

// PutError writes the payload that refuses the frame with header request and
// returns it, a prefix of b.
func PutError(b []byte, request Header, r Refusal) []byte {
	request.Type, request.Flags = TypeError, 0
	request.Put(b)
	r.Put(b)
	return b[:ErrorLen]
}

// ParseAck checks the body of an ACK payload with header h and returns its number of stripes with
// sums, 0 for a plain acknowledgement and for the answer to a SCALE frame (see [ParseScale]) or to
// a TAKEN frame (see [ParseTaken]). It returns [ErrLength] if the body does not match h.Flags.
func ParseAck(payload []byte, h Header) (stripes int, err error) {
	want := 0
	switch h.Flags & (FlagSum | FlagScale | FlagCover | FlagTaken) {
	case 0, FlagScale:
		want = HeaderLen
	case FlagTaken:
		want = TakenLen
	case FlagCover, FlagCover | FlagTaken:
		want = CoverLen
	case FlagSum:
		return StripeCount(payload)
	case FlagSum | FlagScale:
		_, err := ParseScale(payload)
		return 0, err
	}
	if len(payload) != want {
		return 0, ErrLength
	}
	return 0, nil
}

// Reply turns a frame into the answer to it, in place: the answer goes back to the frame's source,
// with the same VLAN tag. frame must begin with the headers of a frame that [ParseFrame] accepted,
// directly followed by the answer's payload of n bytes, usually written over the request's. Reply
// returns the answer, for which frame must have the capacity.
func Reply(frame []byte, n int) []byte {
	l, _ := locate(frame)
	frame = frame[:l.udp+udpLen+n]
	swap(frame[0:6], frame[6:12])
	addrs := frame[l.addrs():l.udp]
	swap(addrs[:len(addrs)/2], addrs[len(addrs)/2:])
	udp := frame[l.udp:]
	swap(udp[0:2], udp[2:4])
	l.sealFrame(frame)
	return frame
}

// sealFrame writes everything that depends neither on the addresses nor on the ports: the other
// fields of the IP and UDP headers, with the length of the frame, and the checksums.
func (l layout) sealFrame(frame []byte) {
	ip, udp := frame[l.ip:l.udp], frame[l.udp:]
	length := len(udp)
	if l.v6() {
		putIPv6(ip)
		binary.BigEndian.PutUint16(ip[4:], uint16(length))
	} else {
		putIPv4(ip)
		binary.BigEndian.PutUint16(ip[2:], uint16(ipv4Len+length))
		binary.BigEndian.PutUint16(ip[10:], ^fold(sum(0, ip)))
	}
	binary.BigEndian.PutUint16(udp[4:], uint16(length))
	binary.BigEndian.PutUint16(udp[6:], 0)
	acc := sum(protoUDP+uint64(length), l.checksumOf(frame, length))
	binary.BigEndian.PutUint16(udp[6:], udpChecksum(acc))
}

func swap(a, b []byte) {
	for i := range a {
		a[i], b[i] = b[i], a[i]
	}
}
