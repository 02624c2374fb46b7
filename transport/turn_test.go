// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"testing"
	"time"

	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/transport/endpoint"
	"github.com/libra-ina/libra/wire"
)

// TestTurnIsBusyOrIdle checks the result of a turn, and how long the worker would sleep: it is idle
// if nothing was received, submitted, queued or sent.
func TestTurnIsBusyOrIdle(t *testing.T) {
	p := newPausable(t, time.Hour)
	full := &fullLink{Link: p.link, room: 100}
	p.link = full
	const busy = 0
	turn := func(what string, sleep time.Duration) {
		t.Helper()
		working, err := p.turn()
		if err != nil {
			t.Fatal(err)
		}
		if working != (sleep == busy) {
			t.Errorf("%s: busy: %v", what, working)
		}
		if got := p.patience(); sleep != busy && got != sleep {
			t.Errorf("%s: sleeps for %v, want %v", what, got, sleep)
		}
	}
	turn("nothing to do", -1)
	p.server.deliver(make([]byte, 1), p.link.Local())
	turn("something received", busy)
	turn("nothing to do", -1)
	if _, err := p.PushLater(t.Context(), []uint64{1}, make([]float32, testDim)); err != nil {
		t.Fatal(err)
	}
	turn("a queue that may wait", -1)
	p.hurryQueue()
	full.room = 0
	turn("a queue to be taken", busy)
	turn("a frame that finds no room", endpoint.SendRetry)
	full.room = 1
	turn("a frame sent", busy)
	turn("waiting for the answer", 20*time.Millisecond)
	p.clock += retransmit.Time(20 * time.Millisecond)
	full.room = 1
	turn("a repetition sent", busy)
	full.room = 0
	p.clock += 2 * retransmit.Time(20*time.Millisecond)
	turn("a repetition that finds no room", 50*time.Millisecond)
	h, _ := wire.ParseHeader(next(t.Context(), t, p.server).Payload)
	p.server.deliver(wire.PutAck(make([]byte, wire.HeaderLen), h), p.link.Local())
	turn("the answer", busy)
	turn("nothing to do", -1)
}
