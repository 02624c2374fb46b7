// SPDX-License-Identifier: Apache-2.0

package wire

import "encoding/binary"

// In COLD and COLD_AT frames with [FlagCoded], the codes of the floats follow the keys or numbers,
// to the end of the payload. They are those of package codec, of which this one knows the place
// only.

// MaxCoded is the largest number of floats of a frame with [FlagCoded]. Nothing else limits it, as
// zeros take nearly no room.
const MaxCoded = 16384

// CodedLen returns the length of a COLD or COLD_AT payload of n rows, with [FlagCoded], whose codes
// have a length.
func CodedLen(t Type, n, codes int) int {
	head, row := t.lengths(0)
	return HeaderLen + head + n*row + codes
}

// PutCoded writes count, dim and, in COLD_AT, the numbering into a payload of [CodedLen]. It
// returns the rows, without floats, and the place of the codes, for the caller to fill.
func PutCoded(payload []byte, t Type, count, dim int, numbering uint32) (Rows, []byte) {
	b := payload[HeaderLen:]
	binary.BigEndian.PutUint16(b, uint16(count))
	binary.BigEndian.PutUint16(b[2:], uint16(dim))
	if _, numbers, _ := t.Body(); numbers {
		binary.BigEndian.PutUint32(b[rowsHeadLen:], numbering)
	}
	return splitCoded(b[rowsHeadLen:], t, count, dim)
}

// ParseCoded is [ParseRows] for a COLD or COLD_AT payload with [FlagCoded]. It returns the rows,
// without floats, and the codes, which should be those of Count × Dim floats. [ErrLength] also
// means that these are more than [MaxCoded], or that the type has no such frames.
func ParseCoded(payload []byte, t Type) (Rows, []byte, error) {
	if len(payload) < HeaderLen+rowsHeadLen || t != TypeCold && t != TypeColdAt {
		return Rows{}, nil, ErrLength
	}
	b := payload[HeaderLen:]
	count := int(binary.BigEndian.Uint16(b))
	dim := int(binary.BigEndian.Uint16(b[2:]))
	if count == 0 || dim == 0 || count > MaxCoded/dim || len(payload) <= CodedLen(t, count, 0) {
		return Rows{}, nil, ErrLength
	}
	r, codes := splitCoded(b[rowsHeadLen:], t, count, dim)
	return r, codes, nil
}

func splitCoded(b []byte, t Type, count, dim int) (Rows, []byte) {
	r := Rows{Count: count, Dim: dim}
	if t == TypeColdAt {
		r.Numbering, b = binary.BigEndian.Uint32(b), b[numberingLen:]
		r.numbers, b = b[:count*numberLen], b[count*numberLen:]
		return r, b
	}
	r.keys, b = b[:count*keyLen], b[count*keyLen:]
	return r, b
}

// WithFloats returns rows with these floats, which it writes to buf as frames have them: 4 bytes
// for each of Count × Dim.
func (r Rows) WithFloats(floats []float32, buf []byte) Rows {
	r.vals = buf[:r.Count*r.Dim*floatLen]
	PutFloats(r.vals, floats)
	return r
}
