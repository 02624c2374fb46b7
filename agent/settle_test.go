// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/transport"
	"github.com/libra-ina/libra/wire"
)

// The completion has the details of a worker's error. An error that does not concern the client is
// in the log.
func TestErrorsInCompletions(t *testing.T) {
	peer := func(role string, err error) error {
		return &transport.PeerError{Role: role, Key: 7, KeyKnown: true, Err: err}
	}
	for name, c := range map[string]struct {
		err    error
		want   agentproto.Completion
		logged bool
	}{
		"none":         {nil, agentproto.Completion{}, false},
		"a code":       {fmt.Errorf("%w: prepared batches", agentproto.NoMemory), agentproto.Completion{Status: agentproto.NoMemory}, false},
		"not finite":   {&packer.NotFiniteError{Index: 3, Key: 5}, agentproto.Completion{Status: agentproto.NotFinite, Detail: 3, Key: 5, KeyKnown: true}, false},
		"out of range": {&packer.RangeError{Index: 3, Key: 5}, agentproto.Completion{Status: agentproto.OutOfRange, Detail: 3, Key: 5, KeyKnown: true}, false},
		"no weights": {peer("parameter server", wire.Refusal{Code: wire.CodeNoWeights}),
			agentproto.Completion{Status: agentproto.NoWeights, Peer: agentproto.Server, Key: 7, KeyKnown: true}, false},
		"refused": {&transport.PushError{Acked: 1, Refused: 2, Unknown: 3, Unacked: 4, Err: peer("aggregator", wire.Refusal{Code: wire.CodeOverflow})},
			agentproto.Completion{Status: agentproto.Refused, Peer: agentproto.Aggregator, Refusal: uint16(wire.CodeOverflow), Key: 7, KeyKnown: true, Acknowledged: 1, Refused: 2, Unknown: 7}, false},
		"a wrong answer": {peer("parameter server", transport.ErrAnswer), agentproto.Completion{Status: agentproto.BadAnswer, Peer: agentproto.Server, Key: 7, KeyKnown: true}, false},
		"a wrong mode":   {transport.ErrMode, agentproto.Completion{Status: agentproto.BadMode}, false},
		"the end":        {transport.ErrClosed, agentproto.Completion{Status: agentproto.JobEnded}, false},
		"silence": {peer("aggregator", &retransmit.SilentPeerError{}),
			agentproto.Completion{Status: agentproto.JobEnded, Peer: agentproto.Aggregator, Key: 7, KeyKnown: true}, false},
		"the session's end": {context.Canceled, agentproto.Completion{Status: agentproto.JobEnded}, false},
		"another":           {errors.New("the link is broken"), agentproto.Completion{Status: agentproto.JobEnded}, true},
	} {
		var log bytes.Buffer
		w := &work{s: &session{number: 9, job: &job{log: slog.New(slog.NewTextHandler(&log, nil))}}}
		w.setError(c.err)
		if diff := cmp.Diff(c.want, w.c); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if logged := strings.Contains(log.String(), `client=9`) && strings.Contains(log.String(), `error="the link is broken"`); logged != c.logged || !c.logged && log.Len() > 0 {
			t.Errorf("%s: the log has %q", name, log.String())
		}
	}
}

// A dropped step reports the key, if it is known.
func TestTextOfADroppedStep(t *testing.T) {
	// A step that a client has left torn is dropped, too: then no gradient was refused, and no PUSH
	// reports more.
	for _, reason := range []string{"were refused", "ended before its end"} {
		if text := agentproto.Dropped.Error(); !strings.Contains(text, reason) {
			t.Errorf("%q, want %q", text, reason)
		}
	}
	for want, e := range map[string]*DroppedError{
		agentproto.Dropped.Error():             {Key: 4},
		agentproto.Dropped.Error() + ": key 4": {Key: 4, KeyKnown: true},
	} {
		if got := e.Error(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// The first reason of a session's end counts, and its context ends with it: otherwise it would stay
// attached to the job's.
func TestFirstEndCounts(t *testing.T) {
	s := &session{job: &job{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	first := errors.New("first")
	s.endSession(first)
	s.endSession(errGone)
	if !errors.Is(s.ended, first) || s.ctx.Err() == nil {
		t.Errorf("%v, %v", s.ended, s.ctx.Err())
	}
}
