// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"
	"strings"
)

const (
	// Version is the protocol version of this package.
	Version = 1

	// DefaultPort is the default UDP port of aggregators, servers and workers ("LB" in ASCII).
	DefaultPort = 0x4c42

	// HeaderLen is the size of a [Header] in bytes.
	HeaderLen = 12

	// FirstSeq is the first sequence number of a flow. It is not 0, so that a zeroed
	// duplicate-filter table accepts the first frame.
	FirstSeq = 1

	// DefaultWindow is the number of frames W that a sender may leave unacknowledged on one flow.
	// Receivers keep 2W entries to detect duplicates.
	DefaultWindow = 512
	// MaxServers is the largest number of parameter servers of a job.
	MaxServers = 32
)

// Type is the kind of a frame's body. It is the low nibble of the first byte.
type Type uint8

// The frame types of protocol version 1.
const (
	TypeHot   Type = 1 // worker to aggregator: stripes of hot gradients
	TypeCold  Type = 2 // worker to parameter server: rows of cold gradients
	TypePull  Type = 3 // worker to parameter server: keys of the requested rows
	TypeRows  Type = 4 // parameter server to worker: the requested rows
	TypeAck   Type = 5 // receiver to sender: frame Seq is applied
	TypeError Type = 6 // receiver to sender: frame Seq is refused
	TypeScale Type = 7 // worker to aggregator: exponent of an iteration's largest gradient

	TypeFind   Type = 8  // worker to parameter server: keys of the requested row numbers
	TypeFound  Type = 9  // parameter server to worker: the requested row numbers
	TypeColdAt Type = 10 // worker to parameter server: rows of cold gradients, by row number

	TypeStep Type = 11 // worker to parameter server: the worker has reached the end of a step
	TypeSums Type = 12 // parameter server to worker: rows of a step with their sums

	TypeTaken Type = 13 // worker to aggregator: the worker has the result of a round, in mode acked
	TypeBlock Type = 14 // worker to its neighbour in a ring: values of a block
)

var typeNames = [16]string{
	TypeHot: "HOT", TypeCold: "COLD", TypePull: "PULL", TypeRows: "ROWS",
	TypeAck: "ACK", TypeError: "ERROR", TypeScale: "SCALE",
	TypeFind: "FIND", TypeFound: "FOUND", TypeColdAt: "COLD_AT",
	TypeStep: "STEP", TypeSums: "SUMS", TypeTaken: "TAKEN", TypeBlock: "BLOCK",
}

func (t Type) String() string {
	if int(t) < len(typeNames) && typeNames[t] != "" {
		return typeNames[t]
	}
	return fmt.Sprintf("Type(%d)", uint8(t))
}

// Flags qualify a frame.
type Flags uint8

const (
	// FlagRetx marks a retransmission; the sequence number and the body are those of the original.
	// Receivers do not rely on it.
	FlagRetx Flags = 1 << iota
	// FlagWantSum on a HOT frame requests the sums after the addition in the ACK.
	FlagWantSum
	// FlagDense on a HOT frame or its ACK: the uint16 of a pair is its rank and a pair may be in
	// any lane. Without it the frame is lane-aligned: the pair in lane j belongs to register j and
	// the uint16 is the slot.
	FlagDense
	// FlagSum on an ACK: stripes with the sums or, with FlagScale, the decision follow the header.
	FlagSum
	// FlagAll on an ACK: it goes to all senders of the job, because one of their rounds is complete
	// or, with FlagTaken, all have its result. Sender is [AllSenders], Seq the number of the round.
	FlagAll
	// FlagScale on an ACK: it answers a SCALE frame; with FlagSum the body is a
	// [ScaleReport] with the largest exponent of all workers.
	FlagScale
	// FlagQuiet on a HOT, COLD or COLD_AT frame: its sender needs no answer if this frame and the
	// previous one are applied: a later frame requests the answer for both. In a job with rounds,
	// its sender needs no answer before the round is complete.
	FlagQuiet
	// FlagCover on a HOT, COLD or COLD_AT frame requests that the ACK report which of the frames
	// around it are applied, and on an ACK means that it does: see [PutCover]. In a job with rounds,
	// it is which senders, by position, have contributed to the round or, with FlagTaken, have its
	// result.
	FlagCover

	// FlagCoded on a COLD or COLD_AT frame: its floats are coded, as the job's hosts have agreed
	// (package codec). It is the bit of FlagScale, which only ACKs have.
	FlagCoded = FlagScale
	// FlagTaken on an ACK: it answers a TAKEN frame, and its body is a [TakenReport] or, with
	// FlagCover, the positions of the senders that have the result. It is the bit of FlagQuiet, which
	// no ACK has.
	FlagTaken = FlagQuiet
)

// AllSenders is the sender field of an ACK with [FlagAll].
const AllSenders = 0xffff

var flagNames = [8]string{"RETX", "WANT_SUM", "DENSE", "SUM", "ALL", "SCALE", "QUIET", "COVER"}

// String returns the names of the flags, as in "RETX|DENSE".
func (f Flags) String() string {
	var names []string
	for i, name := range flagNames {
		if f&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, "|")
}

// FlagNames returns the names of the header's flags. They depend on its type: see [FlagCoded] and
// [FlagTaken].
func (h Header) FlagNames() string {
	if _, _, floats := h.Type.Body(); floats && h.Type != TypeRows {
		return strings.Replace(h.Flags.String(), FlagScale.String(), "CODED", 1)
	}
	if h.Type == TypeAck {
		return strings.Replace(h.Flags.String(), FlagQuiet.String(), TypeTaken.String(), 1)
	}
	return h.Flags.String()
}

// Header is the fixed part that follows the UDP header.
//
//	byte 0     version (high nibble), type (low nibble)
//	byte 1     flags
//	bytes 2-3  job
//	bytes 4-5  sender
//	bytes 6-7  epoch
//	bytes 8-11 sequence number
//
// In ACK, ERROR, ROWS, FOUND and SUMS frames job, sender, epoch and sequence number are those of
// the frame that is answered; for an exception see [FlagAll].
type Header struct {
	Type   Type
	Flags  Flags
	Job    uint16
	Sender uint16
	Epoch  uint16
	Seq    uint32
}

// Put writes h into the first HeaderLen bytes of b, which must be long enough.
func (h Header) Put(b []byte) {
	_ = b[HeaderLen-1]
	b[0] = Version<<4 | byte(h.Type)&0xf
	b[1] = byte(h.Flags)
	binary.BigEndian.PutUint16(b[2:], h.Job)
	binary.BigEndian.PutUint16(b[4:], h.Sender)
	binary.BigEndian.PutUint16(b[6:], h.Epoch)
	binary.BigEndian.PutUint32(b[SeqOffset:], h.Seq)
}

// SeqOffset is where the sequence number begins in a payload, for programs that read it by
// themselves.
const SeqOffset = 8

// SeqOf returns the sequence number of an encoded header, which must be whole.
func SeqOf(payload []byte) uint32 { return binary.BigEndian.Uint32(payload[SeqOffset:HeaderLen]) }

// ParseHeader reads the header of a UDP payload. It returns [ErrTruncated] if the payload is too
// short and [ErrVersion] if a different protocol version wrote it; in the second case it still
// fills the fields, because the answer to such a frame echoes them.
func ParseHeader(payload []byte) (Header, error) {
	if len(payload) < HeaderLen {
		return Header{}, ErrTruncated
	}
	h := Header{
		Type:   Type(payload[0] & 0xf),
		Flags:  Flags(payload[1]),
		Job:    binary.BigEndian.Uint16(payload[2:]),
		Sender: binary.BigEndian.Uint16(payload[4:]),
		Epoch:  binary.BigEndian.Uint16(payload[6:]),
		Seq:    binary.BigEndian.Uint32(payload[8:]),
	}
	if payload[0]>>4 != Version {
		return h, ErrVersion
	}
	return h, nil
}

// MarkRetx sets [FlagRetx] in an encoded payload. The UDP checksum must be recomputed afterwards.
//
// The frame requests an answer; see [Ask].
func MarkRetx(payload []byte) {
	Ask(payload)
	payload[1] |= byte(FlagRetx)
}

// Ask replaces [FlagQuiet] of an encoded frame by [FlagCover]. It reports whether the frame then
// has FlagCover.
func Ask(payload []byte) bool {
	if payload[1]&byte(FlagQuiet) != 0 {
		payload[1] ^= byte(FlagQuiet | FlagCover)
	}
	return payload[1]&byte(FlagCover) != 0
}
