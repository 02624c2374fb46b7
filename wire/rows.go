// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"math"
)

// Bodies of rows start with a count and a dimension, two uint16. COLD: count keys (uint64), then
// count × dim float32, row after row. PULL and FIND: count keys. ROWS: count × dim float32, in the
// order of the pull's keys. FOUND and COLD_AT continue with a numbering (uint32) and count row
// numbers (uint32); in COLD_AT floats follow, as in COLD. The length of a body is exactly that
// given by count and dim; a dimension of 1 gives the (key, float) pairs of an ordinary parameter
// server.
const (
	rowsHeadLen  = 4
	numberingLen = 4
	keyLen       = 8
	numberLen    = 4
	floatLen     = 4

	// DefaultMTU is the MTU that every path has, that of an Ethernet without jumbo frames. Packets
	// of [DefaultStripes] fit it.
	DefaultMTU = 1500

	// MaxMTU is the size of the largest IP packets, which carry [MaxStripes] over IPv4.
	MaxMTU = MaxPayload + ipv4Len + udpLen

	// DefaultPayload is the largest UDP payload that fits DefaultMTU over IPv4.
	DefaultPayload = DefaultMTU - ipv4Len - udpLen

	// MaxPayload is the largest UDP payload.
	MaxPayload = HeaderLen + MaxStripes*StripeLen
)

// ColdLen returns the length of a COLD payload of n rows.
func ColdLen(n, dim int) int { return HeaderLen + rowsHeadLen + n*(keyLen+dim*floatLen) }

// PullLen returns the length of a PULL or FIND payload of n keys.
func PullLen(n int) int { return HeaderLen + rowsHeadLen + n*keyLen }

// RowsLen returns the length of a ROWS payload of n rows.
func RowsLen(n, dim int) int { return HeaderLen + rowsHeadLen + n*dim*floatLen }

// FoundLen returns the length of a FOUND payload of n row numbers.
func FoundLen(n int) int { return HeaderLen + rowsHeadLen + numberingLen + n*numberLen }

// ColdAtLen returns the length of a COLD_AT payload of n rows.
func ColdAtLen(n, dim int) int { return FoundLen(n) + n*dim*floatLen }

// ColdAtCap returns how many rows of a dimension fit a COLD_AT payload of at most limit bytes.
func ColdAtCap(limit, dim int) int { return max(0, limit-FoundLen(0)) / (numberLen + dim*floatLen) }

// ColdCap returns how many rows of a dimension fit a COLD payload of at most
// limit bytes.
func ColdCap(limit, dim int) int {
	return max(0, limit-HeaderLen-rowsHeadLen) / (keyLen + dim*floatLen)
}

// PullCap returns how many keys a PULL of at most limit bytes may have so that the ROWS of its
// answer also fit limit bytes.
func PullCap(limit, dim int) int {
	return max(0, limit-HeaderLen-rowsHeadLen) / max(keyLen, dim*floatLen)
}

// Rows is a view of a body of rows. Parts that its type lacks are empty: see [Type.Body].
type Rows struct {
	Count, Dim int
	// Numbering identifies the numbering of a FOUND or COLD_AT body's row numbers.
	Numbering           uint32
	keys, numbers, vals []byte
}

// Body reports the parts of the rows of a type: none if frames of the type have no rows.
func (t Type) Body() (keys, numbers, floats bool) {
	switch t {
	case TypeCold:
		return true, false, true
	case TypePull, TypeFind:
		return true, false, false
	case TypeRows:
		return false, false, true
	case TypeFound:
		return false, true, false
	case TypeColdAt:
		return false, true, true
	}
	return false, false, false
}

// lengths returns the lengths of the head of a body and of one row, of a type; 0 and 0 if it has no
// rows.
func (t Type) lengths(dim int) (head, row int) {
	keys, numbers, floats := t.Body()
	if keys {
		row += keyLen
	}
	if numbers {
		head, row = numberingLen, row+numberLen
	}
	if floats {
		row += dim * floatLen
	}
	return head + rowsHeadLen, row
}

// PutRows writes count and dim into the payload of a type that has rows and no numbers, and returns
// the view for the caller to fill. The payload must have the length that [ColdLen], [PullLen] or
// [RowsLen] returns.
func PutRows(payload []byte, t Type, count, dim int) Rows {
	b := payload[HeaderLen:]
	binary.BigEndian.PutUint16(b, uint16(count))
	binary.BigEndian.PutUint16(b[2:], uint16(dim))
	return splitRows(b[rowsHeadLen:], t, count, dim)
}

// PutNumbered is [PutRows] for FOUND and COLD_AT, with the lengths of [FoundLen] and [ColdAtLen].
func PutNumbered(payload []byte, t Type, count, dim int, numbering uint32) Rows {
	binary.BigEndian.PutUint32(payload[HeaderLen+rowsHeadLen:], numbering)
	return PutRows(payload, t, count, dim)
}

// ParseRows checks the payload of a type that has rows and returns a view of its body. It returns
// [ErrLength] if count or dim is zero or the body does not have exactly the length that they give.
func ParseRows(payload []byte, t Type) (Rows, error) {
	if len(payload) < HeaderLen+rowsHeadLen {
		return Rows{}, ErrLength
	}
	b := payload[HeaderLen:]
	count := int(binary.BigEndian.Uint16(b))
	dim := int(binary.BigEndian.Uint16(b[2:]))
	// Compared row by row, because count × dim × 4 can exceed a 32-bit int.
	head, row := t.lengths(dim)
	body := len(b) - head
	if count == 0 || dim == 0 || row == 0 || body < 0 || body%row != 0 || body/row != count {
		return Rows{}, ErrLength
	}
	return splitRows(b[rowsHeadLen:], t, count, dim), nil
}

func splitRows(b []byte, t Type, count, dim int) Rows {
	r := Rows{Count: count, Dim: dim}
	keys, numbers, floats := t.Body()
	if keys {
		r.keys, b = b[:count*keyLen], b[count*keyLen:]
	}
	if numbers {
		r.Numbering, b = binary.BigEndian.Uint32(b), b[numberingLen:]
		r.numbers, b = b[:count*numberLen], b[count*numberLen:]
	}
	if floats {
		r.vals = b[:count*dim*floatLen]
	}
	return r
}

// Key returns key i.
func (r Rows) Key(i int) uint64 { return binary.BigEndian.Uint64(r.keys[i*keyLen:]) }

// SetKey sets key i.
func (r Rows) SetKey(i int, key uint64) { binary.BigEndian.PutUint64(r.keys[i*keyLen:], key) }

// Number returns the number of row i: 1 or more, or 0 if there is none.
func (r Rows) Number(i int) uint32 { return binary.BigEndian.Uint32(r.numbers[i*numberLen:]) }

// SetNumbers sets the numbers of all rows. numbers must have Count elements.
func (r Rows) SetNumbers(numbers []uint32) {
	dst := r.numbers[: len(numbers)*numberLen : len(r.numbers)]
	for i, number := range numbers {
		binary.BigEndian.PutUint32(dst[i*numberLen:], number)
	}
}

// Row decodes row i into dst, which must hold at least Dim floats.
func (r Rows) Row(i int, dst []float32) {
	src := r.vals[i*r.Dim*floatLen:]
	for j := range dst[:r.Dim] {
		dst[j] = math.Float32frombits(binary.BigEndian.Uint32(src[j*floatLen:]))
	}
}

// Bits returns the bits of float i of the body: float i%Dim of row i/Dim.
func (r Rows) Bits(i int) uint32 { return binary.BigEndian.Uint32(r.vals[i*floatLen:]) }

// SetRow encodes row i from src, which must hold at least Dim floats.
func (r Rows) SetRow(i int, src []float32) {
	dst := r.vals[i*r.Dim*floatLen:]
	for j, v := range src[:r.Dim] {
		binary.BigEndian.PutUint32(dst[j*floatLen:], math.Float32bits(v))
	}
}

// gathered is the number of rows that are gathered between two checks of the buffer.
const gathered = 8

// GatherKeys sets all keys: keys[at[i]] is key i. at must have Count elements.
func (r Rows) GatherKeys(keys []uint64, at []uint32) {
	dst := r.keys[:len(at)*keyLen]
	for ; len(at) >= gathered; at, dst = at[gathered:], dst[gathered*keyLen:] {
		to := (*[gathered * keyLen]byte)(dst)
		for j, i := range (*[gathered]uint32)(at) {
			binary.BigEndian.PutUint64(to[j*keyLen:], keys[i])
		}
	}
	for j, i := range at {
		binary.BigEndian.PutUint64(dst[j*keyLen:], keys[i])
	}
}

// GatherRows encodes all rows: row i begins at src[at[i]*Dim]. at must have Count elements.
func (r Rows) GatherRows(src []float32, at []uint32) {
	if r.Dim != 1 {
		for i, from := range at {
			r.SetRow(i, src[int(from)*r.Dim:])
		}
		return
	}
	dst := r.vals[:len(at)*floatLen]
	for ; len(at) >= gathered; at, dst = at[gathered:], dst[gathered*floatLen:] {
		to := (*[gathered * floatLen]byte)(dst)
		for j, i := range (*[gathered]uint32)(at) {
			binary.BigEndian.PutUint32(to[j*floatLen:], math.Float32bits(src[i]))
		}
	}
	for j, i := range at {
		binary.BigEndian.PutUint32(dst[j*floatLen:], math.Float32bits(src[i]))
	}
}
