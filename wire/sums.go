// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"math"
)

// SumsHead is the head of a SUMS body.
type SumsHead struct {
	Step  uint64
	Rows  uint32 // of the step
	First uint32 // the index of the frame's first row among them
	Least uint64 // the key of that row
	// Width is the length, from 1 to 8 bytes, of an encoded key: its difference from Least. The
	// keys of a step are sorted, so the keys of a frame are close to each other, and with many keys
	// differences take a quarter of the space of keys.
	Width int
}

// SumsWidthMax is the largest [SumsHead.Width]: that of whole keys.
const SumsWidthMax = keyLen

// sumsHeadLen is the length of a SUMS payload without its rows.
const sumsHeadLen = HeaderLen + rowsHeadLen + 25

// SumsLen returns the length of a SUMS payload of n rows.
func SumsLen(n, dim, width int) int { return sumsHeadLen + n*(width+dim*floatLen) }

// SumsCap returns how many rows of a dimension fit a SUMS payload of at most limit bytes.
func SumsCap(limit, dim, width int) int { return max(0, limit-sumsHeadLen) / (width + dim*floatLen) }

// SumsWidth returns the smallest width for the ascending keys of a step in payloads of at most
// limit bytes, each with as many rows as [SumsCap] returns.
func SumsWidth(keys []uint64, limit, dim int) int {
	for width := 1; width < SumsWidthMax; width++ {
		if fit(keys, max(1, SumsCap(limit, dim, width)), width) {
			return width
		}
	}
	return SumsWidthMax
}

// fit reports whether a width is enough for the differences in frames of each rows.
func fit(keys []uint64, each, width int) bool {
	for len(keys) > 0 {
		n := min(each, len(keys))
		if (keys[n-1]-keys[0])>>(8*width) != 0 {
			return false
		}
		keys = keys[n:]
	}
	return true
}

// PutStepSums writes a SUMS body of ascending keys, the first of which becomes Least, and dim sums
// for each. The payload is [SumsLen] bytes long, and head.Width is enough for the differences.
func PutStepSums(payload []byte, head SumsHead, keys []uint64, dim int, sums []float32) {
	b := payload[HeaderLen:]
	binary.BigEndian.PutUint16(b, uint16(len(keys)))
	binary.BigEndian.PutUint16(b[2:], uint16(dim))
	binary.BigEndian.PutUint64(b[4:], head.Step)
	binary.BigEndian.PutUint32(b[12:], head.Rows)
	binary.BigEndian.PutUint32(b[16:], head.First)
	binary.BigEndian.PutUint64(b[20:], keys[0])
	b[28] = byte(head.Width)
	b = payload[sumsHeadLen:]
	for _, key := range keys {
		putBytes(b, key-keys[0], head.Width)
		b = b[head.Width:]
	}
	sums = sums[:len(keys)*dim]
	b = b[:len(sums)*floatLen]
	for i, x := range sums {
		binary.BigEndian.PutUint32(b[i*floatLen:], math.Float32bits(x))
	}
}

// putBytes writes the lower n bytes of x. Where b is longer, it may write garbage after them.
func putBytes(b []byte, x uint64, n int) {
	if len(b) >= 8 {
		binary.BigEndian.PutUint64(b, x<<uint(64-8*n))
		return
	}
	for i := range n {
		b[i] = byte(x >> (8 * (n - 1 - i)))
	}
}

// bytesAt reads n bytes of b.
func bytesAt(b []byte, n int) (x uint64) {
	if len(b) >= 8 {
		return binary.BigEndian.Uint64(b) >> uint(64-8*n)
	}
	for _, c := range b[:n] {
		x = x<<8 | uint64(c)
	}
	return x
}

// StepSums is a view of a SUMS body.
type StepSums struct {
	SumsHead
	Count, Dim int
	rows       []byte // differences, then floats
}

// ParseStepSums reads a SUMS payload. It returns [ErrLength] if count, dimension or width is out of
// range, the body does not have exactly the length that they give, the step has fewer rows than the
// frame's position requires, or the difference of the first row's key is not zero.
func ParseStepSums(payload []byte) (StepSums, error) {
	if len(payload) < sumsHeadLen {
		return StepSums{}, ErrLength
	}
	b := payload[HeaderLen:]
	s := StepSums{
		SumsHead: SumsHead{
			Step: binary.BigEndian.Uint64(b[4:]), Rows: binary.BigEndian.Uint32(b[12:]), First: binary.BigEndian.Uint32(b[16:]),
			Least: binary.BigEndian.Uint64(b[20:]), Width: int(b[28]),
		},
		Count: int(binary.BigEndian.Uint16(b)), Dim: int(binary.BigEndian.Uint16(b[2:])), rows: payload[sumsHeadLen:],
	}
	// Compared row by row, because count × dim × 4 can exceed a 32-bit int.
	row := s.Width + s.Dim*floatLen
	switch {
	case s.Count == 0 || s.Dim == 0 || s.Width < 1 || s.Width > SumsWidthMax, len(s.rows)%row != 0 ||
		len(s.rows)/row != s.Count,
		uint64(s.First)+uint64(s.Count) > uint64(s.Rows), bytesAt(s.rows, s.Width) != 0:
		return StepSums{}, ErrLength
	}
	return s, nil
}

// Copy decodes all rows: Count keys, and Dim sums for each.
func (s StepSums) Copy(keys []uint64, sums []float32) {
	keys, sums = keys[:s.Count], sums[:s.Count*s.Dim]
	b := s.rows
	for i := range keys {
		keys[i] = s.Least + bytesAt(b, s.Width)
		b = b[s.Width:]
	}
	b = b[:len(sums)*floatLen]
	for i := range sums {
		sums[i] = math.Float32frombits(binary.BigEndian.Uint32(b[i*floatLen:]))
	}
}
