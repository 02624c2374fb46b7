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
	// ErrConfig is wrapped by errors that name a missing or invalid field.
	ErrConfig = errors.New("transport: bad configuration")
	// ErrAnswer means that an answer does not fit the frame it answers: the peer is
	// broken, or is not a Libra server or aggregator.
	ErrAnswer = errors.New("answer does not fit the question")
)

// PeerError is a failure between a worker and one of its peers. It wraps
// a [wire.Refusal], a [*retransmit.SilentPeerError] or [ErrAnswer].
type PeerError struct {
	Role   string         // "aggregator" or "parameter server"
	Addr   netip.AddrPort // where the frames went
	Job    uint16
	Sender uint16
	// Key is the row that was refused, if KeyKnown.
	Key      uint64
	KeyKnown bool
	// LinkErr is the last send error, if the peer was silent.
	LinkErr error
	// Unknown means that another copy of the refused frame may have been applied, because
	// the peer does not know what it did with the frame's number (see [wire.Code.Final]).
	Unknown bool
	Err     error
}

func (e *PeerError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %v, job %d, sender %d: ", e.Role, e.Addr, e.Job, e.Sender)
	refusal := wire.Refusal{}
	if errors.As(e.Err, &refusal) {
		b.WriteString("refused: ")
	}
	b.WriteString(e.Err.Error())
	if e.KeyKnown {
		fmt.Fprintf(&b, " (key %d)", e.Key)
	}
	if remedy := refusal.Code.Remedy(); refusal.Code != 0 && remedy != "" {
		b.WriteString(": " + remedy)
	}
	if e.Unknown {
		b.WriteString("; another copy of the frame may have arrived before, so it is unknown whether it was applied")
	}
	if e.LinkErr != nil {
		fmt.Fprintf(&b, "; the last error of sending was: %v", e.LinkErr)
	}
	return b.String()
}

func (e *PeerError) Unwrap() error { return e.Err }

// PushError counts the frames of a failed push. Acknowledged frames are applied.
// Refused ones are not, and never will be: whoever pushes their contents again does
// not have them twice. The fate of the others is unknown: they were refused by a peer
// that no longer knows, or not yet, what it did with their numbers, or have no answer.
type PushError struct {
	// Sent is what was sent before the push failed. It has
	// Acked + Refused + Unknown + Unacked frames.
	Sent  packer.Sent
	Acked int
	// Refused frames were refused for a reason that holds for every copy, of the
	// sender's or of the network's ([wire.Code.Final]).
	Refused int
	// Unknown frames were refused for another reason (job, sender or epoch not
	// admitted, a number beyond the window): the answer of an applied copy may be
	// lost. Withdraw a sender only when it has no unanswered frames.
	Unknown int
	// Unacked frames had no answer when the push failed. They are retransmitted
	// until they are answered, unless the endpoint has ended.
	Unacked int
	// Complete means that the whole batch was sent.
	Complete bool
	Err      error // a [*PeerError], a context's error or [ErrClosed]
}

func (e *PushError) Error() string {
	what := "the whole batch"
	if !e.Complete {
		what = "a part of the batch"
	}
	return fmt.Sprintf("transport: push failed after %s was sent (%d hot pairs, %d cold rows in %d frames: %d acknowledged, %d refused, %d unknown, %d unanswered): %v",
		what, e.Sent.HotPairs, e.Sent.ColdRows, e.Acked+e.Refused+e.Unknown+e.Unacked, e.Acked, e.Refused, e.Unknown,
		e.Unacked, e.Err)
}

func (e *PushError) Unwrap() error { return e.Err }
