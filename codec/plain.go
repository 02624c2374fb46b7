// SPDX-License-Identifier: Apache-2.0

package codec

import (
	"encoding/binary"
	"math"
	"math/bits"
)

// This file is the reference, and what runs without AVX2. All products are exact, or the values are
// far from each threshold.

const sign = 1 << 31

// code returns the tag of a value and its code, in the high bytes.
func (c *Codec) code(b uint32) (tag uint, code uint32) {
	switch m := math.Float32frombits(b&^sign) * c.constants[scaleUp]; {
	case m < c.constants[tagOne]:
		return 0, 0
	case m < c.constants[tagTwo]:
		return 1, b&sign | uint32(m*c.constants[unitOne])
	case m < 1:
		return 2, b&sign | uint32(m*c.constants[unitTwo])
	}
	return 3, b // NaN, too
}

// value is the inverse of code.
func (c *Codec) value(tag uint, code uint32) float32 {
	inverse := c.constants[inverseTwo]
	switch tag {
	case 0:
		return 0
	case 1:
		inverse = c.constants[inverseOne]
	case 3:
		return math.Float32frombits(code)
	}
	m := float32(code&^sign) * inverse * c.constants[scaleDown]
	return math.Float32frombits(math.Float32bits(m) | code&sign)
}

// codesLen is the number of bytes of the codes with these tags.
func codesLen(tags uint16) int {
	return bits.OnesCount16(tags) + bits.OnesCount16(tags&0xaaaa) + bits.OnesCount16(tags&(tags>>1)&0x5555)
}

// encodePlain codes values into out, which has room, and returns the length.
func (c *Codec) encodePlain(out []byte, values []float32) (n int) {
	for len(values) > 0 {
		group := values[:min(Group, len(values))]
		values = values[len(group):]
		at, marks := n, byte(0)
		n++
		for mark := byte(0x80); len(group) > 0; mark >>= 1 {
			burst := group[:min(Burst, len(group))]
			group = group[len(burst):]
			if end, tags := c.encodeBurst(out, n, burst); tags != 0 {
				marks |= mark
				n = end
			}
		}
		out[at] = marks
	}
	return n
}

// encodeBurst writes tags and codes at out[n:] and returns where they end.
func (c *Codec) encodeBurst(out []byte, n int, burst []float32) (end int, tags uint16) {
	end = n + 2
	for j, v := range burst {
		tag, code := c.code(math.Float32bits(v))
		tags |= uint16(tag << (14 - 2*j))
		switch tag {
		case 1:
			out[end] = byte(code >> 24)
			end++
		case 2:
			binary.BigEndian.PutUint16(out[end:], uint16(code>>16))
			end += 2
		case 3:
			binary.BigEndian.PutUint32(out[end:], code)
			end += 4
		}
	}
	binary.BigEndian.PutUint16(out[n:], tags)
	return end, tags
}

// decodePlain decodes from value v and byte n on, where a group begins, to the ends of both slices.
func (c *Codec) decodePlain(values []float32, v int, coded []byte, n int) error {
	for v < len(values) {
		group := values[v:min(v+Group, len(values))]
		if n == len(coded) {
			return malformed(n, v, truncated)
		}
		marks := coded[n]
		if marks&beyond(len(group)) != 0 {
			return malformed(n, v, burstBeyond)
		}
		n++
		for len(group) > 0 {
			burst := group[:min(Burst, len(group))]
			group = group[len(burst):]
			if marks&0x80 == 0 {
				clear(burst)
			} else {
				tags, end, err := readTags(coded, n, v, len(burst))
				if err != nil {
					return err
				}
				if tags == 0 {
					return malformed(n, v, emptyBurst)
				}
				c.decodeBurst(burst, tags, coded[n+2:end])
				n = end
			}
			marks <<= 1
			v += len(burst)
		}
	}
	if n < len(coded) {
		return malformed(n, v, leftOver)
	}
	return nil
}

// beyond returns the mark bits of bursts that a group with this number of values does not have.
func beyond(values int) byte { return 0xff >> ((values + Burst - 1) / Burst) }

// readTags returns the tags of a burst at coded[n:], with this number of values, and where its
// codes end.
func readTags(coded []byte, n, v, values int) (tags uint16, end int, err error) {
	if n+2 > len(coded) {
		return 0, 0, malformed(n, v, truncated)
	}
	tags = binary.BigEndian.Uint16(coded[n:])
	if tags&(0xffff>>(2*values)) != 0 {
		return 0, 0, malformed(n, v, tagBeyond)
	}
	end = n + 2 + codesLen(tags)
	if end > len(coded) {
		return 0, 0, malformed(n+2, v, truncated)
	}
	return tags, end, nil
}

// decodeBurst decodes codes that are as long as the tags say.
func (c *Codec) decodeBurst(burst []float32, tags uint16, codes []byte) {
	for j := range burst {
		tag, code := uint(tags>>14), uint32(0)
		tags <<= 2
		switch tag {
		case 1:
			code = uint32(codes[0]) << 24
			codes = codes[1:]
		case 2:
			code = uint32(binary.BigEndian.Uint16(codes)) << 16
			codes = codes[2:]
		case 3:
			code = binary.BigEndian.Uint32(codes)
			codes = codes[4:]
		}
		burst[j] = c.value(tag, code)
	}
}
