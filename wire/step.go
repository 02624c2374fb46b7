// SPDX-License-Identifier: Apache-2.0

package wire

import "encoding/binary"

// StepLen is the length of a STEP payload.
const StepLen = HeaderLen + 24

// StepEnd is the body of a STEP frame: its sender has reached the end of a step.
type StepEnd struct {
	Step uint64
	// HotSent and HotAnswered are the numbers of the sender's next frame for the aggregator, and of
	// its first unanswered one.
	HotSent, HotAnswered uint32
	First                uint32 // a row that an answer must include
	Room                 uint32 // number of SUMS frames that may be sent at once when the step is over
}

// Put writes s after the header of a STEP payload of [StepLen] bytes.
func (s StepEnd) Put(payload []byte) {
	b := payload[HeaderLen:StepLen]
	binary.BigEndian.PutUint64(b, s.Step)
	binary.BigEndian.PutUint32(b[8:], s.HotSent)
	binary.BigEndian.PutUint32(b[12:], s.HotAnswered)
	binary.BigEndian.PutUint32(b[16:], s.First)
	binary.BigEndian.PutUint32(b[20:], s.Room)
}

// ParseStep reads the body of a STEP payload. It returns [ErrLength] unless the payload is
// [StepLen] bytes long.
func ParseStep(payload []byte) (StepEnd, error) {
	if len(payload) != StepLen {
		return StepEnd{}, ErrLength
	}
	b := payload[HeaderLen:]
	at := func(i int) uint32 { return binary.BigEndian.Uint32(b[i:]) }
	return StepEnd{Step: binary.BigEndian.Uint64(b), HotSent: at(8), HotAnswered: at(12), First: at(16), Room: at(20)}, nil
}
