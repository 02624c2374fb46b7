package wire

import (
	"encoding/binary"
	"math/bits"
)

// sum adds b to a one's-complement sum, 64 bits at a time (RFC 1071 §2: the
// width of the accumulator does not change the folded result). Bytes count as
// if b began at an even offset of the checksummed data.
func sum(acc uint64, b []byte) uint64 {
	var carry uint64
	for len(b) >= 32 {
		acc, carry = bits.Add64(acc, binary.BigEndian.Uint64(b), 0)
		acc, carry = bits.Add64(acc, binary.BigEndian.Uint64(b[8:]), carry)
		acc, carry = bits.Add64(acc, binary.BigEndian.Uint64(b[16:]), carry)
		acc, carry = bits.Add64(acc, binary.BigEndian.Uint64(b[24:]), carry)
		acc, carry = bits.Add64(acc, carry, 0)
		acc += carry
		b = b[32:]
	}
	for len(b) >= 8 {
		acc, carry = bits.Add64(acc, binary.BigEndian.Uint64(b), 0)
		acc += carry
		b = b[8:]
	}
	if len(b) > 0 {
		var tail [8]byte
		copy(tail[:], b)
		acc, carry = bits.Add64(acc, binary.BigEndian.Uint64(tail[:]), 0)
		acc += carry
	}
	return acc
}

// fold reduces a one's-complement sum to 16 bits.
func fold(acc uint64) uint16 {
	acc = acc>>32 + acc&0xffffffff
	acc = acc>>32 + acc&0xffffffff
	acc = acc>>16 + acc&0xffff
	acc = acc>>16 + acc&0xffff
	return uint16(acc>>16 + acc&0xffff)
}
