// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/telemetry"
	"github.com/libra-ina/libra/wire"
)

// measuring is a pausable worker that draws one frame of sample. Its clock goes on by tick with
// each reading.
func measuring(t *testing.T, sample int, tick time.Duration) *pausable {
	t.Helper()
	p := newPausable(t, time.Hour)
	p.draw = telemetry.NewDraw(sample)
	p.recorder = telemetry.NewRecorder(sample, nil, nil)
	p.Worker.clock = func() retransmit.Time {
		p.clock = p.clock.Add(tick)
		return p.clock
	}
	return p
}

// one returns the only time of a series, and whether it has one.
func one(t *testing.T, all []telemetry.Series, op telemetry.Op, part telemetry.Part, peer telemetry.Peer) (time.Duration, bool) {
	t.Helper()
	for _, s := range all {
		if s.Key == (telemetry.Key{Op: op, Part: part, Peer: peer}) {
			if s.Count() != 1 {
				t.Errorf("%v %v of %v: %d times", op, part, peer, s.Count())
			}
			return s.Sum, true
		}
	}
	return 0, false
}

// Drawn frames request an answer at once, besides every sixteenth and the last.
func TestDrawnFramesAskForAnAnswer(t *testing.T) {
	for sample, drawn := range map[int][]uint32{0: nil, telemetry.DefaultSample: {34, 89}} {
		p := measuring(t, sample, 0)
		p.push(100)
		for range 3 {
			if _, err := p.turn(); err != nil {
				t.Fatal(err)
			}
		}
		want := []uint32{16, 32, 48, 64, 80, 96, 100}
		want = append(want, drawn...)
		slices.Sort(want)
		var asking []uint32
		for _, h := range arrived(t, p.server) {
			if h.Flags == wire.FlagCover {
				asking = append(asking, h.Seq)
			}
		}
		if diff := cmp.Diff(want, asking); diff != "" {
			t.Errorf("sample %d: frames that ask (-want +got):\n%s", sample, diff)
		}
	}
}

// TestPartsOfAFrame makes each part of a frame's time take a time of its own: it is found there,
// and in the record.
func TestPartsOfAFrame(t *testing.T) {
	p := measuring(t, 1, 0)
	ticks := []time.Duration{}
	p.Worker.clock = func() retransmit.Time {
		if len(ticks) > 0 {
			p.clock, ticks = p.clock.Add(ticks[0]), ticks[1:]
		}
		return p.clock
	}
	p.clock = 1000
	o := p.push(1)
	if _, err := p.turn(); err != nil {
		t.Fatal(err)
	}
	h := arrived(t, p.server)[0]
	p.clock += retransmit.Time(3 * time.Millisecond) // on its way
	ticks = []time.Duration{0, 500 * time.Microsecond, 70 * time.Microsecond}
	p.answerWith(wire.PutCover(make([]byte, wire.CoverLen), h, 1<<wire.CoverAhead))
	if o.outstanding != 0 {
		t.Fatal("the push is not answered")
	}
	got, torn := p.Recorder().Records(nil)
	want := []telemetry.Record{{
		Time: 1000 + 3570*time.Microsecond, Job: testJob, Worker: 1, Epoch: testServerEpoch, Number: 1, Op: telemetry.Cold,
		Queue: 500 * time.Microsecond, Process: 70 * time.Microsecond, Total: 3570 * time.Microsecond,
		Request: uint32(wire.ColdLen(wire.ColdCap(p.link.Limits().MaxPayload, testDim), testDim)), Response: wire.CoverLen,
	}}
	if diff := cmp.Diff(want, got); diff != "" || torn != 0 {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	for part, want := range map[telemetry.Part]time.Duration{
		telemetry.Total: 3570 * time.Microsecond, telemetry.WorkerQueue: 500 * time.Microsecond, telemetry.WorkerProcess: 70 * time.Microsecond,
	} {
		if got, ok := one(t, p.Recorder().Series(), telemetry.Cold, part, telemetry.Server(0)); !ok || got != want {
			t.Errorf("%v takes %v, want %v", part, got, want)
		}
	}
}

// Of a frame that was sent twice, nobody knows which copy is answered: it has a total and the time
// until the last copy, and no parts.
func TestPartsOfARepeatedFrameAreUnknown(t *testing.T) {
	p := measuring(t, 1, 0)
	p.push(1)
	if _, err := p.turn(); err != nil {
		t.Fatal(err)
	}
	arrived(t, p.server)
	p.clock += retransmit.Time(20 * time.Millisecond)
	p.answerWith(make([]byte, 1)) // something else arrives
	again := arrived(t, p.server)
	if len(again) != 1 || again[0].Flags&wire.FlagRetx == 0 {
		t.Fatalf("%+v are sent again", again)
	}
	p.clock += retransmit.Time(2 * time.Millisecond)
	p.answerWith(wire.PutAck(make([]byte, wire.HeaderLen), again[0]))
	recs, _ := p.Recorder().Records(nil)
	if len(recs) != 1 || !recs[0].Repeated || recs[0].Total != 22*time.Millisecond || recs[0].Repeat != 20*time.Millisecond ||
		recs[0].Queue != 0 || recs[0].Process != 0 {
		t.Errorf("%+v", recs)
	}
	all := p.Recorder().Series()
	if d, _ := one(t, all, telemetry.Cold, telemetry.Repeat, telemetry.Server(0)); d != 20*time.Millisecond {
		t.Errorf("the last copy is sent after %v", d)
	}
	if _, ok := one(t, all, telemetry.Cold, telemetry.WorkerQueue, telemetry.Server(0)); ok {
		t.Error("a repeated frame has parts")
	}
	// A late answer to the other copy says nothing.
	p.answerWith(wire.PutAck(make([]byte, wire.HeaderLen), again[0]))
	if recs, _ := p.Recorder().Records(nil); len(recs) != 1 {
		t.Errorf("%d records after another answer", len(recs))
	}
}

// Refusals and frames that another answer covers have no record: the time until a refusal is not
// that of an operation, and a covered frame's own answer never came.
func TestOnlyOwnAnswersAreMeasured(t *testing.T) {
	p := measuring(t, 1, 0)
	p.push(3)
	if _, err := p.turn(); err != nil {
		t.Fatal(err)
	}
	frames := arrived(t, p.server)
	p.answerWith(wire.PutError(make([]byte, wire.ErrorLen), frames[0], wire.Refusal{Code: wire.CodeNotFinite}))
	p.answerWith(wire.PutCover(make([]byte, wire.CoverLen), frames[2], 3<<wire.CoverAhead)) // itself and frame 2
	recs, _ := p.Recorder().Records(nil)
	if len(recs) != 1 || recs[0].Number != 3 {
		t.Errorf("%+v", recs)
	}
}

// TestPartsOfAPush sends a push of more frames than the window takes: what it waits for before the
// first frame, until the last frame, and after it, are apart.
func TestPartsOfAPush(t *testing.T) {
	p := measuring(t, 1, 0)
	o := &operation{ticket: &Ticket{done: make(chan struct{})}, released: make(chan struct{})}
	rows := wire.ColdCap(p.link.Limits().MaxPayload, testDim)
	const frames = wire.DefaultWindow + 1
	o.keys, o.values = make([]uint64, frames*rows), make([]float32, frames*rows*testDim)
	p.drawPush(o)
	p.clock += retransmit.Time(5 * time.Millisecond) // the worker is busy
	p.acceptOperation(o)
	for busy := true; busy; {
		var err error
		if busy, err = p.turn(); err != nil {
			t.Fatal(err)
		}
	}
	p.clock += retransmit.Time(7 * time.Millisecond)
	for p.answer() > 0 {
		for busy := true; busy; {
			var err error
			if busy, err = p.turn(); err != nil {
				t.Fatal(err)
			}
		}
		if o.outstanding > 0 {
			p.clock += retransmit.Time(2 * time.Millisecond)
		}
	}
	for part, want := range map[telemetry.Part]time.Duration{
		telemetry.Submit: 5 * time.Millisecond, telemetry.Send: 7 * time.Millisecond, telemetry.Answer: 2 * time.Millisecond,
	} {
		if got, ok := one(t, p.Recorder().Series(), telemetry.Push, part, telemetry.All); !ok || got != want {
			t.Errorf("%v takes %v, want %v", part, got, want)
		}
	}
}

// slowHandler is a handler that takes time of a test's clock.
type slowHandler struct {
	*ledger
	spend func()
}

func (h slowHandler) Accumulate(rows wire.Rows) error {
	h.spend()
	return h.ledger.Accumulate(rows)
}

// measuredServer returns a server that draws one frame of sample, whose goroutine has ended.
func measuredServer(t testing.TB, sample int) (s *Server, from wire.Endpoint) {
	t.Helper()
	network := newMemNet()
	s, err := NewServer(ServerConfig{Link: network.open("10.0.0.1:19522"), Job: testJob, Dim: testDim, Handler: newLedger(),
		Index: 3, Sample: sample})
	if err != nil {
		t.Fatal(err)
	}
	from = network.open("10.0.0.2:1000").local
	if err := s.Admit(t.Context(), 5, from.AddrPort(), testServerEpoch); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return s, from
}

// TestPartsAtAServer serves a batch in which each frame takes 10 ms: a frame waits for those before
// it, and until the whole batch is answered. Nothing else is measured, and nobody that is not
// admitted.
func TestPartsAtAServer(t *testing.T) {
	s, from := measuredServer(t, 1)
	now := retransmit.Time(0)
	s.clock, s.recorder = func() retransmit.Time { return now }, telemetry.NewRecorder(1, nil, nil)
	s.cfg.Handler = slowHandler{newLedger(), func() { now = now.Add(10 * time.Millisecond) }}
	h := func(seq uint32) wire.Header {
		return wire.Header{Job: testJob, Sender: 5, Epoch: testServerEpoch, Seq: seq}
	}
	stranger, quiet := h(9), h(3)
	stranger.Sender = 6
	quiet.Flags = wire.FlagQuiet
	repeated := h(1)
	repeated.Flags = wire.FlagRetx
	var pkts []link.Packet
	for _, payload := range [][]byte{
		cold(h(1), testDim, 1), cold(h(2), testDim, 1), cold(quiet, testDim, 1), cold(stranger, testDim, 1), pullOf(h(4), 2), {1},
		cold(repeated, testDim, 1),
	} {
		pkts = append(pkts, packet(from, payload))
	}
	if err := s.handleBatch(pkts); err != nil {
		t.Fatal(err)
	}
	const ms = time.Millisecond
	request := uint32(wire.ColdLen(1, testDim))
	record := func(number uint32, queue, process time.Duration) telemetry.Record {
		return telemetry.Record{
			Time: time.Duration(now), Job: testJob, Worker: 5, Server: 3, Epoch: testServerEpoch, Number: number, Op: telemetry.Cold,
			Queue: queue, Process: process, Total: queue + process, Request: request, Response: wire.HeaderLen,
		}
	}
	pull, again := record(4, 30*ms, 0), record(1, 30*ms, 0)
	pull.Op, pull.Request, pull.Response = telemetry.Pull, uint32(wire.PullLen(2)), uint32(wire.RowsLen(2, testDim))
	again.Repeated = true
	got, _ := s.Recorder().Records(nil)
	want := []telemetry.Record{record(1, 20*ms, 10*ms), record(2, 20*ms, 10*ms), pull, again}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	for _, series := range s.Recorder().Series() {
		if series.Peer != telemetry.Worker(5) {
			t.Errorf("times of %v", series.Peer)
		}
	}
}

// TestBothEndsMeasureTheSameFrames pushes and pulls through a network that loses, repeats and
// reorders frames, or does not, and measures all frames. The sums are exact; what a worker measured
// of a frame to the server, the server did too; and the parts of their joined rows add up.
func TestBothEndsMeasureTheSameFrames(t *testing.T) {
	ctx := deadline(t)
	faults := link.Faults{Drop: 0.02, Duplicate: 0.02, Reorder: 0.02}
	for name, on := range map[string]struct {
		fabric func(testing.TB, clusterOptions) fabric
		faults link.Faults
	}{"memory": {memFabric, faults}, "UDP": {udpFabric, faults}, "memory without loss": {memFabric, link.Faults{}},
		"UDP without loss": {udpFabric, link.Faults{}}} {
		t.Run(name, func(t *testing.T) {
			o := clusterOptions{workers: 3, sample: 1, layout: packer.Dense, mode: aggregator.Combine, faults: on.faults}
			c := newCluster(t, on.fabric(t, o), o)
			want := pushAll(ctx, t, c.workers, 1, 10, 1000)
			values := make([]float32, 500*testDim)
			keys := make([]uint64, 500)
			for i := range keys {
				keys[i] = uint64(i)
			}
			for _, w := range c.workers {
				if err := w.Pull(ctx, keys, values); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(want, c.sums()); diff != "" {
				t.Errorf("sums (-pushed +held):\n%.1000s", diff)
			}
			type id struct {
				worker uint16
				op     telemetry.Op
				number uint32
			}
			served := map[id]bool{}
			join := telemetry.NewJoiner()
			records, _ := c.server.Recorder().Records(nil)
			for _, r := range records {
				served[id{r.Worker, r.Op, r.Number}] = true
				join.AddServer(r)
			}
			ops := map[telemetry.Op]int{}
			for i, w := range c.workers {
				stats, err := w.Stats(ctx)
				if err != nil {
					t.Fatal(err)
				}
				records, torn := w.Recorder().Records(nil)
				own := stats.Hot.Acked - stats.Hot.Covered + stats.Cold.Acked - stats.Cold.Covered
				if uint64(len(records)) != own || torn != 0 {
					t.Errorf("worker %d: %d records of %d frames with answers of their own", i+1, len(records), own)
				}
				for _, r := range records {
					join.AddWorker(r)
					ops[r.Op]++
					if r.Server == 0 && !served[id{r.Worker, r.Op, r.Number}] {
						t.Errorf("the server has no record of %+v", r)
					}
				}
			}
			for _, op := range []telemetry.Op{telemetry.Hot, telemetry.Cold, telemetry.Pull} {
				if ops[op] == 0 {
					t.Errorf("no record of a %v frame: %v", op, ops)
				}
			}
			checkRows(t, join, on.faults != (link.Faults{}))
		})
	}
}

// checkRows checks that rows have the parts that their state says, and that these add up to the
// total.
func checkRows(t *testing.T, join *telemetry.Joiner, faulty bool) {
	t.Helper()
	rows := join.EndRound(nil, true)
	for _, r := range rows {
		parts := r.Queue + r.Process + r.ServerQueue + r.ServerProcess + r.Network
		switch {
		case r.State == telemetry.Resent && (parts != 0 || r.Repeat > r.Total), r.State != telemetry.Resent && (parts != r.Total || r.Repeat != 0),
			r.State == telemetry.Half:
			t.Errorf("%v: %+v", r.State, r)
		}
	}
	n := join.Joined
	once := uint64(len(rows)) - n.Resent // a busy machine repeats frames, too
	if n.Impossible > 0 || n.Half > 0 || faulty && (n.Resent == 0 || n.Ambiguous == 0) || !faulty && n.Whole*100 < once*95 {
		t.Errorf("%d rows: %+v", len(rows), n)
	}
}

// Drawn frames allocate no more than others, neither at the worker nor at the server.
func TestMeasuringAllocatesNothing(t *testing.T) {
	allocations := func(sample int) float64 {
		p := measuring(t, sample, time.Microsecond)
		return testing.AllocsPerRun(20, func() {
			p.push(5)
			p.answer()
			if _, err := p.turn(); err != nil {
				t.Fatal(err)
			}
		})
	}
	if off, on := allocations(0), allocations(1); on != off {
		t.Errorf("a push allocates %v times, without telemetry %v", on, off)
	}
	s, from := measuredServer(t, 1)
	payload := pullOf(wire.Header{Job: testJob, Sender: 5, Epoch: testServerEpoch, Seq: 1}, 1)
	pkts := []link.Packet{packet(from, payload)}
	n := testing.AllocsPerRun(100, func() {
		pkts[0].Payload = append(pkts[0].Payload[:0], payload...)
		if err := s.handleBatch(pkts); err != nil || pkts[0].Reply == 0 {
			t.Fatal(err)
		}
	})
	if records, _ := s.Recorder().Records(nil); n != 0 || len(records) != 101 {
		t.Errorf("a frame allocates %v times at the server, of %d records", n, len(records))
	}
}

func TestSampleIsChecked(t *testing.T) {
	network := newMemNet()
	l := network.open("10.0.0.1:19522")
	_, err := NewServer(ServerConfig{Link: l, Job: testJob, Dim: testDim, Handler: newLedger(), Sample: 63})
	if err == nil {
		t.Error("a server draws one of 63")
	}
	cfg := WorkerConfig{Link: l, Job: testJob, Sender: 1, Dim: testDim, Server: wire.Endpoint{IP: network.addr("10.0.0.2"), Port: 1}}
	for sample, want := range map[int]bool{0: true, 1: true, 64: true, 65: false, -1: false} {
		cfg.Sample = sample
		if _, err := makeWorker(t.Context(), cfg); (err == nil) != want {
			t.Errorf("sample %d: %v", sample, err)
		}
	}
}

// The queue of a packet that says when it arrived begins then, at both ends. A time that cannot be
// true, as of a clock that was set, is counted and not used: an answer comes after its frame.
func TestQueuesBeginAtTheArrival(t *testing.T) {
	const ms = time.Millisecond
	for stamp, want := range map[time.Duration]struct {
		queue   time.Duration
		stamped bool
		unused  uint64
	}{
		0: {0, false, 0}, 60 * ms: {40 * ms, true, 0}, 100*ms + 1: {0, false, 1}, -time.Hour: {0, false, 1},
		50 * ms: {50 * ms, true, 0}, 50*ms - 1: {0, false, 1}, // before the frame that is answered was sent
	} {
		s, from := measuredServer(t, 1)
		s.clock, s.recorder = func() retransmit.Time { return retransmit.Time(100 * ms) }, telemetry.NewRecorder(1, nil, nil)
		pkt := packet(from, cold(wire.Header{Job: testJob, Sender: 5, Epoch: testServerEpoch, Seq: 1}, testDim, 1))
		pkt.Arrived = stamp
		if err := s.handleBatch([]link.Packet{pkt}); err != nil {
			t.Fatal(err)
		}
		p := measuring(t, 1, 0)
		p.clock = retransmit.Time(50 * ms)
		p.push(1)
		if _, err := p.turn(); err != nil {
			t.Fatal(err)
		}
		p.clock, p.now = retransmit.Time(100*ms), retransmit.Time(100*ms)
		answer := packet(p.server.local, wire.PutAck(make([]byte, wire.HeaderLen), arrived(t, p.server)[0]))
		answer.Arrived = stamp
		p.receiveAnswer(&answer)
		for name, r := range map[string]*telemetry.Recorder{"server": s.recorder, "worker": p.Recorder()} {
			records, _ := r.Records(nil)
			want := want
			if early := stamp == 50*ms-1; early && name == "server" { // a request may wait for longer
				want.queue, want.stamped, want.unused = 50*ms+1, true, 0
			}
			if len(records) != 1 || records[0].Queue != want.queue || records[0].Stamped != want.stamped || r.UnusedStamps() != want.unused {
				t.Errorf("%s, stamp %v: %+v, %d not used; want %+v", name, stamp, records, r.UnusedStamps(), want)
			}
		}
	}
}
