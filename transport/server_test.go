// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/wire"
)

// client sends hand-made payloads and reads the answers.
type client struct {
	t    *testing.T
	link *memLink
	to   wire.Endpoint
}

func (c client) at() netip.AddrPort { return c.link.local.AddrPort() }

func (c client) send(payload []byte) { c.link.deliver(payload, c.to) }

// ask sends a payload and returns the answer, nil if there is none.
func (c client) ask(payload []byte) []byte {
	c.t.Helper()
	c.send(payload)
	// The answer arrives before that to a ping, which always has one.
	ping := make([]byte, wire.HeaderLen)
	wire.Header{Type: 15, Seq: 1<<32 - 1}.Put(ping)
	c.send(ping)
	var answer []byte
	pkts := make([]link.Packet, 8)
	for {
		n, err := c.link.Receive(pkts)
		if err != nil {
			c.t.Fatal(err)
		}
		for _, p := range pkts[:n] {
			h, err := wire.ParseHeader(p.Payload)
			if err != nil {
				c.t.Fatal(err)
			}
			if h.Seq == 1<<32-1 {
				return answer
			}
			answer = bytes.Clone(p.Payload) // the next Receive invalidates it
		}
		if n == 0 {
			if err := c.link.Wait(time.Second); err != nil {
				c.t.Fatal(err)
			}
		}
	}
}

// cold returns the payload of a COLD frame with one row.
func cold(h wire.Header, dim int, value float32) []byte {
	b := make([]byte, wire.ColdLen(1, dim))
	h.Type = wire.TypeCold
	h.Put(b)
	rows := wire.PutRows(b, wire.TypeCold, 1, dim)
	rows.SetKey(0, 42)
	row := make([]float32, dim)
	for i := range row {
		row[i] = value
	}
	rows.SetRow(0, row)
	return b
}

func pullOf(h wire.Header, keys int) []byte {
	b := make([]byte, wire.PullLen(keys))
	h.Type = wire.TypePull
	h.Put(b)
	wire.PutRows(b, wire.TypePull, keys, testDim)
	return b
}

func findOf(h wire.Header, keys ...uint64) []byte {
	b := make([]byte, wire.PullLen(len(keys)))
	h.Type = wire.TypeFind
	h.Put(b)
	rows := wire.PutRows(b, h.Type, len(keys), testDim)
	for i, key := range keys {
		rows.SetKey(i, key)
	}
	return b
}

func found(h wire.Header, numbering uint32, numbers ...uint32) []byte {
	b := make([]byte, wire.FoundLen(len(numbers)))
	h.Type = wire.TypeFound
	h.Put(b)
	wire.PutNumbered(b, h.Type, len(numbers), testDim, numbering).SetNumbers(numbers)
	return b
}

// coldAt returns the payload of a COLD_AT frame with ones.
func coldAt(h wire.Header, numbering uint32, numbers ...uint32) []byte {
	b := make([]byte, wire.ColdAtLen(len(numbers), testDim))
	h.Type = wire.TypeColdAt
	h.Put(b)
	rows := wire.PutNumbered(b, h.Type, len(numbers), testDim, numbering)
	rows.SetNumbers(numbers)
	for i := range numbers {
		rows.SetRow(i, []float32{1, 1, 1})
	}
	return b
}

func newTestServer(t *testing.T, network *memNet) (*Server, *ledger) {
	t.Helper()
	l := newLedger()
	s, err := NewServer(ServerConfig{Link: network.open("10.0.0.1:19522"), Job: testJob, Dim: testDim, Handler: l})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s, l
}

// TestServerAnswers sends payloads with every kind of fault, in the order of the checks: each also
// has all the faults of those after it.
func TestServerAnswers(t *testing.T) {
	network := newMemNet()
	s, l := newTestServer(t, network)
	c := client{t, network.open("10.0.0.2:1000"), s.link.Local()}
	thief := client{t, network.open("10.0.0.3:1000"), s.link.Local()}
	neighbour := client{t, network.open("10.0.0.2:1001"), s.link.Local()}
	if err := s.Admit(t.Context(), 5, c.at(), testServerEpoch); err != nil {
		t.Fatal(err)
	}
	good := wire.Header{Job: testJob, Sender: 5, Epoch: testServerEpoch, Seq: 1}
	with := func(change func(*wire.Header)) wire.Header { h := good; change(&h); return h }
	at := func(seq uint32) wire.Header { return with(func(h *wire.Header) { h.Seq = seq }) }
	huge := float32(1 << 30)
	l.refuse = func(r wire.Rows) error {
		row := make([]float32, r.Dim)
		if r.Row(0, row); row[0] == huge {
			return wire.Refusal{Code: wire.CodeOverflow}
		}
		return nil
	}
	otherVersion := cold(good, 1, huge)
	otherVersion[0] = 2<<4 | byte(wire.TypeCold)
	answer := make([]byte, wire.HeaderLen)
	for i, c := range []struct {
		name    string
		from    client
		payload []byte
		want    wire.Refusal // zero: an ACK, or ROWS to a pull
		silent  bool
	}{
		{name: "short", from: c, payload: otherVersion[:11], silent: true},
		{name: "ACK", from: c, payload: func() []byte { wire.Header{Type: wire.TypeAck}.Put(answer); return answer }(), silent: true},
		{name: "ERROR", from: c, payload: wire.PutError(make([]byte, wire.ErrorLen), good, wire.Refusal{Code: 1}), silent: true},
		{name: "ROWS", from: c, payload: func() []byte {
			b := make([]byte, wire.RowsLen(1, testDim))
			with(func(h *wire.Header) { h.Type = wire.TypeRows }).Put(b)
			return b
		}(), silent: true},
		{name: "FOUND", from: c, payload: found(good, 0, 1), silent: true},
		{name: "version", from: c, payload: otherVersion, want: wire.Refusal{Code: wire.CodeWrongVersion, Value: 1}},
		{name: "type", from: c, payload: func() []byte {
			b := cold(good, 1, huge)
			with(func(h *wire.Header) { h.Type, h.Job = wire.TypeHot, 99 }).Put(b)
			return b
		}(), want: wire.Refusal{Code: wire.CodeType}},
		{name: "job", from: c, payload: cold(with(func(h *wire.Header) { h.Job, h.Sender = 99, 99 }), 1, huge), want: wire.Refusal{Code: wire.CodeUnknownJob}},
		{name: "sender", from: c, payload: cold(with(func(h *wire.Header) { h.Sender, h.Epoch = 99, 99 }), 1, huge), want: wire.Refusal{Code: wire.CodeUnknownSender}},
		{name: "address", from: thief, payload: cold(with(func(h *wire.Header) { h.Epoch = 99 }), 1, huge), want: wire.Refusal{Code: wire.CodeUnknownSender}},
		{name: "port", from: neighbour, payload: cold(with(func(h *wire.Header) { h.Epoch = 99 }), 1, huge), want: wire.Refusal{Code: wire.CodeUnknownSender}},
		{name: "epoch", from: c, payload: cold(with(func(h *wire.Header) { h.Epoch = 99 }), 1, huge)[:20], want: wire.Refusal{Code: wire.CodeWrongEpoch, Value: testServerEpoch}},
		{name: "length", from: c, payload: cold(good, 1, huge)[:26], want: wire.Refusal{Code: wire.CodeLength, Value: wire.DefaultPayload}},
		{name: "dimension", from: c, payload: cold(good, 1, huge), want: wire.Refusal{Code: wire.CodeDimension, Value: testDim}},
		{name: "handler", from: c, payload: cold(good, testDim, huge), want: wire.Refusal{Code: wire.CodeOverflow}},
		{name: "too many keys", from: c, payload: pullOf(good, 125), want: wire.Refusal{Code: wire.CodeLength, Value: uint32(wire.PullLen(121))}},
		{name: "pull", from: c, payload: pullOf(good, 121)},
		{name: "corrected retry", from: c, payload: cold(with(func(h *wire.Header) { h.Seq = 2 }), testDim, 1)},
		{name: "repeated", from: c, payload: cold(with(func(h *wire.Header) { h.Seq = 2; h.Flags = wire.FlagRetx }), testDim, 1)},
		{name: "repeated pull", from: c, payload: pullOf(good, 1)},
		{name: "length of a find", from: c, payload: findOf(good, 42)[:20], want: wire.Refusal{Code: wire.CodeLength, Value: wire.DefaultPayload}},
		{name: "find of too many keys", from: c, payload: findOf(good, make([]uint64, 122)...), want: wire.Refusal{Code: wire.CodeLength, Value: uint32(wire.PullLen(121))}},
		{name: "find", from: c, payload: findOf(good, 43, 42)},
		{name: "length by number", from: c, payload: coldAt(at(3), 1, 1)[:35], want: wire.Refusal{Code: wire.CodeLength, Value: wire.DefaultPayload}},
		{name: "numbering", from: c, payload: coldAt(at(3), 1, 2), want: wire.Refusal{Code: wire.CodeNumbering}},
		{name: "no number", from: c, payload: coldAt(at(4), 0, 0), want: wire.Refusal{Code: wire.CodeRowNumber, Value: 1}},
		{name: "number", from: c, payload: coldAt(at(5), 0, 1, 2), want: wire.Refusal{Code: wire.CodeRowNumber, Index: 1, Value: 1}},
		{name: "a refused number", from: c, payload: coldAt(at(5), 0, 1), want: wire.Refusal{Code: wire.CodeRowNumber, Index: 1, Value: 1}},
		{name: "corrected by number", from: c, payload: coldAt(at(6), 0, 1)},
		{name: "repeated by number", from: c, payload: coldAt(at(6), 99, 99)},
	} {
		got := c.from.ask(c.payload)
		if c.silent {
			if got != nil {
				t.Errorf("%s: answered with % x", c.name, got)
			}
			continue
		}
		h, err := wire.ParseHeader(got)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		asked, _ := wire.ParseHeader(c.payload)
		echo := wire.Header{Type: h.Type, Job: asked.Job, Sender: asked.Sender, Epoch: asked.Epoch, Seq: asked.Seq}
		if h != echo {
			t.Errorf("%s: header %+v, want %+v", c.name, h, echo)
		}
		wantType := wire.TypeAck
		switch {
		case c.want.Code != 0:
			wantType = wire.TypeError
			if r, err := wire.ParseRefusal(got); err != nil || r != c.want {
				t.Errorf("%s: refused with %+v, %v; want %+v", c.name, r, err, c.want)
			}
		case asked.Type == wire.TypePull:
			wantType = wire.TypeRows
		case asked.Type == wire.TypeFind:
			wantType = wire.TypeFound
			if want := found(asked, 0, 0, 1); !bytes.Equal(got, want) {
				t.Errorf("%s: answered with % x, want % x", c.name, got, want)
			}
		}
		if h.Type != wantType {
			t.Errorf("%s (%d): answered by %v, want %v", c.name, i, h.Type, wantType)
		}
	}
	want := newLedger()
	want.addBatch([]uint64{42}, []float32{2, 2, 2})
	if diff := cmp.Diff(want.sums, l.sums); diff != "" {
		t.Errorf("store (-want +got):\n%s", diff)
	}
	st, err := s.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if st.Applied != 2 || st.Rows != 2 || st.RowsAt != 1 || st.Duplicates != 2 || st.Pulls != 2 || st.KeysPulled != 122 || st.Finds != 1 || st.Malformed != 1 || st.Unexpected != 4 {
		t.Errorf("%+v", st)
	}
	if st.Refusals[wire.CodeUnknownSender] != 3 {
		t.Errorf("refusals %v", st.Refusals)
	}
}

func TestAdmission(t *testing.T) {
	ctx := deadline(t)
	network := newMemNet()
	s, _ := newTestServer(t, network)
	c := client{t, network.open("10.0.0.2:1000"), s.link.Local()}
	frame := cold(wire.Header{Job: testJob, Sender: 5, Epoch: testServerEpoch, Seq: 1}, testDim, 1)
	typeOf := func(b []byte) wire.Type {
		h, err := wire.ParseHeader(b)
		if err != nil {
			t.Fatal(err)
		}
		return h.Type
	}
	if got := typeOf(c.ask(frame)); got != wire.TypeError {
		t.Errorf("before admission: %v", got)
	}
	if err := s.Admit(ctx, 5, c.at(), testServerEpoch); err != nil {
		t.Fatal(err)
	}
	if err := s.Admit(ctx, 5, c.at(), testServerEpoch); !errors.Is(err, ErrConfig) {
		t.Errorf("admitted twice: %v", err)
	}
	for _, nowhere := range []netip.AddrPort{{}, netip.AddrPortFrom(c.at().Addr(), 0)} {
		if err := s.Admit(ctx, 6, nowhere, testServerEpoch); !errors.Is(err, ErrConfig) {
			t.Errorf("admitted at %v: %v", nowhere, err)
		}
	}
	if got := typeOf(c.ask(frame)); got != wire.TypeAck {
		t.Errorf("after admission: %v", got)
	}
	if err := s.Remove(ctx, 5); err != nil {
		t.Fatal(err)
	}
	if got := typeOf(c.ask(frame)); got != wire.TypeError {
		t.Errorf("after removal: %v", got)
	}
}

// TestHandlerFailure ends the server with the handler's error.
func TestHandlerFailure(t *testing.T) {
	ctx := deadline(t)
	network := newMemNet()
	s, l := newTestServer(t, network)
	broken := errors.New("disk on fire")
	l.refuse = func(wire.Rows) error { return broken }
	c := client{t, network.open("10.0.0.2:1000"), s.link.Local()}
	if err := s.Admit(ctx, 5, c.at(), testServerEpoch); err != nil {
		t.Fatal(err)
	}
	c.send(cold(wire.Header{Job: testJob, Sender: 5, Epoch: testServerEpoch, Seq: 1}, testDim, 1))
	<-s.Done()
	if err := s.Err(); !errors.Is(err, broken) {
		t.Errorf("Err: %v", err)
	}
	if err := s.Do(ctx, func() {}); !errors.Is(err, broken) {
		t.Errorf("Do: %v", err)
	}
	if err := s.Close(); !errors.Is(err, broken) {
		t.Errorf("Close: %v", err)
	}
}

func TestDo(t *testing.T) {
	s, _ := newTestServer(t, newMemNet())
	entered, leave := make(chan struct{}), make(chan struct{})
	first := make(chan error, 1)
	go func() {
		first <- s.Do(context.Background(), func() { close(entered); <-leave })
	}()
	<-entered
	// A call that waits after it is cancelled and never runs.
	ctx, cancel := context.WithCancel(t.Context())
	second := make(chan error, 1)
	ran := false
	go func() { second <- s.Do(ctx, func() { ran = true }) }()
	cancel()
	if err := <-second; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled Do: %v", err)
	}
	close(leave)
	if err := <-first; err != nil {
		t.Error(err)
	}
	if err := s.Do(t.Context(), func() {}); err != nil {
		t.Error(err)
	}
	if ran {
		t.Error("a function ran after its caller had given up")
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := s.Do(t.Context(), func() { t.Error("ran after Close") }); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Do after Close: %v", err)
	}
}

func TestConfigErrors(t *testing.T) {
	l := newMemNet().open("10.0.0.1:1")
	at := l.Local()
	hot := testHotSet(t)
	model, err := aggregator.NewModel(aggregator.Config{})
	if err != nil {
		t.Fatal(err)
	}
	worker := func(c WorkerConfig) error { _, err := NewWorker(t.Context(), c); return err }
	server := func(c ServerConfig) error { _, err := NewServer(c); return err }
	agg := func(l link.Link, m *aggregator.Model) error {
		_, err := NewAggregatorServer(AggregatorConfig{Link: l, Model: m})
		return err
	}
	for name, c := range map[string]struct {
		err  error
		says string
	}{
		"worker without link":      {worker(WorkerConfig{Dim: 1, Server: at}), "Link"},
		"worker without dim":       {worker(WorkerConfig{Link: l, Server: at}), "dimension 0"},
		"worker with giant rows":   {worker(WorkerConfig{Link: l, Dim: 400, Server: at}), "400"},
		"worker with two dims":     {worker(WorkerConfig{Link: l, Dim: 1, HotSet: hot, Server: at}), "dimension"},
		"worker with odd window":   {worker(WorkerConfig{Link: l, Dim: 1, Server: at, Flow: retransmit.Config{Size: 3}}), "window"},
		"worker with one peer":     {worker(WorkerConfig{Link: l, HotSet: hot, Server: at, Aggregator: at}), "same address"},
		"worker, 11 stripes":       {worker(WorkerConfig{Link: l, HotSet: hot, Server: at, Stripes: 11}), "stripes"},
		"server without link":      {server(ServerConfig{Dim: 1, Handler: newLedger()}), "Link"},
		"server without handler":   {server(ServerConfig{Link: l, Dim: 1}), "Handler"},
		"server without dim":       {server(ServerConfig{Link: l, Handler: newLedger()}), "0 floats"},
		"aggregator without link":  {agg(nil, model), "link"},
		"aggregator without model": {agg(l, nil), "model"},
	} {
		if !errors.Is(c.err, ErrConfig) || !strings.Contains(c.err.Error(), c.says) {
			t.Errorf("%s: error %v, want ErrConfig about %q", name, c.err, c.says)
		}
	}
}

// A worker that cannot reach one of its services is not created, and the error names that service.
func TestWorkerWithoutPath(t *testing.T) {
	l := newMemNet().open("10.0.0.1:1")
	nowhere, there := wire.Endpoint{IP: l.local.IP}, wire.Endpoint{IP: l.local.IP, Port: 2}
	for role, at := range map[string][2]wire.Endpoint{"aggregator": {nowhere, there}, "parameter server": {there, nowhere}} {
		cfg := WorkerConfig{Link: l, HotSet: testHotSet(t), Aggregator: at[0], Server: at[1]}
		if w, err := NewWorker(t.Context(), cfg); w != nil || !errors.Is(err, link.ErrConfig) || !strings.HasPrefix(err.Error(), role+": ") {
			t.Errorf("%s: %v, %v", role, w, err)
		}
	}
}

// TestServerRestart replaces a worker's server while frames are in flight. The new one starts
// empty: the gradients of each acknowledged ticket must be in one of the two stores, once.
func TestServerRestart(t *testing.T) {
	ctx := deadline(t)
	network := newMemNet()
	s, before := newTestServer(t, network)
	l := network.open("10.0.0.2:19522")
	admit := func(s *Server) {
		if err := s.Admit(ctx, 1, l.local.AddrPort(), testServerEpoch); err != nil {
			t.Fatal(err)
		}
	}
	admit(s)
	w, err := NewWorker(ctx, WorkerConfig{Link: l, Job: testJob, Sender: 1, AggregatorEpoch: testEpoch, ServerEpoch: testServerEpoch, Dim: testDim, Server: s.link.Local()})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	rng := rand.New(rand.NewPCG(3, 3))
	want := newLedger()
	push := func() {
		keys, grads := batch(rng, 2000)
		ticket, err := w.Push(ctx, keys, grads)
		if err != nil {
			t.Fatal(err)
		}
		if err := ticket.Wait(ctx); err != nil {
			t.Fatal(err)
		}
		want.addBatch(keys, grads)
	}
	push()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	// Frames that no server receives; the new server must not refuse them before it has admitted
	// the worker, so its link is closed at first.
	keys, grads := batch(rng, 2000)
	ticket, err := w.Push(ctx, keys, grads)
	if err != nil {
		t.Fatal(err)
	}
	want.addBatch(keys, grads)
	var after *ledger
	network.mu.Lock()
	door := network.limit
	network.limit = 0
	network.mu.Unlock()
	s, after = newTestServer(t, network)
	admit(s)
	network.mu.Lock()
	network.limit = door
	network.mu.Unlock()
	if err := ticket.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	push()
	var total map[uint64][]int64
	if err := s.Do(ctx, func() {
		for key, row := range before.sums {
			for c, units := range row {
				after.add(key, c, units)
			}
		}
		total = after.sums
	}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want.sums, total); diff != "" {
		t.Errorf("sums (-pushed +held):\n%.1000s", diff)
	}
}
