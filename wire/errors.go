// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Errors of the decoders. They are static values, so that refusing a hostile frame does not
// allocate.
var (
	// ErrForeign means that a frame is not a Libra frame (a different protocol or port) and is for
	// another receiver on the interface.
	ErrForeign = errors.New("wire: not a Libra frame")
	// ErrTruncated means that a frame ends before the headers that it announces.
	ErrTruncated = errors.New("wire: frame is truncated")
	// ErrChecksum means that the IPv4 header or UDP checksum is wrong, or that
	// the UDP checksum is absent.
	ErrChecksum = errors.New("wire: checksum is wrong or absent")
	// ErrPartialChecksum is the ErrChecksum of a frame whose UDP checksum is the sum of the pseudo
	// header alone, which Linux writes if it leaves the rest to the network card (CHECKSUM_PARTIAL
	// in the kernel's skbuff.h).
	ErrPartialChecksum = fmt.Errorf("%w: it covers the pseudo header only, its sender leaves the rest to a network card",
		ErrChecksum)
	// ErrVersion means that a different protocol version wrote the frame.
	ErrVersion = errors.New("wire: unsupported protocol version")
	// ErrLength means that a body does not have the length that its type and its counts require.
	ErrLength = errors.New("wire: body length does not match its contents")
)

// Code is the reason why a receiver refused a frame.
type Code uint16

// The codes of an ERROR frame. The comments describe Index and Value of the [Refusal].
const (
	CodeUnknownJob    Code = 1  // no such job is admitted
	CodeUnknownSender Code = 2  // the sender is not admitted to the job
	CodeSlotRange     Code = 3  // Index: pair or row; Value: the job's number of slots
	CodeWrongEpoch    Code = 4  // Value: the current epoch
	CodeWrongVersion  Code = 5  // Value: the supported version
	CodeNotFinite     Code = 6  // Index: pair or float; NaN or infinity
	CodeOverflow      Code = 7  // Index: pair or float; value or sum out of range
	CodeLength        Code = 8  // Value: stripes (HOT) or bytes that are accepted
	CodeMode          Code = 9  // the job's mode has no such operation
	CodeLayout        Code = 10 // dense where lane-aligned is required, or a page in a job that has only one
	CodeDimension     Code = 11 // Value: the job's dimension
	CodeType          Code = 12 // a type that this receiver does not serve
	CodeRound         Code = 13 // Value: the current round, to which the sender has contributed or must contribute
	CodeWindow        Code = 14 // Value: the largest sequence number that is accepted now
	CodeRowsFull      Code = 15 // Index: row; Value: the number of rows that the server may hold
	CodeNumbering     Code = 16 // Value: the server's numbering
	CodeRowNumber     Code = 17 // Index: row; Value: the number of rows that the server holds
	CodeStep          Code = 18 // the step has no sums for frames: its control service knows why
	CodeNoWeights     Code = 19 // the job has no optimiser, and so neither weights nor row numbers
	CodeCoding        Code = 20 // the floats are coded, and the job's hosts have not agreed on a codec
)

var codeTexts = map[Code]string{
	CodeUnknownJob:    "unknown job",
	CodeUnknownSender: "sender not admitted to the job",
	CodeSlotRange:     "slot out of the job's range",
	CodeWrongEpoch:    "wrong epoch",
	CodeWrongVersion:  "unsupported protocol version",
	CodeNotFinite:     "NaN or infinity",
	CodeOverflow:      "value or sum out of range",
	CodeLength:        "body length not accepted",
	CodeMode:          "operation not supported by the job's mode",
	CodeLayout:        "stripe layout not accepted",
	CodeDimension:     "row dimension differs from the job's",
	CodeType:          "frame type not served here",
	CodeRound:         "round is not the one in progress",
	CodeWindow:        "sequence number beyond the window",
	CodeRowsFull:      "no room for another row",
	CodeNumbering:     "row numbers of another server",
	CodeRowNumber:     "row number beyond the server's rows",
	CodeStep:          "no sums of this step in frames: ask the control service",
	CodeNoWeights:     "the job keeps no weights: give it an optimizer (model.optimizer)",
	CodeCoding:        "the job has no codec",
}

// remedies are what a user can do about a refusal. Codes without one say it in their texts.
var remedies = map[Code]string{
	CodeUnknownJob:    "the job has ended, or this is the address of another: start this process again",
	CodeUnknownSender: "its admission has ended, for example while it was stopped: start it again",
	CodeSlotRange:     "use the job's hot set",
	CodeWrongEpoch:    "the receiver has admitted the sender anew, or was restarted: start this process again",
	CodeWrongVersion:  "run the same version of Libra on all hosts",
	CodeNotFinite:     "send finite numbers",
	CodeOverflow:      "sums of exact arithmetic must stay below 2^(63+exponent) in size, 2^17 by default: send smaller numbers",
	CodeLength:        "run the same version of Libra on all hosts, with the same switch.stripes",
	CodeMode:          "sums in answers need a job of mode fetchadd, rounds one of mode sync",
	CodeLayout:        "send what the switch takes: lane-aligned frames (switch.lane_aligned)",
	CodeDimension:     "use the job's model and hot set on all hosts",
	CodeType:          "is it the address of an aggregator or server, and of the same version of Libra?",
	CodeRound:         "the workers are not at the same round: start all of them again",
	CodeWindow:        "start this process again",
	CodeRowsFull:      "raise server.max_rows, or train with fewer features",
	CodeNumbering:     "the server was restarted: start this process again",
	CodeRowNumber:     "the server was restarted: start this process again",
	CodeCoding:        "give the server the worker's cluster file (codec.bound, codec.scale), and run the same version of Libra on all hosts",
}

// Remedy returns what a user can do about a refusal with this code, or nothing.
func (c Code) Remedy() string {
	if _, known := codeTexts[c]; !known {
		return "a newer version of Libra knows this code: update this one"
	}
	return remedies[c]
}

func (c Code) String() string {
	if s, ok := codeTexts[c]; ok {
		return s
	}
	return fmt.Sprintf("error code %d", uint16(c))
}

// Final reports whether a refusal with this code holds for every copy of the frame: because it
// depends only on the frame and the job, or because the receiver remembers that it has refused the
// number. The other codes come from a receiver that does not look the number up, since it has no
// admission for it: an earlier copy may have been applied and its answer lost, whether the sender
// or the network made it.
func (c Code) Final() bool {
	switch c {
	case CodeSlotRange, CodeWrongVersion, CodeNotFinite, CodeOverflow, CodeLength, CodeMode, CodeLayout, CodeDimension,
		CodeType, CodeRound, CodeRowsFull, CodeNumbering, CodeRowNumber, CodeNoWeights, CodeCoding:
		return true
	}
	return false
}

// ErrorLen is the length of an ERROR payload.
const ErrorLen = HeaderLen + 8

// Refusal is the body of an ERROR frame: a receiver's reason for not applying a frame. It is an
// error, and errors.Is compares only the code:
//
//	errors.Is(err, wire.Refusal{Code: wire.CodeWrongEpoch})
type Refusal struct {
	Code  Code
	Index uint16 // position of the offending pair, row or float in the frame
	Value uint32 // depends on the code
}

func (r Refusal) Error() string {
	switch r.Code {
	case CodeSlotRange:
		return fmt.Sprintf("%v: pair %d, the job has %d slots", r.Code, r.Index, r.Value)
	case CodeWrongEpoch, CodeWrongVersion, CodeLength, CodeDimension, CodeRound:
		return fmt.Sprintf("%v: receiver expects %d", r.Code, r.Value)
	case CodeWindow:
		return fmt.Sprintf("%v: receiver accepts numbers up to %d", r.Code, r.Value)
	case CodeRowsFull:
		return fmt.Sprintf("%v: row %d, the server may hold %d (server.max_rows)", r.Code, r.Index, r.Value)
	case CodeNumbering:
		return fmt.Sprintf("%v: its numbering is %d", r.Code, r.Value)
	case CodeRowNumber:
		return fmt.Sprintf("%v: row %d, the server holds %d", r.Code, r.Index, r.Value)
	case CodeNotFinite, CodeOverflow:
		return fmt.Sprintf("%v: pair %d", r.Code, r.Index)
	}
	return r.Code.String()
}

// Is reports whether target is a Refusal with the same code.
func (r Refusal) Is(target error) bool {
	t, ok := target.(Refusal)
	return ok && t.Code == r.Code
}

// Put writes r after the header of an ERROR payload of [ErrorLen] bytes.
func (r Refusal) Put(payload []byte) {
	b := payload[HeaderLen:ErrorLen]
	binary.BigEndian.PutUint16(b, uint16(r.Code))
	binary.BigEndian.PutUint16(b[2:], r.Index)
	binary.BigEndian.PutUint32(b[4:], r.Value)
}

// ParseRefusal reads the body of an ERROR payload.
func ParseRefusal(payload []byte) (Refusal, error) {
	if len(payload) != ErrorLen {
		return Refusal{}, ErrLength
	}
	b := payload[HeaderLen:]
	return Refusal{
		Code:  Code(binary.BigEndian.Uint16(b)),
		Index: binary.BigEndian.Uint16(b[2:]),
		Value: binary.BigEndian.Uint32(b[4:]),
	}, nil
}
