// SPDX-License-Identifier: Apache-2.0

package wire

import "encoding/binary"

// TakenLen is the length of a TAKEN payload, and of the ACK that confirms it.
const TakenLen = HeaderLen + 8

// TakenReport is the body of a TAKEN frame: its sender has the result of a round of a group of
// slots. In the ACK, all senders have it.
//
//	bytes 0-1  first slot of the group
//	bytes 2-3  zero
//	bytes 4-7  round
type TakenReport struct {
	First uint16
	Round uint32
}

// Put writes r after the header of a payload of [TakenLen] bytes.
func (r TakenReport) Put(payload []byte) {
	b := payload[HeaderLen:TakenLen]
	clear(b)
	binary.BigEndian.PutUint16(b, r.First)
	binary.BigEndian.PutUint32(b[4:], r.Round)
}

// ParseTaken reads the body of a TAKEN payload, or of an ACK with [FlagTaken] and without
// [FlagCover]. It returns [ErrLength] if the payload has a different length.
func ParseTaken(payload []byte) (TakenReport, error) {
	if len(payload) != TakenLen {
		return TakenReport{}, ErrLength
	}
	b := payload[HeaderLen:]
	return TakenReport{First: binary.BigEndian.Uint16(b), Round: binary.BigEndian.Uint32(b[4:])}, nil
}

// PutTaken writes a TAKEN payload and returns it, a prefix of b. The header's number is that of the
// sender's contribution to the round.
func PutTaken(b []byte, h Header, r TakenReport) []byte {
	h.Type = TypeTaken
	h.Put(b)
	r.Put(b)
	return b[:TakenLen]
}

// PutConfirmation writes the payload that answers the TAKEN frame with header request: all senders
// have the result of the round. It returns the payload, a prefix of b.
func PutConfirmation(b []byte, request Header, r TakenReport) []byte {
	request.Type, request.Flags = TypeAck, FlagTaken
	request.Put(b)
	r.Put(b)
	return b[:TakenLen]
}

// PutTakers writes the payload that answers a repeated TAKEN frame with header request: some
// senders have not told that they have the result. Bit i of takers stands for the sender at
// position i. It returns the payload, a prefix of b.
func PutTakers(b []byte, request Header, takers uint64) []byte {
	b = PutCover(b, request, takers)
	b[1] |= byte(FlagTaken)
	return b
}
