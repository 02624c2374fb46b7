// SPDX-License-Identifier: Apache-2.0

package ring

import (
	"bytes"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/libra-ina/libra/codec"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/wire"
)

// forge returns a payload of worker 0 for worker 1: of number 1 and step 1, unless change says
// otherwise.
func forge(change func(h *wire.Header, b *wire.Block), body []byte) []byte {
	h := wire.Header{Type: wire.TypeBlock, Job: ringJob, Sender: 0, Epoch: ringEpoch, Seq: wire.FirstSeq}
	b := wire.Block{Operation: 1, First: 0, Count: 2, Step: 1}
	if body == nil {
		body = make([]byte, 8)
	}
	change(&h, &b)
	payload := make([]byte, wire.BlockHead, wire.DefaultPayload)
	h.Put(payload)
	b.Put(payload)
	return append(payload, body...)
}

// Frames that a predecessor does not send are refused, in the order of docs/wire.md, and change
// nothing.
func TestForgedFrames(t *testing.T) {
	type edit = func(h *wire.Header, b *wire.Block)
	coded := codec.Config{Bound: 10}
	for name, c := range map[string]struct {
		change edit
		body   []byte
		codec  codec.Config
		from   int
		want   wire.Refusal
	}{
		"another type":               {change: func(h *wire.Header, _ *wire.Block) { h.Type, h.Job = wire.TypeCold, 0 }, want: wire.Refusal{Code: wire.CodeType}},
		"another job":                {change: func(h *wire.Header, _ *wire.Block) { h.Job, h.Sender = 0, 7 }, want: wire.Refusal{Code: wire.CodeUnknownJob}},
		"another sender":             {change: func(h *wire.Header, _ *wire.Block) { h.Sender, h.Epoch = 3, 0 }, want: wire.Refusal{Code: wire.CodeUnknownSender}},
		"a stranger":                 {from: 3, change: func(*wire.Header, *wire.Block) {}, want: wire.Refusal{Code: wire.CodeUnknownSender}},
		"the successor":              {from: 2, change: func(h *wire.Header, _ *wire.Block) { h.Sender = 2 }, want: wire.Refusal{Code: wire.CodeUnknownSender}},
		"another epoch":              {change: func(h *wire.Header, _ *wire.Block) { h.Epoch, h.Seq = 8, 1000 }, want: wire.Refusal{Code: wire.CodeWrongEpoch, Value: ringEpoch}},
		"beyond the window":          {change: func(h *wire.Header, b *wire.Block) { h.Seq, b.Bound = wire.DefaultWindow+1, 3 }, want: wire.Refusal{Code: wire.CodeWindow, Value: wire.DefaultWindow}},
		"fewer values":               {change: func(_ *wire.Header, b *wire.Block) { b.Count = 3 }, want: length},
		"more values":                {change: func(*wire.Header, *wire.Block) {}, body: make([]byte, 9), want: length},
		"a bound that is none":       {change: func(_ *wire.Header, b *wire.Block) { b.Bound = 15 }, want: length},
		"a scale that is none":       {change: func(_ *wire.Header, b *wire.Block) { b.Bound, b.Scale = 3, 127 }, want: length},
		"codes for floats":           {change: func(_ *wire.Header, b *wire.Block) { b.Bound = 3 }, want: wire.Refusal{Code: wire.CodeCoding}},
		"floats for codes":           {codec: coded, change: func(*wire.Header, *wire.Block) {}, want: wire.Refusal{Code: wire.CodeCoding}},
		"another scale":              {codec: coded, change: func(_ *wire.Header, b *wire.Block) { b.Bound, b.Scale = 10, 1 }, want: wire.Refusal{Code: wire.CodeCoding}},
		"a former operation":         {change: func(_ *wire.Header, b *wire.Block) { b.Operation = 0 }, want: wire.Refusal{Code: wire.CodeRound, Value: 1}},
		"a later operation":          {change: func(_ *wire.Header, b *wire.Block) { b.Operation = 2 }, want: wire.Refusal{Code: wire.CodeRound, Value: 1}},
		"step 0":                     {change: func(_ *wire.Header, b *wire.Block) { b.Step = 0 }, want: length},
		"step 7 of 6":                {change: func(_ *wire.Header, b *wire.Block) { b.Step = 7 }, want: length},
		"a block of another step":    {change: func(_ *wire.Header, b *wire.Block) { b.First = 64 }, want: length},
		"values beyond the block":    {change: func(_ *wire.Header, b *wire.Block) { b.First = 63 }, want: length},
		"values far beyond":          {change: func(_ *wire.Header, b *wire.Block) { b.First = math.MaxUint32 }, want: length},
		"malformed codes":            {codec: coded, change: func(_ *wire.Header, b *wire.Block) { b.Bound = 10 }, body: []byte{0x80, 0, 0}, want: length},
		"malformed codes to replace": {codec: coded, change: func(_ *wire.Header, b *wire.Block) { b.Bound, b.Step = 10, 5 }, body: []byte{0x80, 0, 0}, want: length},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				n := newNetwork(4)
				cfg := n.config(1, 200)
				cfg.Codec = c.codec
				r := open(t, cfg)
				values := make([]float32, 200)
				r.begin(values)
				p := link.Packet{Packet: wire.Packet{Src: n.hosts[c.from].local, Payload: forge(c.change, c.body)}}
				original := bytes.Clone(p.Payload)
				for range 2 { // a copy gets the same answer
					p.Payload, p.Reply = append(p.Payload[:0], original...), 0
					r.take(&p, r.now())
					if p.Reply == 0 {
						t.Fatal("no answer")
					}
					if why, err := wire.ParseRefusal(p.Payload[:p.Reply]); err != nil || why != c.want {
						t.Fatalf("%v, %v, want %v", why, err, c.want)
					}
				}
				for i, v := range values {
					if v != 0 {
						t.Errorf("value %d is %v", i, v)
					}
				}
				if r.stats.Refused != 2 || r.stats.Applied != 0 {
					t.Errorf("%+v", r.stats)
				}
			})
		})
	}
}

// length is the refusal of a body that does not fit, or not this operation.
var length = wire.Refusal{Code: wire.CodeLength, Value: wire.DefaultPayload}

// More values than a block has are refused, although no single frame has too many.
func TestTooManyValues(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNetwork(4)
		r := open(t, n.config(1, 200))
		r.begin(make([]float32, 200))
		for seq := range uint32(2) {
			payload := forge(func(h *wire.Header, b *wire.Block) { h.Seq, b.Count = seq+1, 40 }, make([]byte, 160))
			p := link.Packet{Packet: wire.Packet{Src: n.hosts[0].local, Payload: payload}}
			r.take(&p, r.now())
			why, err := wire.ParseRefusal(p.Payload[:p.Reply])
			if refused := err == nil && why == length; refused != (seq == 1) {
				t.Errorf("frame %d: %v, %v", seq, why, err)
			}
		}
	})
}

// Answers that answer nothing change nothing, and a refusal of a frame that is on its way ends the
// Ring.
func TestForgedAnswers(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNetwork(4)
		r := open(t, n.config(1, 200))
		r.begin(make([]float32, 200))
		r.next.op = 1
		if err := r.send(r.now()); err != nil || r.window.Outstanding() != 1 {
			t.Fatal(err, r.window.Outstanding())
		}
		sent := r.header()
		sent.Seq = 1
		give := func(from int, payload []byte) {
			t.Helper()
			p := link.Packet{Packet: wire.Packet{Src: n.hosts[from].local, Payload: payload}}
			r.take(&p, r.now())
			if p.Reply != 0 {
				t.Error("an answer is answered")
			}
			if r.window.Outstanding() != 1 || r.refused != nil {
				t.Errorf("% x from %d is taken", payload, from)
			}
		}
		room := func() []byte { return make([]byte, wire.DefaultPayload) }
		other := sent
		other.Epoch++
		theirs := sent
		theirs.Sender = 2
		for _, from := range []int{0, 3} {
			give(from, wire.PutAck(room(), sent))
		}
		give(2, wire.PutAck(room(), other))
		give(2, wire.PutAck(room(), theirs))
		give(2, wire.PutAck(room(), sent)[:5])
		give(2, append(wire.PutAck(room(), sent), 1))
		give(2, wire.PutError(room(), sent, length)[:15])
		give(0, wire.PutError(room(), sent, length))
		sums := sent
		sums.Type = wire.TypeSums
		payload := room()[:wire.HeaderLen]
		sums.Put(payload)
		give(2, payload)
		if r.prev.refusal != length || r.next.refusal.Code != 0 {
			t.Errorf("%+v, %+v", r.prev, r.next)
		}
		if s := r.Stats(); s.Stray != 5 || s.Malformed != 3 {
			t.Errorf("%+v", s)
		}
		p := link.Packet{Packet: wire.Packet{Src: n.hosts[2].local, Payload: wire.PutError(room(), sent, length)}}
		r.take(&p, r.now())
		var refused *RefusedError
		_, err := r.receive()
		if err == nil {
			n.hosts[1].push(n.hosts[3].local, room()[:3])
			_, err = r.receive()
		}
		if !errors.As(err, &refused) || refused.Neighbour.Place != 2 || !errors.Is(err, length) ||
			!strings.Contains(err.Error(), "worker 2 (10.0.0.3:19522) refuses a frame of worker 1: ") {
			t.Error(err)
		}
	})
}
