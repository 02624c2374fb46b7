// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"math"
)

// BlockHead is the length of a BLOCK payload without its values.
const BlockHead = HeaderLen + 16

// Block is the head of a BLOCK body: values of a vector, on their way around a ring of workers.
type Block struct {
	Operation uint32
	// First is the index of the first value in the vector. Without values it is the length of the
	// vector.
	First uint32
	// Count is the number of values. A BLOCK without values says that its sender is in the operation.
	Count uint16
	// Step is that of the operation. Without values it is the number of workers of the ring.
	Step uint16
	// Bound and Scale are those of package codec. With bound 0 the values are floats.
	Bound uint8
	Scale int8
}

// Limits of a coded Block: those of codec.Config.
const (
	maxBound = 14
	maxScale = 126
)

// Put writes the head after the header of a BLOCK payload. The values follow at [BlockHead].
func (b Block) Put(payload []byte) {
	p := payload[HeaderLen:BlockHead]
	binary.BigEndian.PutUint32(p, b.Operation)
	binary.BigEndian.PutUint32(p[4:], b.First)
	binary.BigEndian.PutUint16(p[8:], b.Count)
	binary.BigEndian.PutUint16(p[10:], b.Step)
	p[12], p[13] = b.Bound, uint8(b.Scale)
	binary.BigEndian.PutUint16(p[14:], 0)
}

// ParseBlock reads a BLOCK payload. It returns the values as they are in it: Count floats, or
// codes, which should be those of Count floats. [ErrLength] means that the body does not have
// exactly the length that its count requires, or that it has more than [MaxCoded] coded values, or
// a bound or scale that no codec has.
func ParseBlock(payload []byte) (Block, []byte, error) {
	if len(payload) < BlockHead {
		return Block{}, nil, ErrLength
	}
	p := payload[HeaderLen:BlockHead]
	b := Block{
		Operation: binary.BigEndian.Uint32(p), First: binary.BigEndian.Uint32(p[4:]), Count: binary.BigEndian.Uint16(p[8:]),
		Step: binary.BigEndian.Uint16(p[10:]), Bound: p[12], Scale: int8(p[13]),
	}
	values := payload[BlockHead:]
	right := len(values) == int(b.Count)*floatLen
	if b.Bound != 0 && b.Count != 0 {
		right = b.Count <= MaxCoded && len(values) > 0
	}
	if !right || b.Bound > maxBound || b.Scale < -maxScale || b.Scale > maxScale {
		return Block{}, nil, ErrLength
	}
	return b, values, nil
}

// PutFloats writes floats into dst, as frames have them.
func PutFloats(dst []byte, floats []float32) {
	dst = dst[:len(floats)*floatLen]
	for ; len(floats) >= gathered; floats, dst = floats[gathered:], dst[gathered*floatLen:] {
		to := (*[gathered * floatLen]byte)(dst)
		for j, v := range (*[gathered]float32)(floats) {
			binary.BigEndian.PutUint32(to[j*floatLen:], math.Float32bits(v))
		}
	}
	for j, v := range floats {
		binary.BigEndian.PutUint32(dst[j*floatLen:], math.Float32bits(v))
	}
}

// Floats reads as many floats as dst holds from src, where frames have them.
func Floats(dst []float32, src []byte) {
	src = src[:len(dst)*floatLen]
	for ; len(dst) >= gathered; dst, src = dst[gathered:], src[gathered*floatLen:] {
		from := (*[gathered * floatLen]byte)(src)
		for j := range (*[gathered]float32)(dst) {
			dst[j] = math.Float32frombits(binary.BigEndian.Uint32(from[j*floatLen:]))
		}
	}
	for j := range dst {
		dst[j] = math.Float32frombits(binary.BigEndian.Uint32(src[j*floatLen:]))
	}
}
