package wire

import (
	"encoding/binary"
	"math"
)

// COLD, PULL and ROWS bodies start with a count and a dimension, two uint16.
// COLD: count keys (uint64), then count × dim float32, row after row.
// PULL: count keys. ROWS: count × dim float32, in the order of the pull's keys.
// A body holds exactly what count and dim say; a dimension of 1 makes the
// (key, float) pairs of an ordinary parameter server.
const (
	rowsHeadLen = 4
	keyLen      = 8
	floatLen    = 4

	// MaxPayload is the largest UDP payload that fits a 1500-byte MTU over
	// IPv4.
	MaxPayload = 1500 - ipv4Len - udpLen
)

// ColdLen returns the length of a COLD payload of n rows.
func ColdLen(n, dim int) int { return HeaderLen + rowsHeadLen + n*(keyLen+dim*floatLen) }

// PullLen returns the length of a PULL payload of n keys.
func PullLen(n int) int { return HeaderLen + rowsHeadLen + n*keyLen }

// RowsLen returns the length of a ROWS payload of n rows.
func RowsLen(n, dim int) int { return HeaderLen + rowsHeadLen + n*dim*floatLen }

// ColdCap returns how many rows of a dimension fit a COLD payload of at most
// limit bytes.
func ColdCap(limit, dim int) int {
	return max(0, limit-HeaderLen-rowsHeadLen) / (keyLen + dim*floatLen)
}

// PullCap returns how many keys a PULL of at most limit bytes may name so that
// the ROWS that answer it fit limit bytes too.
func PullCap(limit, dim int) int {
	return max(0, limit-HeaderLen-rowsHeadLen) / max(keyLen, dim*floatLen)
}

// Rows is a view of a COLD, PULL or ROWS body. Keys is empty in a ROWS body
// and Values is empty in a PULL body.
type Rows struct {
	Count, Dim int
	keys, vals []byte
}

// PutRows writes count and dim into a COLD, PULL or ROWS payload of type t and
// returns the view to fill. The payload must have the length that [ColdLen],
// [PullLen] or [RowsLen] gives.
func PutRows(payload []byte, t Type, count, dim int) Rows {
	b := payload[HeaderLen:]
	binary.BigEndian.PutUint16(b, uint16(count))
	binary.BigEndian.PutUint16(b[2:], uint16(dim))
	return splitRows(b[rowsHeadLen:], t, count, dim)
}

// ParseRows checks a COLD, PULL or ROWS payload and returns a view of its
// body. It returns [ErrLength] if count or dim is zero or the body is not
// exactly as long as they say.
func ParseRows(payload []byte, t Type) (Rows, error) {
	if len(payload) < HeaderLen+rowsHeadLen {
		return Rows{}, ErrLength
	}
	b := payload[HeaderLen:]
	count := int(binary.BigEndian.Uint16(b))
	dim := int(binary.BigEndian.Uint16(b[2:]))
	// Compared row by row, because count × dim × 4 can exceed a 32-bit int.
	row := 0
	switch t {
	case TypeCold:
		row = keyLen + dim*floatLen
	case TypePull:
		row = keyLen
	case TypeRows:
		row = dim * floatLen
	}
	body := len(payload) - HeaderLen - rowsHeadLen
	if count == 0 || dim == 0 || row == 0 || body%row != 0 || body/row != count {
		return Rows{}, ErrLength
	}
	return splitRows(b[rowsHeadLen:], t, count, dim), nil
}

func splitRows(b []byte, t Type, count, dim int) Rows {
	r := Rows{Count: count, Dim: dim}
	if t != TypeRows {
		r.keys, b = b[:count*keyLen], b[count*keyLen:]
	}
	if t != TypePull {
		r.vals = b[:count*dim*floatLen]
	}
	return r
}

// Key returns key i.
func (r Rows) Key(i int) uint64 { return binary.BigEndian.Uint64(r.keys[i*keyLen:]) }

// SetKey sets key i.
func (r Rows) SetKey(i int, key uint64) { binary.BigEndian.PutUint64(r.keys[i*keyLen:], key) }

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

// gathered is how many rows are gathered in a run without checks of the buffer.
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

// GatherRows encodes all rows: row i is the one that begins at src[at[i]*Dim]. at must have
// Count elements.
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
