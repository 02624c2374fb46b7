// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/transport/endpoint"
	"github.com/libra-ina/libra/wire"
)

// pausable is a worker that the test runs, with a clock of the test.
type pausable struct {
	*Worker
	t      *testing.T
	clock  retransmit.Time
	server *memLink
}

func newPausable(t *testing.T, silence time.Duration) *pausable {
	network := newMemNet()
	p := &pausable{t: t, server: network.open("10.0.0.2:19522")}
	w, err := makeWorker(t.Context(), WorkerConfig{
		Link: network.open("10.0.0.3:19522"), Job: testJob, Sender: 1, ServerEpoch: testServerEpoch, Dim: testDim,
		Server: p.server.local, Flow: retransmit.Config{Silence: silence, MaxRTO: 50 * time.Millisecond},
	})
	if err != nil {
		t.Fatal(err)
	}
	w.clock = func() retransmit.Time { return p.clock }
	p.Worker = w
	return p
}

// push sends frames.
func (p *pausable) push(frames int) *operation {
	p.t.Helper()
	o := &operation{ticket: &Ticket{done: make(chan struct{})}, released: make(chan struct{})}
	for i := range frames * wire.ColdCap(p.link.Limits().MaxPayload, testDim) {
		o.keys = append(o.keys, uint64(i))
	}
	o.values = make([]float32, len(o.keys)*testDim)
	p.acceptOperation(o)
	for !o.sealed {
		if busy, err := p.turn(); err != nil || !busy {
			p.t.Fatalf("busy: %v, %v, %+v", busy, err, o.sent)
		}
	}
	if o.failure != nil || o.sent.ColdFrames != frames {
		p.t.Fatalf("%v, %+v", o.failure, o.sent)
	}
	return o
}

// answer acknowledges all frames that have arrived at the server.
func (p *pausable) answer() (n int) {
	pkts := make([]link.Packet, 8)
	for {
		got, err := p.server.Receive(pkts)
		if err != nil {
			p.t.Fatal(err)
		}
		if got == 0 {
			return n
		}
		for _, pkt := range pkts[:got] {
			h, err := wire.ParseHeader(pkt.Payload)
			if err != nil {
				p.t.Fatal(err)
			}
			p.server.deliver(wire.PutAck(make([]byte, wire.HeaderLen), h), p.link.Local())
			n++
		}
	}
}

// listen runs turns for a while, like a worker that sleeps from deadline to deadline.
func (p *pausable) listen(d time.Duration) error {
	for end := p.clock.Add(d); ; {
		if _, err := p.turn(); err != nil || p.clock == end {
			return err
		}
		step := p.patience()
		if step < 0 {
			return nil // all is answered
		}
		p.clock = min(end, p.clock.Add(max(step, time.Microsecond)))
	}
}

// TestPauseWithAnswersWaiting stops the worker for longer than the limit of silence while more
// answers arrive than it receives at a time.
func TestPauseWithAnswersWaiting(t *testing.T) {
	p := newPausable(t, 10*time.Second)
	o := p.push(200)
	// The peer is slow, but within the limit.
	if err := p.listen(9990 * time.Millisecond); err != nil {
		t.Fatal(err)
	}
	// First, more than a batch of other frames.
	for range 2 * endpoint.Batch {
		p.server.deliver(make([]byte, 1), p.link.Local())
	}
	if n := p.answer(); n < 200 {
		t.Fatalf("%d frames arrived", n)
	}
	p.clock += retransmit.Time(13 * time.Second)
	for turn := range 10 {
		if _, err := p.turn(); err != nil {
			t.Fatalf("turn %d after the pause: %v", turn, err)
		}
	}
	if o.acked != 200 || o.failure != nil {
		t.Errorf("%d frames acknowledged, %v", o.acked, o.failure)
	}
}

// TestPauseWithNothingWaiting stops the worker before its frames could be answered, and the network
// loses them. It asks again and gets answers.
func TestPauseWithNothingWaiting(t *testing.T) {
	p := newPausable(t, 10*time.Second)
	o := p.push(100)
	for range 100 {
		if _, err := p.server.Receive(make([]link.Packet, 1)); err != nil { // lost
			t.Fatal(err)
		}
	}
	p.clock += retransmit.Time(13 * time.Second)
	for range 1000 {
		if err := p.listen(5 * time.Millisecond); err != nil {
			t.Fatalf("%v after the pause: %v", time.Duration(p.clock)-13*time.Second, err)
		}
		p.answer()
		if o.acked == 100 {
			return
		}
	}
	t.Errorf("%d frames acknowledged", o.acked)
}

// TestSilenceCountsListening gives up a dead peer, with or without pauses, after the limit of
// listening without an answer.
func TestSilenceCountsListening(t *testing.T) {
	p := newPausable(t, 2*time.Second)
	o := p.push(10)
	var listened time.Duration
	var err error
	for ; err == nil && listened < time.Minute; listened += 100 * time.Millisecond {
		if err = p.listen(100 * time.Millisecond); err == nil {
			p.clock += retransmit.Time(time.Minute)
		}
	}
	var silent *retransmit.SilentPeerError
	if !errors.As(err, &silent) || listened > 2200*time.Millisecond || listened < time.Second {
		t.Fatalf("after %v: %v", listened, err)
	}
	if silent.Silent < 2*time.Second || silent.Silent > 2200*time.Millisecond {
		t.Errorf("silent for %v", silent.Silent)
	}
	p.settleAll(err)
	if err := o.ticket.Wait(context.Background()); !errors.As(err, &silent) {
		t.Errorf("ticket: %v", err)
	}
}

// TestFullBatchesKeepTimersWaiting lets a frame be late while more frames wait than the worker
// receives at a time: its answer may be among them, but only up to a limit.
func TestFullBatchesKeepTimersWaiting(t *testing.T) {
	p := newPausable(t, 10*time.Second)
	p.push(1)
	turn := func(d time.Duration) (frames int) {
		t.Helper()
		p.clock = p.clock.Add(d)
		if _, err := p.turn(); err != nil {
			t.Fatal(err)
		}
		for n := 1; n > 0; frames += n {
			var err error
			if n, err = p.server.Receive(make([]link.Packet, 1)); err != nil {
				t.Fatal(err)
			}
		}
		return frames
	}
	turn(0)
	turn(p.patience() - time.Millisecond) // it is not late yet, and this is the last check of the timers
	for range 4 * endpoint.Batch {
		p.server.deliver(make([]byte, 1), p.link.Local())
	}
	for _, c := range []struct {
		d    time.Duration
		want int
	}{{timerLag / 2, 0}, {timerLag / 2, 0}, {1, 1}} {
		if got := turn(c.d); got != c.want {
			t.Errorf("after %v more: %d frames, want %d", c.d, got, c.want)
		}
	}
}

// TestPackingIsNoRoundTrip lets the clock advance while a frame is packed.
func TestPackingIsNoRoundTrip(t *testing.T) {
	p := newPausable(t, 10*time.Second)
	times := []time.Duration{0, time.Millisecond, 5 * time.Millisecond} // begin, send, answer
	p.Worker.clock = func() (now retransmit.Time) {
		now, times = now.Add(times[0]), times[1:]
		return now
	}
	p.push(1)
	if n := p.answer(); n != 1 {
		t.Fatalf("%d frames arrived", n)
	}
	if _, err := p.turn(); err != nil {
		t.Fatal(err)
	}
	if got := p.snapshot().Cold.SRTT; got != 4*time.Millisecond {
		t.Errorf("a round trip of 4 ms is measured as %v", got)
	}
}

// After a caller has abandoned a pull, it owns its slice again: a later answer is not written
// there.
func TestLateRowsLeaveTheCallersSliceAlone(t *testing.T) {
	p := newPausable(t, time.Hour)
	o := &operation{pull: true, keys: []uint64{1, 2}, values: make([]float32, 2*testDim), released: make(chan struct{})}
	p.acceptOperation(o)
	if _, err := p.turn(); err != nil || o.outstanding != 1 {
		t.Fatalf("%d frames are on their way, %v", o.outstanding, err)
	}
	o.cause = context.Canceled
	o.cancelled.Store(true)
	p.sweepCancelled()
	<-o.released

	pkts := make([]link.Packet, 1)
	if n, err := p.server.Receive(pkts); n != 1 || err != nil {
		t.Fatalf("%d frames at the server, %v", n, err)
	}
	h, err := wire.ParseHeader(pkts[0].Payload)
	if err != nil {
		t.Fatal(err)
	}
	payload := pkts[0].Payload[:wire.RowsLen(len(o.keys), testDim)]
	rows := wire.PutRows(payload, wire.TypeRows, len(o.keys), testDim)
	for i := range o.keys {
		rows.SetRow(i, slices.Repeat([]float32{1}, testDim))
	}
	h.Type, h.Flags = wire.TypeRows, 0
	h.Put(payload)
	pkts[0].Reply = len(payload)
	if err := p.server.Reply(pkts); err != nil {
		t.Fatal(err)
	}
	if _, err := p.turn(); err != nil || o.outstanding != 0 {
		t.Fatalf("%d frames are on their way after the answer, %v", o.outstanding, err)
	}
	for _, v := range o.values {
		if v != 0 {
			t.Fatalf("the answer is written into a slice that is the caller's again: %v", o.values)
		}
	}
}
