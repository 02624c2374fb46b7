// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"errors"
	"testing"
	"time"

	"github.com/libra-ina/libra/wire"
)

// TestOutcomeOfWhatIsSentAgain refuses the rows of a COLD_AT frame that are sent again by key: the
// frame counts as they do, and as refused for sure only if no copy of them can have been applied.
func TestOutcomeOfWhatIsSentAgain(t *testing.T) {
	for code, want := range map[wire.Code]PushError{
		wire.CodeUnknownSender: {Unknown: 1}, // of a receiver that does not look numbers up
		wire.CodeRowsFull:      {Refused: 1},
		0:                      {Acked: 1},
	} {
		p := newPausable(t, time.Hour)
		l := p.link.(*memLink)
		batch, err := p.Prepare([]uint64{5})
		if err != nil {
			t.Fatal(err)
		}
		push := func() *operation {
			o := &operation{keys: batch.keys, prepared: batch.places, values: make([]float32, testDim),
				ticket: &Ticket{done: make(chan struct{})}, released: make(chan struct{})}
			p.acceptOperation(o)
			for !o.sealed {
				if _, err := p.turn(); err != nil {
					t.Fatal(err)
				}
			}
			return o
		}
		answer := func(cold wire.Code) {
			for headers := arrived(t, p.server); len(headers) > 0; headers = arrived(t, p.server) {
				for _, h := range headers {
					refuse := func(c wire.Code) { p.answerWith(wire.PutError(make([]byte, wire.ErrorLen), h, wire.Refusal{Code: c})) }
					switch {
					case h.Type == wire.TypeFind:
						p.answerWith(found(h, 1, 1))
					case h.Type == wire.TypeColdAt:
						refuse(wire.CodeNumbering)
					case cold != 0:
						refuse(cold)
					default:
						p.answerWith(wire.PutAck(make([]byte, wire.HeaderLen), h))
					}
				}
			}
		}
		push()
		answer(0) // and the batch has row numbers
		o := push()
		answer(code)
		select {
		case <-o.ticket.done:
		default:
			t.Fatalf("code %d: the push has not ended", code)
		}
		got := &PushError{Acked: o.acked}
		if code != 0 && !errors.As(o.ticket.err, &got) || code == 0 && o.ticket.err != nil {
			t.Errorf("code %d: %v", code, o.ticket.err)
		}
		if got.Acked != want.Acked || got.Refused != want.Refused || got.Unknown != want.Unknown || got.Unacked != 0 {
			t.Errorf("code %d: %d frames acknowledged, %d refused, %d unknown, %d unanswered", code, got.Acked, got.Refused, got.Unknown, got.Unacked)
		}
		if w := p.Worker; w.again != 0 || len(l.free) != len(l.bufs) {
			t.Errorf("code %d: %d frames are still to be sent again, %d of %d buffers are free", code, w.again, len(l.free), len(l.bufs))
		}
	}
}

// TestHotFrameThatGoesToTheServer refuses a HOT frame because a sum would be out of range, in a job
// whose server holds what the aggregator does not: the push succeeds, and both frames' buffers are
// free.
func TestHotFrameThatGoesToTheServer(t *testing.T) {
	network, hot := newMemNet(), testHotSet(t)
	aggregator, server := network.open("10.0.0.1:19522"), network.open("10.0.0.2:19522")
	l := network.open("10.0.0.3:19522")
	w, err := makeWorker(t.Context(), WorkerConfig{
		Link: l, Job: testJob, Sender: 1, AggregatorEpoch: testEpoch, ServerEpoch: testServerEpoch,
		HotSet: hot, Stripes: wire.DefaultStripes, NoWeights: true, Aggregator: aggregator.local, Server: server.local,
	})
	if err != nil {
		t.Fatal(err)
	}
	o := &operation{keys: []uint64{hot.Key(1)}, values: make([]float32, testDim),
		ticket: &Ticket{done: make(chan struct{})}, released: make(chan struct{})}
	for i := range o.values {
		o.values[i] = float32(i + 1)
	}
	w.acceptOperation(o)
	// next makes the worker send, and returns the only frame that a peer gets.
	next := func(peer *memLink) wire.Header {
		t.Helper()
		if _, err := w.turn(); err != nil {
			t.Fatal(err)
		}
		headers := arrived(t, peer)
		if len(headers) != 1 {
			t.Fatalf("%d frames have arrived at %v, want one", len(headers), peer.local)
		}
		return headers[0]
	}
	h := next(aggregator)
	aggregator.deliver(wire.PutError(make([]byte, wire.ErrorLen), h, wire.Refusal{Code: wire.CodeOverflow}), l.local)
	h = next(server)
	server.deliver(wire.PutAck(make([]byte, wire.HeaderLen), h), l.local)
	if _, err := w.turn(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-o.ticket.done:
	default:
		t.Error("the push has not ended")
	}
	if o.ticket.err != nil || o.acked != 1 || w.again != 0 {
		t.Errorf("%v, with %d frames acknowledged and %d to be sent again", o.ticket.err, o.acked, w.again)
	}
	if len(l.free) != len(l.bufs) {
		t.Errorf("%d of %d buffers are free", len(l.free), len(l.bufs))
	}
}

// TestFirstRefusalCounts refuses both frames of a push: its error is the first refusal, whatever
// the later ones say.
func TestFirstRefusalCounts(t *testing.T) {
	p := newPausable(t, time.Hour)
	o := p.push(2)
	if _, err := p.turn(); err != nil {
		t.Fatal(err)
	}
	codes := []wire.Code{wire.CodeRowsFull, wire.CodeOverflow}
	headers := arrived(t, p.server)
	if len(headers) != len(codes) {
		t.Fatalf("%d frames have arrived, want %d", len(headers), len(codes))
	}
	for i, h := range headers {
		p.answerWith(wire.PutError(make([]byte, wire.ErrorLen), h, wire.Refusal{Code: codes[i]}))
	}
	<-o.ticket.done
	var refusal wire.Refusal
	if !errors.As(o.ticket.err, &refusal) || refusal.Code != codes[0] {
		t.Errorf("the push ends with %v, want the first refusal, %v", o.ticket.err, codes[0])
	}
}
