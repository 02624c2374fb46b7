// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/wire"
)

var (
	// ErrConfig is wrapped by errors that name a field which is missing or wrong.
	ErrConfig = errors.New("transport: bad configuration")
	// ErrAnswer means that a peer answered a frame with something that does not
	// fit it; the peer is no Libra server or aggregator, or a broken one.
	ErrAnswer = errors.New("answer does not fit the question")
)

// PeerError is what went wrong between a worker and one of its peers. It wraps
// a [wire.Refusal], a [*retransmit.SilentPeerError] or [ErrAnswer].
type PeerError struct {
	Role   string         // "aggregator" or "parameter server"
	Addr   netip.AddrPort // where the frames went
	Job    uint16
	Sender uint16
	// Key is the row that a refusal is about, if KeyKnown.
	Key      uint64
	KeyKnown bool
	// LinkErr is the last error of sending, where the peer was silent.
	LinkErr error
	// Unknown means that the refused frame had been sent more than once, and that
	// the reason for the refusal depends on the peer's state (see [wire.Code.Final]):
	// another copy may have been applied.
	Unknown bool
	Err     error
}

func (e *PeerError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %v, job %d, sender %d: ", e.Role, e.Addr, e.Job, e.Sender)
	if errors.As(e.Err, new(wire.Refusal)) {
		b.WriteString("refused: ")
	}
	b.WriteString(e.Err.Error())
	if e.KeyKnown {
		fmt.Fprintf(&b, " (key %d)", e.Key)
	}
	if e.Unknown {
		b.WriteString("; the frame had been sent before, so it is unknown whether it was applied")
	}
	if e.LinkErr != nil {
		fmt.Fprintf(&b, "; the last error of sending was: %v", e.LinkErr)
	}
	return b.String()
}

func (e *PeerError) Unwrap() error { return e.Err }

// PushError reports what became of the frames of a push that failed. Frames that
// were acknowledged are applied. Refused ones are not. Of the others it is unknown:
// they were refused after a repetition, or have no answer.
//
// Receivers judge each copy of a frame by itself. Where the reason for a refusal
// depends on their state (job, sender or epoch not admitted, a sum out of range
// until the next harvest), a copy that the network itself has made or delayed may
// be applied although another one was refused. Admit a sender before it sends.
type PushError struct {
	// Sent is what was handed to the network before the push failed. Its
	// frames are Acked + Refused + Unknown + Unacked.
	Sent  packer.Sent
	Acked int
	// Refused frames were sent once, or refused for a reason that holds for every
	// copy of them ([wire.Code.Final]).
	Refused int
	// Unknown frames were sent more than once and then refused for another
	// reason: an earlier copy may have been applied and its answer lost, and a
	// copy that is still in the network may yet be applied.
	Unknown int
	// Unacked frames had no answer when the push failed. They are still
	// repeated until they are answered, unless the endpoint has ended.
	Unacked int
	// Complete means that the whole batch was handed over.
	Complete bool
	Err      error // a [*PeerError], a context's error or [ErrClosed]
}

func (e *PushError) Error() string {
	what := "the whole batch"
	if !e.Complete {
		what = "a part of the batch"
	}
	return fmt.Sprintf("transport: push failed after %s was sent (%d hot pairs, %d cold rows in %d frames: %d acknowledged, %d refused, %d unknown, %d unanswered): %v",
		what, e.Sent.HotPairs, e.Sent.ColdRows, e.Acked+e.Refused+e.Unknown+e.Unacked, e.Acked, e.Refused, e.Unknown, e.Unacked, e.Err)
}

func (e *PushError) Unwrap() error { return e.Err }
