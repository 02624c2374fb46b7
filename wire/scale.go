// SPDX-License-Identifier: Apache-2.0

package wire

import "encoding/binary"

// ScaleLen is the length of a SCALE payload, and of the ACK that answers it with a decision.
const ScaleLen = HeaderLen + 8

// ScaleReport is the body of a SCALE frame: the exponent of a worker's largest gradient of an
// iteration, as encoded in a float32 (biased by 127). In the ACK it is the largest exponent of all
// workers.
//
//	bytes 0-3  iteration, from 0 on
//	byte 4     exponent
//	bytes 5-7  zero
type ScaleReport struct {
	Iteration uint32
	Exponent  uint8
}

// InfiniteExponent is the exponent of infinities and NaN, which is invalid in a report.
const InfiniteExponent = 0xff

// Put writes r after the header of a payload of [ScaleLen] bytes.
func (r ScaleReport) Put(payload []byte) {
	b := payload[HeaderLen:ScaleLen]
	clear(b)
	binary.BigEndian.PutUint32(b, r.Iteration)
	b[4] = r.Exponent
}

// ParseScale reads the body of a SCALE payload, or of an ACK with [FlagScale]
// and [FlagSum]. It returns [ErrLength] if the payload has a different length.
func ParseScale(payload []byte) (ScaleReport, error) {
	if len(payload) != ScaleLen {
		return ScaleReport{}, ErrLength
	}
	b := payload[HeaderLen:]
	return ScaleReport{Iteration: binary.BigEndian.Uint32(b), Exponent: b[4]}, nil
}

// PutScale writes a SCALE payload and returns it, a prefix of b.
func PutScale(b []byte, h Header, r ScaleReport) []byte {
	h.Type = TypeScale
	h.Put(b)
	r.Put(b)
	return b[:ScaleLen]
}

// PutScaleAck writes the payload that acknowledges the SCALE frame with header request without a
// decision, because reports of other workers are missing. It returns the payload, a prefix of b.
func PutScaleAck(b []byte, request Header) []byte {
	request.Type, request.Flags = TypeAck, FlagScale
	request.Put(b)
	return b[:HeaderLen]
}

// PutDecision writes the payload that answers the SCALE frame with header request with the
// decision, and returns it, a prefix of b.
func PutDecision(b []byte, request Header, decided ScaleReport) []byte {
	request.Type, request.Flags = TypeAck, FlagSum|FlagScale
	request.Put(b)
	decided.Put(b)
	return b[:ScaleLen]
}
