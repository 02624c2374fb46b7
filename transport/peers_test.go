// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/transport/endpoint"
	"github.com/libra-ina/libra/wire"
)

// TestPeers checks which addresses an aggregator learns: those of accepted frames, of one epoch,
// and no more than can take part in rounds.
func TestPeers(t *testing.T) {
	var p peers
	at := func(n int) wire.Endpoint {
		return wire.Endpoint{IP: netip.AddrFrom4([4]byte{10, 0, 0, byte(n)}), Port: uint16(1000 + n)}
	}
	hear := func(from wire.Endpoint, h wire.Header, reply func([]byte, wire.Header) []byte) {
		request := make([]byte, wire.HeaderLen)
		h.Type = wire.TypeHot
		h.Put(request)
		p.learnSource(&link.Packet{Packet: wire.Packet{Src: from, Payload: request}}, reply(make([]byte, 100), h))
	}
	refuse := func(b []byte, h wire.Header) []byte {
		return wire.PutError(b, h, wire.Refusal{Code: wire.CodeUnknownSender})
	}
	toAll := func(b []byte, h wire.Header) []byte { return wire.ToAll(wire.PutAck(b, h), 9) }

	hear(at(1), wire.Header{Job: 3, Sender: 1, Epoch: 1}, refuse)
	hear(at(1), wire.Header{Job: 3, Sender: 1, Epoch: 1}, wire.PutAck)
	hear(at(9), wire.Header{Job: 3, Sender: 1, Epoch: 1}, refuse) // another host
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
	hear(at(6), wire.Header{Job: 3, Sender: 6, Epoch: 2}, wire.PutAck)
	hear(at(7), wire.Header{Job: 3, Sender: 6, Epoch: 2}, wire.PutAck) // the first one moves
	if s := p[3].senders; len(s) != 1 || s[0].at != at(7) {
		t.Errorf("after the first sender has moved: %+v", s)
	}
	for n := range 3 * aggregator.MaxWorkers {
		hear(at(n), wire.Header{Job: 5, Sender: uint16(n)}, wire.PutAck)
	}
	if n := len(p[5].senders); n != aggregator.MaxWorkers {
		t.Errorf("%d senders are remembered", n)
	}
}

// A sender whose frames need no answer gets results too; a stranger that sends quiet frames in its
// name does not.
func TestQuietSendersGetResults(t *testing.T) {
	model, err := aggregator.NewModel(aggregator.Config{})
	if err != nil {
		t.Fatal(err)
	}
	job := aggregator.JobConfig{ID: 3, Epoch: 7, Mode: aggregator.Sync, Workers: 3, Slots: 1, MaxStripes: 1}
	if err := model.AddJob(job); err != nil {
		t.Fatal(err)
	}
	net := newMemNet()
	at := net.open("10.0.0.254:19522")
	a, err := NewAggregatorServer(AggregatorConfig{Link: at, Model: model})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	var hosts []*memLink
	for i := range 3 {
		l := net.open(fmt.Sprintf("10.0.0.%d:19522", 1+i))
		s := aggregator.SenderConfig{ID: uint16(i), Epoch: job.Epoch, IP: l.local.IP, Port: l.local.Port}
		if err := model.AddSender(job.ID, s); err != nil {
			t.Fatal(err)
		}
		hosts = append(hosts, l)
	}
	stranger := net.open("10.0.0.9:19522")
	send := func(from *memLink, sender uint16, epoch uint16) {
		path, err := from.Path(t.Context(), at.local)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := from.Alloc()
		p := from.Payload(b)[:wire.HotLen(1)]
		wire.Header{Type: wire.TypeHot, Flags: wire.FlagQuiet, Job: job.ID, Sender: sender, Epoch: epoch, Seq: 1}.Put(p)
		s := wire.StripeAt(p, 0)
		s.Clear()
		s.SetMask(1)
		s.SetValue(0, float32(1+sender))
		if _, err := from.Send([]link.Frame{{Buf: b, Len: len(p), To: path}}); err != nil {
			t.Fatal(err)
		}
	}
	receive := func(at *memLink) wire.Header {
		var pkts [1]link.Packet
		for {
			n, err := at.Receive(pkts[:])
			if err != nil {
				t.Fatal(err)
			}
			if n > 0 {
				h, err := wire.ParseHeader(pkts[0].Payload)
				if err != nil {
					t.Fatal(err)
				}
				return h
			}
			if err := at.Wait(-1); err != nil {
				t.Fatal(err)
			}
		}
	}
	send(hosts[0], 0, 7)
	send(stranger, 1, 7)
	if h := receive(stranger); h.Type != wire.TypeError {
		t.Errorf("a stranger got %+v", h)
	}
	send(hosts[1], 1, 6)
	if h := receive(hosts[1]); h.Type != wire.TypeError {
		t.Errorf("a frame of another epoch got %+v", h)
	}
	send(hosts[1], 1, 7)
	send(hosts[2], 2, 7)
	for i, host := range hosts {
		if h := receive(host); h.Flags != wire.FlagSum|wire.FlagAll || h.Seq != 0 {
			t.Errorf("worker %d got %+v", i, h)
		}
	}
}

// lostLink is a link that knows no path to one host.
type lostLink struct {
	*memLink
	lost  netip.Addr
	paths int // asked for
}

func (l *lostLink) Path(ctx context.Context, to wire.Endpoint) (link.Path, error) {
	l.paths++
	if to.IP == l.lost {
		return nil, errors.New("no path")
	}
	return l.memLink.Path(ctx, to)
}

// TestSendToAll sends to all senders of a job except one to which no frame can be sent, returns its
// buffer, and looks for a path once for each. Without a buffer nothing is sent.
func TestSendToAll(t *testing.T) {
	network := newMemNet()
	out := &lostLink{memLink: network.open("10.0.0.1:1"), lost: netip.MustParseAddr("10.0.0.3")}
	var a AggregatorServer
	a.initLoop(endpoint.Config{Link: out})
	var hosts []*memLink
	for i, addr := range []string{"10.0.0.2:1", "10.0.0.3:1", "10.0.0.4:1"} {
		l := network.open(addr)
		hosts = append(hosts, l)
		a.peers[testJob].senders = append(a.peers[testJob].senders, peer{sender: uint16(i), at: l.local})
	}
	stranger := network.open("10.0.0.5:1")
	a.peers[testJob+1].senders = []peer{{at: stranger.local}}
	payload := wire.ToAll(wire.PutAck(make([]byte, wire.HeaderLen), wire.Header{Job: testJob, Epoch: 1}), 9)
	send := func(want ...int) {
		t.Helper()
		if err := a.sendToAll(payload); err != nil {
			t.Fatal(err)
		}
		var got []int
		for _, l := range append(slices.Clone(hosts), stranger) {
			pkts := make([]link.Packet, 8)
			n, err := l.Receive(pkts)
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range pkts[:n] {
				if !slices.Equal(p.Payload, payload) {
					t.Errorf("% x arrives, want % x", p.Payload, payload)
				}
			}
			got = append(got, n)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%v frames arrive, want %v", got, want)
		}
	}
	for range 2 {
		send(1, 0, 1, 0)
		if len(out.free) != linkBuffers {
			t.Errorf("%d of %d buffers are free", len(out.free), linkBuffers)
		}
	}
	if out.paths != 4 {
		t.Errorf("%d paths asked for, want one for each host that has one, and two for the other", out.paths)
	}
	out.free, out.bufs[0] = nil, nil
	send(0, 0, 0, 0)
}
