package transport

import (
	"testing"
	"time"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/wire"
)

// sleepyLink notes for how long its user would sleep.
type sleepyLink struct {
	link.Link
	sleeps []time.Duration
}

func (l *sleepyLink) Wait(limit time.Duration) error {
	l.sleeps = append(l.sleeps, limit)
	return nil
}

// TestTurnSleepsOnlyWhenIdle lets a worker sleep if it may and there is nothing to
// do: nothing received, handed in, queued or sent.
func TestTurnSleepsOnlyWhenIdle(t *testing.T) {
	p := newPausable(t, time.Hour)
	full := &fullLink{Link: p.link, room: 100}
	link := &sleepyLink{Link: full}
	p.link = link
	turn := func(what string, may bool, want ...time.Duration) {
		t.Helper()
		link.sleeps = nil
		if err := p.turn(may); err != nil {
			t.Fatal(err)
		}
		if len(link.sleeps) != len(want) || len(want) > 0 && link.sleeps[0] != want[0] {
			t.Errorf("%s: sleeps for %v, want %v", what, link.sleeps, want)
		}
	}
	turn("idle", true, -1)
	turn("idle, with more to pack", false)
	p.server.deliver(make([]byte, 1), p.link.Local())
	turn("something received", true)
	turn("idle", true, -1)
	if _, err := p.Queue(t.Context(), []uint64{1}, make([]float32, testDim)); err != nil {
		t.Fatal(err)
	}
	turn("a queue that may wait", true, -1)
	p.hurry()
	turn("a queue to be taken", true)
	full.room = 0
	p.Worker.push(p.nextPush())
	turn("a frame that finds no room", true, sendRetry)
	full.room = 1
	turn("a frame sent", true)
	turn("waiting for the answer", true, 20*time.Millisecond)
	p.clock += retransmit.Time(20 * time.Millisecond)
	full.room = 1
	turn("a repetition sent", true)
	full.room = 0
	p.clock += 2 * retransmit.Time(20*time.Millisecond)
	turn("a repetition that finds no room", true, 50*time.Millisecond)
	h, _ := wire.ParseHeader(next(t.Context(), t, p.server).Payload)
	p.server.deliver(wire.PutAck(make([]byte, wire.HeaderLen), h), p.link.Local())
	turn("the answer", true)
	turn("idle", true, -1)
}
