// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"math/bits"
)

// sum adds the 16-bit big-endian words of b to a one's-complement sum. An odd last byte is padded
// with a zero, so only the last part of the data may have an odd length. acc may be any sum below
// 2^63.
//
// The words are added 64 bits at a time and in little-endian order: the width does not change the
// folded result, and the byte order only swaps its bytes (RFC 1071 §2), while loads without a byte
// swap are cheaper. The carry stays in the processor's flag through a whole iteration.
func sum(acc uint64, b []byte) uint64 {
	var s, carry uint64
	for len(b) >= 64 {
		s, carry = bits.Add64(s, binary.LittleEndian.Uint64(b), carry)
		s, carry = bits.Add64(s, binary.LittleEndian.Uint64(b[8:]), carry)
		s, carry = bits.Add64(s, binary.LittleEndian.Uint64(b[16:]), carry)
		s, carry = bits.Add64(s, binary.LittleEndian.Uint64(b[24:]), carry)
		s, carry = bits.Add64(s, binary.LittleEndian.Uint64(b[32:]), carry)
		s, carry = bits.Add64(s, binary.LittleEndian.Uint64(b[40:]), carry)
		s, carry = bits.Add64(s, binary.LittleEndian.Uint64(b[48:]), carry)
		s, carry = bits.Add64(s, binary.LittleEndian.Uint64(b[56:]), carry)
		b = b[64:]
	}
	for len(b) >= 8 {
		s, carry = bits.Add64(s, binary.LittleEndian.Uint64(b), carry)
		b = b[8:]
	}
	if len(b) >= 4 {
		s, carry = bits.Add64(s, uint64(binary.LittleEndian.Uint32(b)), carry)
		b = b[4:]
	}
	var tail uint64
	for i, x := range b {
		tail |= uint64(x) << (8 * i)
	}
	s, carry = bits.Add64(s, tail, carry)
	// If this carries, s is less than tail, and adding one does not carry again.
	return acc + uint64(bits.ReverseBytes16(fold(s+carry)))
}

// fold reduces a one's-complement sum to 16 bits.
func fold(acc uint64) uint16 {
	acc = acc>>32 + acc&0xffffffff // below 2^33
	acc = acc>>16 + acc&0xffff     // below 3 × 2^16
	acc = acc>>16 + acc&0xffff     // at most 2^16
	return uint16(acc>>16 + acc&0xffff)
}

// udpChecksum folds and inverts a sum. A result of 0 is sent as 0xffff, because 0 means that there
// is no checksum (RFC 768).
func udpChecksum(acc uint64) uint16 {
	if c := ^fold(acc); c != 0 {
		return c
	}
	return 0xffff
}
