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
