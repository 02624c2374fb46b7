// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"net/netip"
)

// AllOf returns the destination of answers to all senders of a job: its own IPv4 multicast address,
// 239.76.h.l, where h and l are the bytes of the job's id (administratively scoped, RFC 2365), and
// the corresponding Ethernet address (RFC 1112 §6.4). port is the aggregator's.
func AllOf(job, port uint16) Endpoint {
	h, l := byte(job>>8), byte(job)
	return Endpoint{
		MAC:  [6]byte{0x01, 0x00, 0x5e, 76, h, l},
		IP:   netip.AddrFrom4([4]byte{239, 76, h, l}),
		Port: port,
	}
}

// ToAll turns an ACK payload with [FlagSum] into one for all senders of the job, with the result of
// a round or the decision of an iteration.
func ToAll(ack []byte, round uint32) []byte {
	ack[1] |= byte(FlagAll)
	binary.BigEndian.PutUint16(ack[4:], AllSenders)
	binary.BigEndian.PutUint32(ack[8:], round)
	return ack
}

// Broadcast is [Reply] for an answer to all senders of a job: it goes from the frame's destination,
// the aggregator, to [AllOf] of the job, from and to the aggregator's port. The frame must be an
// IPv4 one.
func Broadcast(frame []byte, n int, job uint16) []byte {
	l, _ := locate(frame)
	frame = frame[:l.udp+udpLen+n]
	udp := frame[l.udp:]
	copy(udp[0:2], udp[2:4])
	to := AllOf(job, binary.BigEndian.Uint16(udp[2:]))
	copy(frame[6:12], frame[0:6])
	copy(frame, to.MAC[:])
	src, dst := frame[l.addrs():l.addrs()+4], frame[l.addrs()+4:l.udp]
	copy(src, dst)
	ip := to.IP.As4()
	copy(dst, ip[:])
	l.sealFrame(frame)
	return frame
}
