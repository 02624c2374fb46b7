// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"errors"
	"testing"

	"github.com/libra-ina/libra/wire"
)

// TestBrokenRoundsAskForNothing gives a call up when one of its contributions is acknowledged, and
// the others are so later: none asks for a result any more, and all buffers are free.
func TestBrokenRoundsAskForNothing(t *testing.T) {
	r, givenUp := newRoundsTester(t, false), errors.New("given up")
	l := r.link.(*memLink)
	acknowledge := func(seq uint32) {
		r.answer(wire.PutAck(make([]byte, wire.HeaderLen), wire.Header{Job: testJob, Sender: 1, Epoch: testEpoch, Seq: seq}))
	}
	acknowledge(1)
	if _, waits := r.rounds.nextDeadline(); !waits {
		t.Fatal("the first contribution does not wait for its result")
	}
	r.rounds.cancelCall(1, givenUp)
	var e *RoundError
	if err := <-r.rounds.done; !errors.As(err, &e) || !errors.Is(err, givenUp) || e.Waiting != 1 || e.Unacked != r.rounds.groups-1 {
		t.Errorf("the call ends with %v", err)
	}
	if at, waits := r.rounds.nextDeadline(); waits {
		t.Errorf("a result is asked for at %v", at)
	}
	for seq := uint32(2); int(seq) <= r.rounds.groups; seq++ {
		acknowledge(seq)
	}
	if at, waits := r.rounds.nextDeadline(); waits {
		t.Errorf("after the other acknowledgements a result is asked for at %v", at)
	}
	if n := r.rounds.flow.window.Outstanding(); n != 0 || len(l.free) != len(l.bufs) {
		t.Errorf("%d frames are unanswered, %d of %d buffers are free", n, len(l.free), len(l.bufs))
	}
}
