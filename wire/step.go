// SPDX-License-Identifier: Apache-2.0

package wire

import "encoding/binary"

// StepLen is the length of a STEP payload.
const StepLen = HeaderLen + 24

// StepEnd is the body of a STEP frame: its sender has come to the end of a step.
type StepEnd struct {
	Step uint64
	// HotSent and HotAnswered are the numbers of the sender's next frame for the aggregator, and of its first one that is
	// not answered.
	HotSent, HotAnswered uint32
	First                uint32 // the first row that an answer is to begin with
	Room                 uint32 // how many SUMS frames may come at once when the step is over
}

// Put writes s behind the header of a STEP payload of [StepLen] bytes.
func (s StepEnd) Put(payload []byte) {
	b := payload[HeaderLen:StepLen]
	binary.BigEndian.PutUint64(b, s.Step)
	binary.BigEndian.PutUint32(b[8:], s.HotSent)
	binary.BigEndian.PutUint32(b[12:], s.HotAnswered)
	binary.BigEndian.PutUint32(b[16:], s.First)
	binary.BigEndian.PutUint32(b[20:], s.Room)
}

// ParseStep reads the body of a STEP payload. It returns [ErrLength] unless that is [StepLen] bytes long.
func ParseStep(payload []byte) (StepEnd, error) {
	if len(payload) != StepLen {
		return StepEnd{}, ErrLength
	}
	b := payload[HeaderLen:]
	at := func(i int) uint32 { return binary.BigEndian.Uint32(b[i:]) }
	return StepEnd{Step: binary.BigEndian.Uint64(b), HotSent: at(8), HotAnswered: at(12), First: at(16), Room: at(20)}, nil
}

// SumsHead is what a SUMS body has beside its rows.
type SumsHead struct {
	Step  uint64
	Rows  uint32 // of the step
	First uint32 // the place of the frame's first row among them
}

const sumsHeadLen = 16

// SumsLen returns the length of a SUMS payload of n rows.
func SumsLen(n, dim int) int { return ColdLen(n, dim) + sumsHeadLen }

// SumsCap returns how many rows of a dimension fit a SUMS payload of at most limit bytes.
func SumsCap(limit, dim int) int { return ColdCap(limit-sumsHeadLen, dim) }

// PutStepSums writes the head of a SUMS body, whose payload is [SumsLen] bytes long, and returns the view to fill.
func PutStepSums(payload []byte, count, dim int, head SumsHead) Rows {
	b := payload[HeaderLen+rowsHeadLen:]
	binary.BigEndian.PutUint64(b, head.Step)
	binary.BigEndian.PutUint32(b[8:], head.Rows)
	binary.BigEndian.PutUint32(b[12:], head.First)
	return PutRows(payload, TypeSums, count, dim)
}

// ParseStepSums reads a SUMS payload. It returns [ErrLength] as [ParseRows] does, and if the step has fewer rows than
// the frame's place among them needs.
func ParseStepSums(payload []byte) (head SumsHead, rows Rows, err error) {
	if rows, err = ParseRows(payload, TypeSums); err != nil {
		return head, rows, err
	}
	b := payload[HeaderLen+rowsHeadLen:]
	head = SumsHead{Step: binary.BigEndian.Uint64(b), Rows: binary.BigEndian.Uint32(b[8:]), First: binary.BigEndian.Uint32(b[12:])}
	if uint64(head.First)+uint64(rows.Count) > uint64(head.Rows) {
		err = ErrLength
	}
	return head, rows, err
}
