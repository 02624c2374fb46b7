package transport

import (
	"net/netip"
	"testing"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/wire"
)

// TestPeers checks whose addresses an aggregator learns: those of accepted
// frames, of one epoch, and no more than can take part in rounds.
func TestPeers(t *testing.T) {
	var p peers
	at := func(n int) wire.Endpoint {
		return wire.Endpoint{IP: netip.AddrFrom4([4]byte{10, 0, 0, byte(n)}), Port: uint16(1000 + n)}
	}
	hear := func(from wire.Endpoint, h wire.Header, reply func([]byte, wire.Header) []byte) {
		request := make([]byte, wire.HeaderLen)
		h.Type = wire.TypeHot
		h.Put(request)
		p.learn(&Packet{Packet: wire.Packet{Src: from, Payload: request}}, reply(make([]byte, 100), h))
	}
	refuse := func(b []byte, h wire.Header) []byte {
		return wire.PutError(b, h, wire.Refusal{Code: wire.CodeUnknownSender})
	}
	toAll := func(b []byte, h wire.Header) []byte { return wire.ToAll(wire.PutAck(b, h), 9) }

	hear(at(1), wire.Header{Job: 3, Sender: 1, Epoch: 1}, refuse)
	hear(at(1), wire.Header{Job: 3, Sender: 1, Epoch: 1}, wire.PutAck)
	hear(at(9), wire.Header{Job: 3, Sender: 1, Epoch: 1}, refuse) // somebody else
	hear(at(2), wire.Header{Job: 3, Sender: 2, Epoch: 1}, toAll)
	hear(at(3), wire.Header{Job: 3, Sender: 2, Epoch: 1}, wire.PutAck) // has moved
	hear(at(4), wire.Header{Job: 3, Sender: 4, Epoch: 2}, refuse)
	hear(at(5), wire.Header{Job: 4, Sender: 5, Epoch: 1}, wire.PutAck)
	if s := p[3].senders; len(s) != 2 || s[0].sender != 1 || s[0].at != at(1) || s[1].sender != 2 || s[1].at != at(3) {
		t.Errorf("%+v", s)
	}
	hear(at(6), wire.Header{Job: 3, Sender: 6, Epoch: 2}, wire.PutAck)
	if s := p[3].senders; len(s) != 1 || s[0].sender != 6 {
		t.Errorf("after a new epoch: %+v", s)
	}
	for n := range 3 * aggregator.MaxWorkers {
		hear(at(n), wire.Header{Job: 5, Sender: uint16(n)}, wire.PutAck)
	}
	if n := len(p[5].senders); n != aggregator.MaxWorkers {
		t.Errorf("%d senders are remembered", n)
	}
}
