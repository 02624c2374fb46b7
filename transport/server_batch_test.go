// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/transport/endpoint"
	"github.com/libra-ina/libra/wire"
)

// packet is a received payload with room for an answer.
func packet(from wire.Endpoint, payload []byte) link.Packet {
	room := make([]byte, len(payload), 2048)
	copy(room, payload)
	return link.Packet{Packet: wire.Packet{Src: from, Payload: room}}
}

// A frame without an answer does not stop the rest of its batch, and each frame is counted.
func TestServerServesWholeBatches(t *testing.T) {
	network := newMemNet()
	s, _ := newTestServer(t, network)
	from := network.open("10.0.0.2:1000").local
	if err := s.Admit(t.Context(), 5, from.AddrPort(), testServerEpoch); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil { // the test is then alone with the server's state
		t.Fatal(err)
	}
	h := func(seq uint32) wire.Header {
		return wire.Header{Job: testJob, Sender: 5, Epoch: testServerEpoch, Seq: seq}
	}
	other := h(9)
	other.Job++
	ack := make([]byte, wire.HeaderLen)
	wire.Header{Type: wire.TypeAck}.Put(ack)
	var pkts []link.Packet
	for _, payload := range [][]byte{
		{1, 2}, cold(h(1), testDim, 1), ack, cold(h(1), testDim, 1), {}, pullOf(h(2), 3), ack, cold(other, testDim, 1), cold(h(3), testDim, 1), pullOf(h(4), 1),
	} {
		pkts = append(pkts, packet(from, payload))
	}
	if err := s.handleBatch(pkts); err != nil {
		t.Fatal(err)
	}
	var got []int
	for _, p := range pkts {
		got = append(got, p.Reply)
	}
	a := wire.HeaderLen
	if diff := cmp.Diff([]int{0, a, 0, a, 0, wire.RowsLen(3, testDim), 0, wire.ErrorLen, a, wire.RowsLen(1, testDim)}, got); diff != "" {
		t.Error(diff)
	}
	want := ServerStats{Applied: 2, Rows: 2, Duplicates: 1, Pulls: 2, KeysPulled: 4, Malformed: 2, Unexpected: 2}
	want.Refusals[wire.CodeUnknownJob] = 1
	want.Link = s.stats.Link
	if diff := cmp.Diff(want, s.stats); diff != "" {
		t.Error(diff)
	}
}

// A server that has ended still has its last counters, including those of its link.
func TestCountersOutliveTheEnd(t *testing.T) {
	network := newMemNet()
	s, _ := newTestServer(t, network)
	c := client{t, network.open("10.0.0.2:1000"), s.link.Local()}
	if err := s.Admit(t.Context(), 5, c.at(), testServerEpoch); err != nil {
		t.Fatal(err)
	}
	if answer := c.ask(cold(wire.Header{Job: testJob, Sender: 5, Epoch: testServerEpoch, Seq: 1}, testDim, 1)); answer == nil {
		t.Fatal("no answer")
	}
	before, err := s.Stats(t.Context())
	if err != nil || before.Applied != 1 || before.Link == (link.Stats{}) {
		t.Fatalf("%+v, %v", before, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	after, err := s.Stats(t.Context())
	if diff := cmp.Diff(before, after); diff != "" || err != nil {
		t.Errorf("%v%s", err, diff)
	}

	model, err := aggregator.NewModel(aggregator.Config{})
	if err != nil {
		t.Fatal(err)
	}
	a, err := NewAggregatorServer(AggregatorConfig{Link: network.open("10.0.0.9:19522"), Model: model})
	if err != nil {
		t.Fatal(err)
	}
	to := client{t, c.link, a.link.Local()}
	// A frame that is not Libra's gets no answer, and does not prevent others' answers.
	to.send([]byte{1})
	to.ask(cold(wire.Header{Seq: 1}, testDim, 1))
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
}

// The aggregator's server answers each frame of a batch, whatever the previous one was.
func TestAggregatorServerServesWholeBatches(t *testing.T) {
	network := newMemNet()
	model, err := aggregator.NewModel(aggregator.Config{})
	if err != nil {
		t.Fatal(err)
	}
	a, err := NewAggregatorServer(AggregatorConfig{Link: network.open("10.0.0.9:19522"), Model: model})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	from := network.open("10.0.0.2:1000").local
	hot := make([]byte, wire.HotLen(1))
	wire.Header{Type: wire.TypeHot, Job: 77, Sender: 1, Seq: 5}.Put(hot)
	pkts := []link.Packet{packet(from, []byte{1}), packet(from, hot), packet(from, nil), packet(from, hot)}
	if err := a.handleBatch(pkts); err != nil {
		t.Fatal(err)
	}
	for i, p := range pkts {
		if answered := i%2 == 1; (p.Reply != 0) != answered {
			t.Errorf("packet %d gets an answer of %d bytes", i, p.Reply)
		} else if answered && (p.Reply != wire.ErrorLen || !bytes.Equal(p.Payload[:1], []byte{wire.Version<<4 | byte(wire.TypeError)})) {
			t.Errorf("packet %d gets %x", i, p.Payload[:p.Reply])
		}
	}
}

// The last contribution to a round is answered to all workers: the first gets the sums without
// asking again.
func TestResultsGoToAllWorkers(t *testing.T) {
	workers, pkts, err := completeRound(t, func(l *memLink) link.Link { return l })
	if err != nil {
		t.Fatal(err)
	}
	if pkts[1].Reply != 0 {
		t.Errorf("the last worker gets an answer of %d bytes of its own", pkts[1].Reply)
	}
	for i, l := range workers {
		got := make([]link.Packet, 4)
		n, err := l.Receive(got)
		if n != 1 || err != nil {
			t.Fatalf("worker %d gets %d frames, %v", i, n, err)
		}
		if h, err := wire.ParseHeader(got[0].Payload); err != nil || h.Type != wire.TypeAck || h.Flags&wire.FlagAll == 0 {
			t.Errorf("worker %d gets %+v, %v", i, h, err)
		}
	}
}

// unsending is a link that cannot send.
type unsending struct{ *memLink }

func (unsending) Send([]link.Frame) (int, error) { return 0, errLink }

// A link that cannot send the results ends the aggregator.
func TestResultsThatCannotBeSent(t *testing.T) {
	if _, _, err := completeRound(t, func(l *memLink) link.Link { return unsending{l} }); !errors.Is(err, errLink) {
		t.Errorf("error %v, want %v", err, errLink)
	}
}

// completeRound passes an aggregator the frames of two workers, which complete a group.
func completeRound(t *testing.T, on func(*memLink) link.Link) (workers []*memLink, pkts []link.Packet, err error) {
	t.Helper()
	model, err := aggregator.NewModel(aggregator.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := model.AddJob(aggregator.JobConfig{ID: testJob, Mode: aggregator.Sync, Workers: 2, Slots: 1, MaxStripes: 1}); err != nil {
		t.Fatal(err)
	}
	network := newMemNet()
	a := &AggregatorServer{model: model, reply: make([]byte, aggregator.MaxReplyPayload)}
	a.initLoop(endpoint.Config{Link: on(network.open("10.0.0.9:19522"))})
	for i, addr := range []string{"10.0.0.2:1000", "10.0.0.3:1000"} {
		l := network.open(addr)
		workers = append(workers, l)
		if err := model.AddSender(testJob, aggregator.SenderConfig{ID: uint16(i), IP: l.local.IP, Port: l.local.Port}); err != nil {
			t.Fatal(err)
		}
		hot := make([]byte, wire.HotLen(1))
		wire.Header{Type: wire.TypeHot, Job: testJob, Sender: uint16(i), Seq: 1}.Put(hot)
		s := wire.StripeAt(hot, 0)
		s.SetMask(1)
		s.SetBits(0, 0x3f800000)
		pkts = append(pkts, packet(l.local, hot))
	}
	return workers, pkts, a.handleBatch(pkts)
}
