// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/wire"
)

// refusalOf returns the refusal of a payload, or zero.
func refusalOf(t *testing.T, answer []byte) wire.Refusal {
	t.Helper()
	h, err := wire.ParseHeader(answer)
	if err != nil {
		t.Fatal(err)
	}
	if h.Type != wire.TypeError {
		return wire.Refusal{}
	}
	r, err := wire.ParseRefusal(answer)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestForgedPulls sends PULLs from another process on the worker's host with the numbers of the
// worker's next pushes, which would make them duplicates.
func TestForgedPulls(t *testing.T) {
	ctx := deadline(t)
	var network *memNet
	o := clusterOptions{workers: 1}
	f := memFabric(t, o)
	open := f.link
	f.link = func(host int) link.Link {
		l := open(host)
		network = l.(*memLink).net
		return l
	}
	c := newCluster(t, f, o)
	forger := client{t, network.open("10.0.0.11:4000"), c.server.link.Local()} // the worker is 10.0.0.11:19522
	for seq := range uint32(10) {
		for _, epoch := range []uint16{testServerEpoch, testEpoch} {
			h := wire.Header{Job: testJob, Sender: 1, Epoch: epoch, Seq: wire.FirstSeq + seq}
			// Not even the current epoch is revealed.
			if r := refusalOf(t, forger.ask(pullOf(h, 1))); r != (wire.Refusal{Code: wire.CodeUnknownSender}) {
				t.Errorf("forged PULL %d of epoch %d: %v", h.Seq, epoch, r)
			}
		}
	}
	want := newLedger()
	for range 10 {
		keys, grads := []uint64{77}, []float32{1, 2, 3}
		ticket, err := c.workers[0].Push(ctx, keys, grads)
		if err != nil {
			t.Fatal(err)
		}
		if err := ticket.Wait(ctx); err != nil {
			t.Fatal(err)
		}
		want.addBatch(keys, grads)
	}
	if diff := cmp.Diff(want.sums, c.sums()); diff != "" {
		t.Errorf("sums after ten acknowledged pushes (-pushed +held):\n%s", diff)
	}
}

// TestNumbersBeyondTheWindow sends numbers that the sender cannot have reached. They must leave no
// trace in the filter, and so in the sender's later frames, nor in the window's position.
func TestNumbersBeyondTheWindow(t *testing.T) {
	network := newMemNet()
	s, l := newTestServer(t, network)
	c := client{t, network.open("10.0.0.2:1000"), s.link.Local()}
	if err := s.Admit(t.Context(), 5, c.at(), testServerEpoch); err != nil {
		t.Fatal(err)
	}
	at := func(seq uint32) wire.Header {
		return wire.Header{Job: testJob, Sender: 5, Epoch: testServerEpoch, Seq: seq}
	}
	const w = wire.DefaultWindow
	beyond := func(limit uint32) wire.Refusal { return wire.Refusal{Code: wire.CodeWindow, Value: limit} }
	for i, step := range []struct {
		payload []byte
		want    wire.Refusal
		applied uint64
	}{
		{payload: pullOf(at(w+1), 1), want: beyond(w)},
		{payload: cold(at(w+1), testDim, 1), want: beyond(w)},
		{payload: cold(at(1<<31-1), testDim, 1), want: beyond(w)},
		{payload: cold(at(w), testDim, 1), applied: 1}, // the last of the first window
		{payload: cold(at(1), testDim, 1), applied: 2}, // which overtook the first
		{payload: cold(at(2*w+1), testDim, 1), want: beyond(2 * w), applied: 2},
		{payload: pullOf(at(2*w), 1), applied: 2}, // PULLs move the window too
		{payload: cold(at(2*w), testDim, 1), applied: 2},
		{payload: cold(at(2*w+1), testDim, 1), applied: 3},
		// Refused frames are answered, so the sender continues after them; but the number of a
		// refused one can still be applied.
		{payload: pullOf(at(2*w+9), 125), want: wire.Refusal{Code: wire.CodeLength, Value: uint32(wire.PullLen(121))}, applied: 3},
		{payload: cold(at(2*w+8), testDim+1, 1), want: wire.Refusal{Code: wire.CodeDimension, Value: testDim}, applied: 3},
		{payload: cold(at(3*w+9), testDim, 1), applied: 4},
		{payload: cold(at(2*w+9), testDim, 1), applied: 5},
		{payload: cold(at(2*w+8), testDim, 1), applied: 6},
		{payload: cold(at(2*w+8), testDim, 1), applied: 6}, // a copy
		// Numbers before the newest are not beyond the window.
		{payload: cold(at(2), testDim, 1), applied: 7},
	} {
		if got := refusalOf(t, c.ask(step.payload)); got != step.want {
			t.Errorf("step %d: refused with %+v, want %+v", i, got, step.want)
		}
		st, err := s.Stats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if st.Applied != step.applied {
			t.Fatalf("step %d: %d frames applied, want %d", i, st.Applied, step.applied)
		}
		if st.Rows != st.Applied {
			t.Fatalf("step %d: %d rows in %d frames of one row", i, st.Rows, st.Applied)
		}
	}
	want := newLedger()
	for range 7 {
		want.addBatch([]uint64{42}, []float32{1, 1, 1})
	}
	if diff := cmp.Diff(want.sums, l.sums); diff != "" {
		t.Errorf("store (-want +got):\n%s", diff)
	}
}

// TestWindowWrapsAround moves a sender's window over the end of the numbers.
func TestWindowWrapsAround(t *testing.T) {
	a := admitted{last: 1<<32 - 5}
	for _, c := range []struct {
		seq  uint32
		ok   bool
		last uint32
	}{
		{wire.DefaultWindow - 4, false, 1<<32 - 5},
		{wire.DefaultWindow - 5, true, wire.DefaultWindow - 5},
		{1<<32 - 5, true, wire.DefaultWindow - 5},
		{wire.DefaultWindow - 5, true, wire.DefaultWindow - 5},
	} {
		if ok := a.reachesSeq(c.seq); ok != c.ok || a.last != c.last {
			t.Errorf("number %d: %v, newest %d; want %v, %d", c.seq, ok, a.last, c.ok, c.last)
		}
	}
}

// TestPullsAndStepsKeepTheFilterYoung lets a sender only pull, or only request the ends of steps,
// for more numbers than the comparison covers, and push again afterwards: the pushes are not
// duplicates. The numbers between those of one entry of the filter are skipped.
func TestPullsAndStepsKeepTheFilterYoung(t *testing.T) {
	for name, c := range map[string]struct {
		frame func(wire.Header) []byte
		want  wire.Type
	}{
		"pulls": {func(h wire.Header) []byte { return pullOf(h, 1) }, wire.TypeRows},
		"steps": {stepOf, wire.TypeError}, // none has ended
	} {
		t.Run(name, func(t *testing.T) { keepsTheFilterYoung(t, c.frame, c.want) })
	}
}

// stepOf is a STEP frame of step 0.
func stepOf(h wire.Header) []byte { return endOf(h.Sender, h.Seq, wire.StepEnd{Room: 1}) }

func keepsTheFilterYoung(t *testing.T, frame func(wire.Header) []byte, want wire.Type) {
	s := &Server{cfg: ServerConfig{Job: testJob, Dim: testDim, Handler: discard{}}, senders: map[uint16]*admitted{}}
	network := newMemNet()
	from := network.open("10.0.0.2:1000")
	s.link = network.open("10.0.0.1:19522")
	a := &admitted{from: from.local.AddrPort(), epoch: testServerEpoch}
	s.senders[5] = a
	s.keys, s.rows = make([]uint64, 121), make([]float32, 121*testDim)
	h := wire.Header{Job: testJob, Sender: 5, Epoch: testServerEpoch, Seq: 1}
	answer := func(payload []byte) wire.Type {
		p := link.Packet{Packet: wire.Packet{Src: from.local, Payload: append(make([]byte, 0, wire.DefaultPayload), payload...)}}
		if err := s.handleBatch([]link.Packet{p}); err != nil {
			t.Fatal(err)
		}
		got, err := wire.ParseHeader(p.Payload[:wire.HeaderLen])
		if err != nil {
			t.Fatal(err)
		}
		return got.Type
	}
	if got := answer(cold(h, testDim, 1)); got != wire.TypeAck || s.stats.Applied != 1 {
		t.Fatalf("the first push: %v, %+v", got, s.stats)
	}
	const step = 1 << 20
	for h.Seq < 1<<31-step { // no further: from there, a number that is not fresh could be marked instead
		h.Seq += step
		a.last = h.Seq - 1
		if got := answer(frame(h)); got != want {
			t.Fatalf("frame %d: %v", h.Seq, got)
		}
	}
	h.Seq += 2 * step
	a.last = h.Seq - 1
	if got := answer(cold(h, testDim, 1)); got != wire.TypeAck || s.stats.Applied != 2 || s.stats.Duplicates != 0 {
		t.Errorf("a push %d numbers after the first: %v, %+v", h.Seq-1, got, s.stats)
	}
}

// TestReadmission distinguishes the frames of a restarted sender from late ones of its predecessor
// by the epoch.
func TestReadmission(t *testing.T) {
	ctx := deadline(t)
	network := newMemNet()
	s, l := newTestServer(t, network)
	c := client{t, network.open("10.0.0.2:1000"), s.link.Local()}
	late := cold(wire.Header{Job: testJob, Sender: 5, Epoch: testServerEpoch, Seq: 3}, testDim, 1000)
	first := func(epoch uint16) []byte {
		return cold(wire.Header{Job: testJob, Sender: 5, Epoch: epoch, Seq: 1}, testDim, 1)
	}
	if err := s.Admit(ctx, 5, c.at(), testServerEpoch); err != nil {
		t.Fatal(err)
	}
	if r := refusalOf(t, c.ask(first(testServerEpoch))); r.Code != 0 {
		t.Fatal(r)
	}
	if err := s.Remove(ctx, 5); err != nil {
		t.Fatal(err)
	}
	if err := s.Admit(ctx, 5, c.at(), testServerEpoch+1); err != nil {
		t.Fatal(err)
	}
	if r := refusalOf(t, c.ask(late)); r != (wire.Refusal{Code: wire.CodeWrongEpoch, Value: testServerEpoch + 1}) {
		t.Errorf("late frame of the former admission: %+v", r)
	}
	if r := refusalOf(t, c.ask(first(testServerEpoch+1))); r.Code != 0 {
		t.Error(r)
	}
	want := newLedger()
	want.addBatch([]uint64{42, 42}, []float32{1, 1, 1, 1, 1, 1})
	if diff := cmp.Diff(want.sums, l.sums); diff != "" {
		t.Errorf("store (-want +got):\n%s", diff)
	}
}
