// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/wire"
)

// roundsTester is a worker of a synchronous job that the test runs after its contributions were
// sent: to three groups, or to the scale.
type roundsTester struct {
	*Worker
	t testing.TB
	v []float32
}

func newRoundsTester(t testing.TB, scale bool) *roundsTester {
	t.Helper()
	return newBusyRoundsTester(t, scale, 0)
}

// newBusyRoundsTester returns one whose link takes only the first frames, if room is not 0.
func newBusyRoundsTester(t testing.TB, scale bool, room int) *roundsTester {
	t.Helper()
	w, err := makeWorker(t.Context(), roundsConfig(t, newMemNet(), retransmit.Config{Silence: time.Hour}))
	if err != nil {
		t.Fatal(err)
	}
	if room > 0 {
		w.link = &fullLink{Link: w.link, room: room}
	}
	r := &roundsTester{Worker: w, t: t, v: make([]float32, testSlots)}
	for i := range r.v {
		r.v[i] = float32(i)
	}
	for i := range w.rounds.contributions {
		w.rounds.contributions[i].round = 5
	}
	w.rounds.request = roundCall{id: 1, end: w.rounds.groups, grads: r.v, sums: r.v, numbers: packer.Integers(-1)}
	if scale {
		w.rounds.request = roundCall{id: 1, first: w.rounds.groups, end: w.rounds.groups + 1, exponent: 130}
	}
	w.rounds.acceptCall()
	w.rounds.sendContributions()
	if _, err := w.transmit(); err != nil {
		t.Fatal(err)
	}
	return r
}

// fullLink is a link that has room for a number of frames.
type fullLink struct {
	link.Link
	room int
}

func (l *fullLink) Send(frames []link.Frame) (int, error) {
	n, err := l.Link.Send(frames[:min(l.room, len(frames))])
	l.room -= n
	return n, err
}

func (r *roundsTester) receiveFrom(src wire.Endpoint, payload []byte) {
	r.receiveAnswer(&link.Packet{Packet: wire.Packet{Src: src, Payload: payload}})
}

func (r *roundsTester) answer(payload []byte) { r.receiveFrom(r.rounds.flow.path.To(), payload) }

// result returns an answer with the sums of group 1, all of them 7 units, to the worker or to all.
func result(all bool, change func(h *wire.Header, payload []byte)) []byte {
	h := wire.Header{Type: wire.TypeAck, Flags: wire.FlagSum, Job: testJob, Sender: 1, Epoch: testEpoch, Seq: 2}
	if all {
		h.Flags, h.Sender, h.Seq = h.Flags|wire.FlagAll, wire.AllSenders, 5
	}
	payload := make([]byte, wire.HotLen(wire.DefaultStripes), wire.DefaultPayload)
	sums := make([]float32, wire.DefaultStripes*wire.Lanes)
	for i := range sums {
		sums[i] = 7
	}
	packer.PutVector(payload, wire.DefaultStripes, sums, packer.Integers(0))
	change(&h, payload)
	h.Put(payload)
	return payload
}

// decision returns an answer with a decided scale.
func decision(all bool, change func(h *wire.Header, r *wire.ScaleReport)) []byte {
	h := wire.Header{Type: wire.TypeAck, Flags: wire.FlagSum | wire.FlagScale, Job: testJob, Sender: 1, Epoch: testEpoch, Seq: 1}
	if all {
		h.Flags, h.Sender, h.Seq = h.Flags|wire.FlagAll, wire.AllSenders, 5
	}
	d := wire.ScaleReport{Iteration: 5, Exponent: 131}
	change(&h, &d)
	payload := make([]byte, wire.ScaleLen)
	h.Put(payload)
	d.Put(payload)
	return payload
}

// TestForgedResults sends everything but the awaited result, before and after the contribution is
// acknowledged, and then the result.
func TestForgedResults(t *testing.T) {
	for _, all := range []bool{false, true} {
		for _, acked := range []bool{false, true} {
			r := newRoundsTester(t, false)
			before := append([]float32(nil), r.v...)
			if acked {
				r.answer(wire.PutAck(make([]byte, wire.HeaderLen), wire.Header{Job: testJob, Sender: 1, Epoch: testEpoch, Seq: 2}))
			}
			state := r.rounds.contributions[1]
			head := func(change func(*wire.Header)) []byte {
				return result(all, func(h *wire.Header, _ []byte) { change(h) })
			}
			body := func(change func(p []byte)) []byte {
				return result(all, func(_ *wire.Header, p []byte) { change(p) })
			}
			stray, malformed := 0, 0
			for _, f := range [][]byte{
				head(func(h *wire.Header) { h.Job++ }),
				head(func(h *wire.Header) { h.Epoch++ }),
				head(func(h *wire.Header) { h.Sender = 2 }),
				head(func(h *wire.Header) { h.Seq-- }), // the round before; the number of another group
				head(func(h *wire.Header) { h.Seq++ }),
				head(func(h *wire.Header) { h.Seq += 1 << 31 }),
				head(func(h *wire.Header) { h.Flags ^= wire.FlagAll }),
				body(func(p []byte) { packer.PutVector(p, 9*wire.DefaultStripes, make([]float32, 220), packer.Numbers{}) }), // no such group
				decision(all, func(*wire.Header, *wire.ScaleReport) {}),
			} {
				stray++
				r.answer(f)
			}
			stranger := r.rounds.flow.to
			stranger.IP = stranger.IP.Next()
			stray++
			r.receiveFrom(stranger, head(func(*wire.Header) {}))
			for _, f := range [][]byte{
				body(func([]byte) {})[:wire.HotLen(9)],
				body(func([]byte) {})[:wire.HotLen(10)-1],
				body(func([]byte) {})[:wire.HeaderLen],
				body(func([]byte) {})[:wire.HotLen(10)+wire.StripeLen/2],
				body(func(p []byte) { wire.StripeAt(p, 4).SetMask(wire.LaneMask >> 1) }),
				body(func(p []byte) { wire.StripeAt(p, 4).SetPage(1, wire.LaneMask) }),
				body(func(p []byte) { wire.StripeAt(p, 9).SetSlot(21, 18) }),
				body(func(p []byte) { wire.StripeAt(p, 0).SetSlot(0, 11) }), // in the group, but not its first
				head(func(h *wire.Header) { h.Flags |= wire.FlagDense }),
				head(func(h *wire.Header) { h.Flags |= wire.FlagWantSum }),
			} {
				malformed++
				r.answer(f)
			}
			if r.stats.Stray != uint64(stray) || r.stats.Malformed != uint64(malformed) {
				t.Errorf("all %v, acked %v: %d stray, %d malformed answers counted; want %d and %d", all, acked, r.stats.Stray, r.stats.Malformed, stray, malformed)
			}
			if diff := cmp.Diff(before, r.v); diff != "" || r.rounds.contributions[1] != state || r.rounds.finished != 0 || r.rounds.broken != nil {
				t.Errorf("all %v, acked %v: a forged answer changed something: %+v\n%.500s", all, acked, r.rounds.contributions[1], diff)
			}
			r.answer(head(func(*wire.Header) {}))
			if r.rounds.finished != 1 || r.v[220] != 3.5 || r.v[439] != 3.5 || r.v[219] != 219 || r.v[440] != 440 {
				t.Errorf("all %v, acked %v: the good answer was not taken: %+v", all, acked, r.stats)
			}
			if len(r.link.(*memLink).free) != linkBuffers-2 {
				t.Errorf("all %v, acked %v: %d buffers are free", all, acked, len(r.link.(*memLink).free))
			}
			r.answer(head(func(*wire.Header) {})) // again
			if r.rounds.finished != 1 {
				t.Error("a result counted twice")
			}
		}
	}
}

func TestForgedScales(t *testing.T) {
	for _, all := range []bool{false, true} {
		r := newRoundsTester(t, true)
		state := r.rounds.contributions[3]
		for _, change := range []func(*wire.Header, *wire.ScaleReport){
			func(h *wire.Header, _ *wire.ScaleReport) { h.Job++ },
			func(h *wire.Header, _ *wire.ScaleReport) { h.Epoch++ },
			func(h *wire.Header, _ *wire.ScaleReport) { h.Sender++ },
			func(h *wire.Header, _ *wire.ScaleReport) { h.Seq++ },
			func(h *wire.Header, _ *wire.ScaleReport) { h.Flags |= wire.FlagDense },
			func(_ *wire.Header, d *wire.ScaleReport) { d.Iteration-- },
			func(_ *wire.Header, d *wire.ScaleReport) { d.Exponent = 129 }, // below this worker's
			func(_ *wire.Header, d *wire.ScaleReport) { d.Exponent = 255 },
		} {
			r.answer(decision(all, change))
		}
		r.answer(decision(all, func(*wire.Header, *wire.ScaleReport) {})[:wire.ScaleLen-1])
		r.answer(result(all, func(*wire.Header, []byte) {}))
		if r.stats.Stray+r.stats.Malformed != 10 || r.rounds.contributions[3] != state || !r.rounds.active {
			t.Errorf("all %v: %+v, %+v", all, r.stats, r.rounds.contributions[3])
		}
		r.answer(decision(all, func(*wire.Header, *wire.ScaleReport) {}))
		if r.rounds.active || r.rounds.decided != 131 {
			t.Errorf("all %v: the good answer was not taken: %+v", all, r.stats)
		}
	}
}

// TestResultBeforeFrame sends a result for a frame that waits for room in the link: no peer can
// have answered it.
func TestResultBeforeFrame(t *testing.T) {
	r := newBusyRoundsTester(t, false, 1)
	r.answer(result(true, func(*wire.Header, []byte) {}))
	r.answer(result(false, func(*wire.Header, []byte) {}))
	r.answer(wire.PutError(make([]byte, wire.ErrorLen), wire.Header{Job: testJob, Sender: 1, Epoch: testEpoch, Seq: 2}, wire.Refusal{Code: wire.CodeMode}))
	if r.stats.Stray != 3 || r.rounds.finished != 0 || r.rounds.broken != nil {
		t.Errorf("%+v", r.stats)
	}
}

// A refused exponent belongs to no key, whatever index the refusal has.
func TestRefusedScaleNamesNoKey(t *testing.T) {
	for _, code := range []wire.Code{wire.CodeMode, wire.CodeOverflow} {
		r := newRoundsTester(t, true)
		r.answer(wire.PutError(make([]byte, wire.ErrorLen), wire.Header{Job: testJob, Sender: 1, Epoch: testEpoch, Seq: 1}, wire.Refusal{Code: code}))
		var peer *PeerError
		if err := r.rounds.broken; !errors.As(err, &peer) || peer.KeyKnown || !errors.Is(err, wire.Refusal{Code: code}) {
			t.Errorf("code %v: %v", code, err)
		}
	}
}

// FuzzRoundAnswers lets anything arrive at a worker that waits for groups or for
// a scale: it must not panic, lose a buffer, or change another group.
func FuzzRoundAnswers(f *testing.F) {
	for _, all := range []bool{false, true} {
		f.Add(result(all, func(*wire.Header, []byte) {}), false)
		f.Add(decision(all, func(*wire.Header, *wire.ScaleReport) {}), true)
	}
	h := wire.Header{Job: testJob, Sender: 1, Epoch: testEpoch, Seq: 2}
	f.Add(wire.PutAck(make([]byte, 64), h), false)
	f.Add(wire.PutScaleAck(make([]byte, 64), h), true)
	f.Add(wire.PutError(make([]byte, 64), h, wire.Refusal{Code: wire.CodeOverflow, Index: 21}), false)
	for _, scale := range []bool{false, true} {
		rows := make([]byte, wire.RowsLen(1, 1))
		wire.PutRows(rows, wire.TypeRows, 1, 1)
		h := wire.Header{Type: wire.TypeRows, Job: testJob, Sender: 1, Epoch: testEpoch, Seq: 1}
		h.Put(rows)
		f.Add(rows, scale)
		found := make([]byte, wire.FoundLen(1))
		wire.PutNumbered(found, wire.TypeFound, 1, 1, 7)
		h.Type = wire.TypeFound
		h.Put(found)
		f.Add(found, scale)
	}
	f.Fuzz(func(t *testing.T, payload []byte, scale bool) {
		if len(payload) > wire.DefaultPayload {
			return
		}
		r := newRoundsTester(t, scale)
		before := append([]float32(nil), r.v...)
		for range 2 {
			r.answer(payload)
		}
		for first := 0; first < testSlots; first += r.rounds.groupLen {
			c := &r.rounds.contributions[first/r.rounds.groupLen]
			part := r.rounds.groupPart(r.v, first/r.rounds.groupLen)
			if c.round == 5 && !cmp.Equal(part, r.rounds.groupPart(before, first/r.rounds.groupLen)) {
				t.Fatalf("group at %d changed without a result", first)
			}
		}
		held := 0
		for i := range r.rounds.contributions {
			if r.rounds.contributions[i].state != idle {
				held++
			}
		}
		if free := len(r.link.(*memLink).free); free+held != linkBuffers {
			t.Fatalf("%d buffers are free, %d are held", free, held)
		}
		if r.rounds.unacked+r.rounds.waits.Outstanding() != held || r.rounds.flow.window.Outstanding() != r.rounds.unacked {
			t.Fatalf("%d contributions are held, %d unacknowledged, %d wait", held, r.rounds.unacked, r.rounds.waits.Outstanding())
		}
	})
}
