// SPDX-License-Identifier: Apache-2.0

package link

import (
	"slices"

	"github.com/libra-ina/libra/wire"
)

// udpTap gives the payloads of a UDP socket to listeners, as frames.
type udpTap struct {
	*Tap
	frame []byte // the frame that is being built

	// The headers of the last frame, which the next one can often reuse.
	src, dst wire.Endpoint
	envelope *wire.Envelope
}

func newUDPTap() udpTap {
	return udpTap{Tap: newTap(), frame: make([]byte, wire.MaxEnvelopeLen+udpRoom)}
}

// showPayload adds a frame around a payload to a batch.
func (t *udpTap) showPayload(b *tapBatch, d Direction, src, dst wire.Endpoint, payload []byte) {
	if t.envelope == nil || src != t.src || dst != t.dst {
		e, err := wire.NewEnvelope(src, dst)
		if err != nil {
			return // a socket has no peers of another address family
		}
		t.src, t.dst, t.envelope = src, dst, e
	}
	frame := t.frame[:t.envelope.Len()+len(payload)]
	copy(t.envelope.Payload(frame, len(payload)), payload)
	t.envelope.Seal(frame)
	b.addFrame(d, frame)
}

// showSent shows the frames of a batch that were sent.
func (l *udpLink) showSent(b *tapBatch, frames []Frame, s *udpSent) {
	for i, f := range frames[:s.taken] {
		if !slices.Contains(s.refused, i) {
			l.tap.showPayload(b, Outbound, l.local, f.To.To(), l.payloads[f.Buf][:f.Len])
		}
	}
	b.endBatch()
}

func (l *udpLink) showReplies(b *tapBatch, pkts []Packet, s *udpSent) {
	i := 0 // number of the answer
	for _, p := range pkts {
		if p.Reply == 0 {
			continue
		}
		if i == s.taken {
			break
		}
		if !slices.Contains(s.refused, i) {
			l.tap.showPayload(b, Outbound, l.local, p.Src, p.Payload[:p.Reply])
		}
		i++
	}
	b.endBatch()
}

func (l *udpLink) showReceived(pkts []Packet) {
	if len(pkts) == 0 {
		return
	}
	b, listening := l.tap.beginBatch()
	if !listening {
		return
	}
	for _, p := range pkts {
		l.tap.showPayload(&b, Inbound, p.Src, l.local, p.Payload)
	}
	b.endBatch()
}

func (l *udpLink) tappedLink() *Tap { return l.tap.Tap }
