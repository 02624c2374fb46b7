// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/transport/endpoint"
	"github.com/libra-ina/libra/wire"
)

// TestForgedAnswers sends a worker everything but the answer that it waits for.
func TestForgedAnswers(t *testing.T) {
	ctx := deadline(t)
	w, server := mute(t, retransmit.Config{Silence: time.Hour})
	network := w.link.(*memLink).net
	stranger := network.open("10.0.0.66:19522")
	neighbour := network.open("10.0.0.2:4000") // another process on the server's host
	aggregator := network.hosts[netip.MustParseAddrPort("10.0.0.1:19522")]
	at := w.link.Local()
	ticket, err := w.Push(ctx, []uint64{1}, make([]float32, testDim))
	if err != nil {
		t.Fatal(err)
	}
	var s WorkerStats
	for s.Link.Sent == 0 { // an answer to a frame that was not sent is a stray one
		if s, err = w.Stats(ctx); err != nil {
			t.Fatal(err)
		}
	}
	good := wire.Header{Type: wire.TypeAck, Job: testJob, Sender: 1, Epoch: testServerEpoch, Seq: wire.FirstSeq}
	with := func(change func(*wire.Header)) []byte {
		h, b := good, make([]byte, wire.HeaderLen)
		change(&h)
		h.Put(b)
		return b
	}
	ack := with(func(*wire.Header) {})
	otherVersion := with(func(*wire.Header) {})
	otherVersion[0] ^= 0x70
	for _, f := range []struct {
		from    *memLink
		payload []byte
	}{
		{stranger, ack},
		{neighbour, ack},
		{aggregator, ack}, // which has got no frame
		{aggregator, with(func(h *wire.Header) { h.Epoch = testEpoch })},
		{server, with(func(h *wire.Header) { h.Epoch = testEpoch })}, // of the other flow
		{server, with(func(h *wire.Header) { h.Sender, h.Flags = wire.AllSenders, wire.FlagAll })},
		{server, with(func(h *wire.Header) { h.Seq = 0 })}, // before the first
		{server, with(func(h *wire.Header) { h.Job++ })},
		{server, with(func(h *wire.Header) { h.Sender++ })},
		{server, with(func(h *wire.Header) { h.Epoch++ })},
		{server, with(func(h *wire.Header) { h.Seq = 2 })}, // has not left yet
		{server, with(func(h *wire.Header) { h.Seq = 1 << 31 })},
		{server, with(func(h *wire.Header) { h.Type = wire.TypeHot })},
		// Malformed from here on.
		{server, ack[:11]},
		{server, otherVersion},
		{server, append(with(func(*wire.Header) {}), 0)},
		{server, with(func(h *wire.Header) { h.Flags = wire.FlagSum })},
		{server, with(func(h *wire.Header) { h.Type = wire.TypeError })},
		{server, with(func(h *wire.Header) { h.Type = wire.TypeRows })},
		{server, with(func(h *wire.Header) { h.Type = wire.TypeFound })},
		{server, with(func(h *wire.Header) { h.Type = wire.TypeSums })},
	} {
		f.from.deliver(f.payload, at)
	}
	for s.Link.Received < 21 {
		if s, err = w.Stats(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if s.Stray != 12 || s.Malformed != 8 {
		t.Errorf("%d stray, %d malformed answers counted; want 12 and 8", s.Stray, s.Malformed)
	}
	select {
	case <-ticket.Done():
		t.Fatal("a forged answer ended the push")
	default:
	}
	server.deliver(ack, at)
	if err := ticket.Wait(ctx); err != nil {
		t.Error(err)
	}
}

// TestUnfittingAnswers lets a broken peer answer a frame wrongly.
func TestUnfittingAnswers(t *testing.T) {
	ctx := deadline(t)
	header := wire.Header{Job: testJob, Sender: 1, Epoch: testServerEpoch, Seq: wire.FirstSeq}
	rows := func(count, dim int) []byte {
		h, b := header, make([]byte, wire.RowsLen(count, dim))
		h.Type = wire.TypeRows
		h.Put(b)
		wire.PutRows(b, wire.TypeRows, count, dim)
		return b
	}
	sums := func(body []byte) []byte {
		h := header
		h.Type = wire.TypeSums
		b := append(make([]byte, wire.HeaderLen), body...)
		h.Put(b)
		return b
	}
	for _, c := range []struct {
		name   string
		pull   bool
		answer []byte
		want   string
	}{
		{"ACK to a pull", true, wire.PutAck(make([]byte, wire.HeaderLen), header), "ACK to a pull"},
		{"too few rows", true, rows(1, testDim), fmt.Sprintf("1 rows of dimension %d to a pull of 2 of dimension %d", testDim, testDim)},
		{"rows of another dimension", true, rows(2, testDim+1), fmt.Sprintf("2 rows of dimension %d to a pull of 2 of dimension %d", testDim+1, testDim)},
		{"rows to a push", false, rows(2, testDim), "rows, which no pull has asked for"},
		{"row numbers to a push", false, found(header, 1, 1, 2), "row numbers that were not asked for"},
		{"row numbers to a pull", true, found(header, 1, 1, 2), "row numbers that were not asked for"},
		{"sums of a step to a push", false, sums(stepSumsBody(1, wire.SumsHead{Rows: 1})), "sums of a step, which were not asked for"},
		{"sums of a step to a pull", true, sums(stepSumsBody(1, wire.SumsHead{Rows: 1})), "sums of a step, which were not asked for"},
	} {
		w, server := mute(t, retransmit.Config{Silence: time.Hour})
		result := make(chan error, 1)
		values := make([]float32, 2*testDim)
		go func() {
			if c.pull {
				result <- w.Pull(ctx, []uint64{1, 2}, values)
				return
			}
			ticket, err := w.Push(ctx, []uint64{1, 2}, values)
			if err == nil {
				err = ticket.Wait(ctx)
			}
			result <- err
		}()
		for sent := uint64(0); sent == 0; {
			if s, err := w.Stats(ctx); err != nil {
				t.Fatal(err)
			} else {
				sent = s.Link.Sent
			}
		}
		server.deliver(c.answer, w.link.Local())
		if err := <-result; !errors.Is(err, ErrAnswer) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want ErrAnswer with %q", c.name, err, c.want)
		}
	}
}

// FuzzAnswers lets anything arrive at a worker and at a server: neither may panic, and neither may
// change state that a frame does not address.
func FuzzAnswers(f *testing.F) {
	header := wire.Header{Job: testJob, Sender: 1, Epoch: testServerEpoch, Seq: wire.FirstSeq}
	f.Add(wire.PutAck(make([]byte, 64), header))
	f.Add(wire.PutSums(make([]byte, 2000), header, 2))
	for code := range wire.CodeCoding + 2 { // the first and the last are no codes
		f.Add(wire.PutError(make([]byte, 64), header, wire.Refusal{Code: code, Index: 21}))
	}
	f.Add(cold(header, testDim, 1))
	f.Add(pullOf(header, 3))
	f.Add(findOf(header, 1, 2, 3))
	f.Add(found(header, 9, 1, 2, 3))
	f.Add(coldAt(header, 9, 1, 2, 3))
	f.Add(codedRow(header, wire.TypeCold, []float32{0.5, 0, 7}))
	f.Add(codedRow(header, wire.TypeColdAt, []float32{0.5, 0, 7}))
	f.Fuzz(func(t *testing.T, payload []byte) {
		if len(payload) > wire.DefaultPayload {
			return
		}
		w := idleWorker(t)
		keys, grads := batch(rand.New(rand.NewPCG(1, 1)), 50)
		o := &operation{keys: keys, values: grads, sums: make([]float32, len(grads)), released: make(chan struct{}), ticket: &Ticket{done: make(chan struct{})}}
		w.acceptOperation(o)
		w.packPushes()
		if _, err := w.transmit(); err != nil {
			t.Fatal(err)
		}
		for _, from := range w.flows {
			p := link.Packet{Packet: wire.Packet{Src: from.path.To(), Payload: payload}}
			w.receiveAnswer(&p)
			w.receiveAnswer(&p)
		}
		if o.outstanding < 0 || o.acked+o.refused+o.unknown+o.outstanding != o.sent.HotFrames+o.sent.ColdFrames {
			t.Fatalf("%d + %d + %d + %d frames of %+v", o.acked, o.refused, o.unknown, o.outstanding, o.sent)
		}
		s := &Server{cfg: ServerConfig{Job: testJob, Dim: testDim, Handler: discard{}},
			senders: map[uint16]*admitted{1: {from: w.link.Local().AddrPort(), epoch: testServerEpoch}}, keys: make([]uint64, 121), rows: make([]float32, 121*testDim), numbers: make([]uint32, 121), decoder: newDecoder(testCodec)}
		s.initLoop(endpoint.Config{Link: w.link})
		request := link.Packet{Packet: wire.Packet{Src: w.link.Local(), Payload: append(make([]byte, 0, wire.DefaultPayload), payload...)}}
		if err := s.handleBatch([]link.Packet{request}); err != nil {
			t.Fatal(err)
		}
	})
}

// discard is a handler that keeps nothing.
type discard struct{}

func (discard) Accumulate(wire.Rows) error { return nil }

func (discard) AccumulateAt(wire.Rows) error { return nil }

func (discard) Find([]uint64, []uint32) uint32 { return 0 }

func (discard) Read([]uint64, []float32) {}

// idleWorker is a worker whose goroutine does not run, so that a test can act as it.
func idleWorker(t testing.TB) *Worker {
	t.Helper()
	network := newMemNet()
	w, err := makeWorker(t.Context(), WorkerConfig{
		Link: network.open("10.0.0.3:19522"), Job: testJob, Sender: 1, AggregatorEpoch: testEpoch, ServerEpoch: testServerEpoch, HotSet: testHotSet(t), Stripes: wire.DefaultStripes,
		Aggregator: wire.Endpoint{IP: network.addr("10.0.0.1"), Port: 19522}, Server: wire.Endpoint{IP: network.addr("10.0.0.2"), Port: 19522},
	})
	if err != nil {
		t.Fatal(err)
	}
	return w
}
