package wire

import "encoding/binary"

// ScaleLen is the length of a SCALE payload, and of the ACK that answers it
// with a decision.
const ScaleLen = HeaderLen + 8

// ScaleReport is the body of a SCALE frame: the exponent of a worker's largest
// gradient of an iteration, as it stands in a float32 (biased by 127). In the
// ACK it is the largest exponent of all workers.
//
//	bytes 0-3  iteration, from 0 on
//	byte 4     exponent
//	bytes 5-7  zero
type ScaleReport struct {
	Iteration uint32
	Exponent  uint8
}

// Put writes r behind the header of a payload of [ScaleLen] bytes.
func (r ScaleReport) Put(payload []byte) {
	b := payload[HeaderLen:ScaleLen]
	clear(b)
	binary.BigEndian.PutUint32(b, r.Iteration)
	b[4] = r.Exponent
}

// ParseScale reads the body of a SCALE payload, or of an ACK with [FlagScale]
// and [FlagSum]. It returns [ErrLength] if the payload has another length.
func ParseScale(payload []byte) (ScaleReport, error) {
	if len(payload) != ScaleLen {
		return ScaleReport{}, ErrLength
	}
	b := payload[HeaderLen:]
	return ScaleReport{Iteration: binary.BigEndian.Uint32(b), Exponent: b[4]}, nil
}
