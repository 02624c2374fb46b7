// SPDX-License-Identifier: Apache-2.0

package p4

import "math/big"

// frame is a frame in the pipeline.
type frame struct {
	headers []header // by index in the program
	payload []byte   // rest after the parser
	limit   int      // of the length, negative for none
	again   int      // the field list with which the frame is resubmitted, or 0
	data    []*big.Int
}

// header is one header or struct of metadata.
type header struct {
	valid  bool
	fields []*big.Int // nil is 0
	bits   []int      // widths of this instance: varbit fields have any
}

// place is a field of a header.
type place struct{ header, field int }

var zero = new(big.Int)

func (f *frame) get(p place) *big.Int {
	if p.field < 0 { // the header's validity
		return truth(f.headers[p.header].valid)
	}
	if v := f.headers[p.header].fields[p.field]; v != nil {
		return v
	}
	return zero
}

func (f *frame) set(p place, v *big.Int, width int) {
	f.headers[p.header].fields[p.field] = truncated(v, width)
}

// truncated returns the low bits of a number, in two's complement.
func truncated(v *big.Int, width int) *big.Int {
	if v.Sign() >= 0 && v.BitLen() <= width {
		return v
	}
	return new(big.Int).And(v, mask(width))
}

var masks [2048]*big.Int

func init() {
	for i := range masks {
		m := new(big.Int).Lsh(big.NewInt(1), uint(i))
		masks[i] = m.Sub(m, big.NewInt(1))
	}
}

func mask(width int) *big.Int {
	if width < len(masks) {
		return masks[width]
	}
	m := new(big.Int).Lsh(big.NewInt(1), uint(width))
	return m.Sub(m, big.NewInt(1))
}

// bitString collects consecutive fields.
type bitString struct {
	v    *big.Int
	bits int
}

func (b *bitString) append(v *big.Int, width int) {
	if b.v == nil {
		b.v = new(big.Int)
	}
	b.v.Lsh(b.v, uint(width))
	b.v.Or(b.v, v)
	b.bits += width
}

// bytes returns the bits, padded with zeros at the end to whole bytes.
func (b *bitString) bytes() []byte {
	n := (b.bits + 7) / 8
	if n == 0 {
		return nil
	}
	v := new(big.Int).Lsh(b.v, uint(n*8-b.bits))
	return v.FillBytes(make([]byte, n))
}

// checksum is the Internet checksum (RFC 1071).
func checksum(b []byte) uint64 {
	var sum uint64
	for i, c := range b {
		if i%2 == 0 {
			sum += uint64(c) << 8
		} else {
			sum += uint64(c)
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^sum & 0xffff
}
