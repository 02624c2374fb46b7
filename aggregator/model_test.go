// SPDX-License-Identifier: Apache-2.0

package aggregator_test

import (
	"encoding/binary"
	"errors"
	"math"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/internal/num/fixedpoint"
	"github.com/libra-ina/libra/wire"
)

// rig is a model with one job, which gets payloads of its first sender.
type rig struct {
	*aggregator.Model
	job aggregator.JobConfig
}

func newRig(t interface{ Fatal(...any) }, job aggregator.JobConfig) *rig {
	m, err := aggregator.NewModel(aggregator.Config{Address: conformance.Aggregator.IP})
	if err != nil {
		t.Fatal(err)
	}
	if err := conformance.StartJob(m, job); err != nil {
		t.Fatal(err)
	}
	return &rig{m, job}
}

type pair struct {
	lane, slot int
	value      float32
}

// hot returns a payload of one stripe from the first sender.
func (r *rig) hot(seq uint32, flags wire.Flags, pairs ...pair) []byte {
	payload := make([]byte, wire.HotLen(1))
	wire.Header{
		Type: wire.TypeHot, Flags: flags, Job: r.job.ID, Sender: conformance.Sender(0).ID,
		Epoch: r.job.Epoch, Seq: seq,
	}.Put(payload)
	s := wire.StripeAt(payload, 0)
	for _, p := range pairs {
		s.SetMask(s.Mask() | 1<<p.lane)
		s.SetSlot(p.lane, uint16(p.slot))
		s.SetValue(p.lane, p.value)
	}
	return payload
}

// send returns the answer to a payload, nil for none.
func (r *rig) send(payload []byte) []byte {
	reply := make([]byte, aggregator.MaxReplyPayload)
	src := netip.AddrPortFrom(conformance.Host(0).IP, conformance.Host(0).Port)
	_, n := r.ProcessPayload(src, payload, reply)
	if n == 0 {
		return nil
	}
	return reply[:n]
}

// wantAck fails unless the answer is an ACK of seq.
func wantAck(t *testing.T, answer []byte, seq uint32) {
	t.Helper()
	h, err := wire.ParseHeader(answer)
	if err != nil || h.Type != wire.TypeAck || h.Seq != seq {
		t.Fatalf("answer is %+v (%v), want an ACK of %d", h, err, seq)
	}
}

// wantRefusal fails unless the answer is an ERROR with this refusal.
func wantRefusal(t *testing.T, answer []byte, want wire.Refusal) {
	t.Helper()
	h, err := wire.ParseHeader(answer)
	if err != nil || h.Type != wire.TypeError {
		t.Fatalf("answer is %+v (%v), want an ERROR", h, err)
	}
	got, err := wire.ParseRefusal(answer)
	if err != nil || got != want {
		t.Fatalf("refusal is %+v (%v), want %+v", got, err, want)
	}
}

// sums harvests the job and returns its sums as float32.
func (r *rig) sums(t *testing.T) []float32 {
	t.Helper()
	b, err := r.Swap(r.job.ID)
	if err != nil {
		t.Fatal(err)
	}
	out := make([]float32, len(b.Slots))
	for i, n := range b.Slots {
		out[i] = fixedpoint.Format{Exp: r.job.Exp}.ToFloat32(n)
	}
	if err := r.Clear(b); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestManagement(t *testing.T) {
	m, err := aggregator.NewModel(aggregator.Config{})
	if err != nil {
		t.Fatal(err)
	}
	conformance.TestPlaces(t, m)
	conformance.TestManagement(t, m)
}

func TestTimes(t *testing.T) {
	start := time.Now()
	for _, sample := range []int{0, 1, 64} {
		m, err := aggregator.NewModel(aggregator.Config{Address: conformance.Aggregator.IP, Sample: sample,
			Clock: func() time.Duration { return time.Since(start) }})
		if err != nil {
			t.Fatal(err)
		}
		conformance.TestTimes(t, conformance.ModelDevice(m), sample)
	}
	if _, err := aggregator.NewModel(aggregator.Config{Sample: 3}); !errors.Is(err, aggregator.ErrConfig) {
		t.Errorf("a sample of 3: %v", err)
	}
}

func TestReadmission(t *testing.T) {
	m, err := aggregator.NewModel(aggregator.Config{Address: conformance.Aggregator.IP})
	if err != nil {
		t.Fatal(err)
	}
	conformance.TestReadmission(t, conformance.ModelDevice(m))
}

func TestMarks(t *testing.T) {
	m, err := aggregator.NewModel(aggregator.Config{Address: conformance.Aggregator.IP})
	if err != nil {
		t.Fatal(err)
	}
	conformance.TestMarks(t, conformance.ModelDevice(m))
}

// A model of a receiver that cannot read its whole filter has no marks.
func TestBanksWithoutMarks(t *testing.T) {
	m, err := aggregator.NewModel(aggregator.Config{AnswerEach: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := conformance.StartJob(m, aggregator.JobConfig{ID: 5, Slots: 1}); err != nil {
		t.Fatal(err)
	}
	if b, err := m.Swap(5); err != nil || b.Marks != nil {
		t.Errorf("bank %+v, %v", b, err)
	}
}

func TestAddsDenseAndAligned(t *testing.T) {
	r := newRig(t, aggregator.JobConfig{ID: 4, Epoch: 9, Exp: -46, Slots: 50})
	wantAck(t, r.send(r.hot(1, wire.FlagDense, pair{0, 49, 1.5}, pair{21, 3, -2}, pair{7, 3, 0.25})), 1)
	wantAck(t, r.send(r.hot(2, 0, pair{5, 2, 10}, pair{3, 0, 4})), 2) // ranks 49 and 3
	got := r.sums(t)
	want := make([]float32, 50)
	want[49], want[3] = 11.5, 2.25
	if !reflect.DeepEqual(got, want) {
		t.Errorf("sums are %v", got)
	}
	for _, x := range r.sums(t) {
		if x != 0 {
			t.Fatalf("the other bank holds %g", x)
		}
	}
}

func TestAnswersWithSumsAfterTheWholeFrame(t *testing.T) {
	r := newRig(t, aggregator.JobConfig{ID: 4, Mode: aggregator.FetchAdd, Exp: -46, Slots: 50})
	flags := wire.FlagWantSum | wire.FlagDense
	r.send(r.hot(1, wire.FlagDense, pair{0, 8, 100}))
	payload := r.hot(2, flags, pair{3, 8, 1}, pair{4, 9, 7}, pair{20, 8, 2})
	wire.StripeAt(payload, 0).SetValue(1, 5) // unused
	wire.StripeAt(payload, 0).SetSlot(1, 5)
	for _, time := range []string{"first", "again"} {
		answer := r.send(payload)
		h, err := wire.ParseHeader(answer)
		if err != nil || h.Type != wire.TypeAck || h.Flags != wire.FlagSum|wire.FlagDense || len(answer) != len(payload) {
			t.Fatalf("%s: answer of %d bytes is %+v (%v)", time, len(answer), h, err)
		}
		want := r.hot(2, flags, pair{3, 8, 103}, pair{4, 9, 7}, pair{20, 8, 103})
		if got := *wire.StripeAt(answer, 0); got != *wire.StripeAt(want, 0) {
			t.Errorf("%s: stripe is %x", time, got)
		}
	}
}

func TestAppliesEachFrameOnce(t *testing.T) {
	r := newRig(t, aggregator.JobConfig{Exp: -46, Slots: 1})
	one := func(seq uint32) []byte { return r.hot(seq, wire.FlagDense, pair{0, 0, 1}) }
	const w2 = 2 * wire.DefaultWindow
	for _, seq := range []uint32{1, 1, 3, 2, 3, 2, 1 + w2, 1, 1 + w2, 2 + 2*w2, 2 + w2} {
		wantAck(t, r.send(one(seq)), seq)
	}
	// Applied: 1, 3, 2, 1+2W, 2+4W. A very late 2+2W is older than what
	// its entry holds.
	if got := r.sums(t)[0]; got != 5 {
		t.Errorf("sum is %g, want 5", got)
	}
	c, err := r.JobCounters(0)
	if err != nil || c.Applied != 5 || c.Duplicates != 6 {
		t.Errorf("counters are %+v (%v)", c, err)
	}
}

// What depends on the frame alone is not remembered, unlike a sum: all copies of the frame are
// refused for it anyway.
func TestRefusedFrameMayBeCorrected(t *testing.T) {
	r := newRig(t, aggregator.JobConfig{Slots: 3, Exp: -40})
	limit := float32(math.Ldexp(1, 62-40)) // half the range
	nan := float32(math.NaN())
	wantAck(t, r.send(r.hot(1, wire.FlagDense, pair{0, 0, limit})), 1)
	before := r.State()
	for _, c := range []struct {
		want  wire.Refusal
		pairs []pair
	}{
		{wire.Refusal{Code: wire.CodeNotFinite, Index: 21}, []pair{{0, 1, 1}, {21, 1, nan}}},
		{wire.Refusal{Code: wire.CodeSlotRange, Index: 2, Value: 3}, []pair{{0, 1, 1}, {2, 3, 1}}},
		{wire.Refusal{Code: wire.CodeOverflow, Index: 1}, []pair{{0, 1, 1}, {1, 1, 2 * limit}}},
	} {
		wantRefusal(t, r.send(r.hot(2, wire.FlagDense, c.pairs...)), c.want)
		if !r.State().Equal(before) {
			t.Errorf("%v changed the state", c.want)
		}
	}
	wantAck(t, r.send(r.hot(2, wire.FlagDense, pair{0, 1, 1})), 2)
	beyond := wire.Refusal{Code: wire.CodeOverflow, Index: 5}
	wantRefusal(t, r.send(r.hot(3, wire.FlagDense, pair{0, 1, 1}, pair{1, 0, -1}, pair{4, 0, limit}, pair{5, 0, limit})), beyond)
	wantRefusal(t, r.send(r.hot(3, wire.FlagDense, pair{0, 1, 1})), beyond)
	wantAck(t, r.send(r.hot(2, 0, pair{0, 0, 7})), 2) // not added
	if got := r.sums(t); got[0] != limit || got[1] != 1 {
		t.Errorf("sums are %v", got)
	}
}

// Each step fixes the fault for which the previous one was refused.
func TestOrderOfChecks(t *testing.T) {
	job := aggregator.JobConfig{ID: 1, Epoch: 5, Exp: -46, Slots: 3, MaxStripes: 2, Layouts: aggregator.Dense}
	r := newRig(t, job)
	good := r.hot(1, wire.FlagDense, pair{0, 0, 1})
	r.send(good) // seq 1 is a duplicate from now on
	p := make([]byte, wire.HotLen(3))
	wire.Header{Type: wire.TypeCold, Flags: wire.FlagWantSum, Job: 300, Sender: 77, Epoch: 6, Seq: 1}.Put(p)
	p[0] |= 0x70
	s := wire.StripeAt(p, 0)
	s.SetPage(1<<9, 0)
	for _, step := range []struct {
		want wire.Refusal
		mend func()
	}{
		{wire.Refusal{Code: wire.CodeWrongVersion, Value: 1}, func() { p[0] = wire.Version<<4 | byte(wire.TypeCold) }},
		{wire.Refusal{Code: wire.CodeType}, func() { p[0] = wire.Version<<4 | byte(wire.TypeHot) }},
		{wire.Refusal{Code: wire.CodeUnknownJob}, func() { binary.BigEndian.PutUint16(p[2:], 1) }},
		{wire.Refusal{Code: wire.CodeUnknownSender}, func() { binary.BigEndian.PutUint16(p[4:], conformance.Sender(1).ID) }},
		{wire.Refusal{Code: wire.CodeUnknownSender}, func() { binary.BigEndian.PutUint16(p[4:], conformance.Sender(0).ID) }},
		{wire.Refusal{Code: wire.CodeWrongEpoch, Value: 5}, func() { binary.BigEndian.PutUint16(p[6:], 5) }},
		{wire.Refusal{Code: wire.CodeLength, Value: 2}, func() { p = p[:wire.HotLen(2)-1] }},
		{wire.Refusal{Code: wire.CodeLength, Value: 2}, func() { p = p[:wire.HeaderLen] }},
		{wire.Refusal{Code: wire.CodeLength, Value: 2}, func() { p = p[:wire.HotLen(2)] }},
		{wire.Refusal{Code: wire.CodeMode}, func() { p[1] = 0 }},
		{wire.Refusal{Code: wire.CodeLayout}, func() { p[1] = byte(wire.FlagDense) }},
		{wire.Refusal{Code: wire.CodeLayout}, func() { s.SetMask(1<<2 | 1<<3) }},
	} {
		wantRefusal(t, r.send(p), step.want)
		step.mend()
	}
	// A duplicate is acknowledged, whatever its pairs are.
	s.SetSlot(2, 3)
	s.SetValue(2, float32(math.Inf(1)))
	s.SetValue(3, math.MaxFloat32)
	wantAck(t, r.send(p), 1)
	binary.BigEndian.PutUint32(p[8:], 2)
	wantRefusal(t, r.send(p), wire.Refusal{Code: wire.CodeNotFinite, Index: 2})
	s.SetValue(2, math.MaxFloat32)
	wantRefusal(t, r.send(p), wire.Refusal{Code: wire.CodeSlotRange, Index: 2, Value: 3})
	s.SetSlot(2, 2)
	wantRefusal(t, r.send(p), wire.Refusal{Code: wire.CodeOverflow, Index: 2})
	s.SetValue(2, 1)
	s.SetMask(1 << 2)
	wantAck(t, r.send(p), 2)
}

func TestAnswersNoAnswer(t *testing.T) {
	r := newRig(t, aggregator.JobConfig{Exp: -46, Slots: 3})
	for _, first := range []byte{0x15, 0x16, 0x25, 0xf6} {
		p := r.hot(1, 0)
		p[0] = first
		if answer := r.send(p); answer != nil {
			t.Errorf("a frame that begins with %#x was answered with %x", first, answer)
		}
	}
	if answer := r.send(make([]byte, wire.HeaderLen-1)); answer != nil {
		t.Errorf("11 bytes were answered with %x", answer)
	}
	c, err := r.Counters()
	if err != nil || c.Unexpected != 4 || c.Short != 1 {
		t.Errorf("counters are %+v (%v)", c, err)
	}
}

func TestReplyKeepsTag(t *testing.T) {
	r := newRig(t, aggregator.JobConfig{Exp: -46, Slots: 3})
	e, err := wire.NewEnvelope(conformance.Host(0), conformance.Aggregator)
	if err != nil {
		t.Fatal(err)
	}
	payload := r.hot(1, wire.FlagDense, pair{0, 0, 1})
	frame := append(make([]byte, e.Len()), payload...)
	e.Seal(frame)
	tag := []byte{0x81, 0x00, 0x6f, 0xff}
	frame = append(append(append([]byte(nil), frame[:12]...), tag...), frame[12:]...)
	reply := make([]byte, aggregator.MaxReply)
	v, n := r.Process(frame, reply)
	if v.Action != aggregator.Reply || string(reply[12:16]) != string(tag) {
		t.Fatalf("verdict %v, reply %x", v, reply[:n])
	}
	p, err := wire.ParseFrame(reply[:n], conformance.Host(0).Port)
	if err != nil || p.Src != conformance.Aggregator || p.Dst != conformance.Host(0) {
		t.Errorf("reply from %v to %v (%v)", p.Src, p.Dst, err)
	}
	wantAck(t, p.Payload, 1)
}
