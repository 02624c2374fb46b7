// SPDX-License-Identifier: Apache-2.0

package aggregator_test

import (
	"bytes"
	"errors"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/wire"
)

// sendAs returns the answer to a payload of a sender, and its destination.
func (r *rig) sendAs(sender int, payload []byte) (aggregator.Action, []byte) {
	reply := make([]byte, aggregator.MaxReplyPayload)
	h := conformance.Host(sender)
	v, n := r.ProcessPayload(netip.AddrPortFrom(h.IP, h.Port), payload, reply)
	return v.Action, reply[:n]
}

// TestRoutes adds, changes and removes routes.
func TestRoutes(t *testing.T) {
	r := newRig(t, aggregator.JobConfig{ID: 1, Exp: -46, Slots: 1})
	frame := seal(conformance.Host(0), conformance.Host(1), r.hot(1, 0, pair{0, 0, 1}))
	reply := make([]byte, aggregator.MaxReply)
	src, dst := conformance.Host(0).MAC, conformance.Host(1).MAC
	for i, step := range []struct {
		change func() error
		want   aggregator.Verdict
	}{
		{func() error { return r.AddRoute(src, 0) }, aggregator.Verdict{Action: aggregator.Pass}},
		{func() error { return r.AddRoute(dst, 3) }, aggregator.Verdict{Action: aggregator.Forward, Port: 3}},
		{func() error { return r.AddRoute(dst, 4) }, aggregator.Verdict{Action: aggregator.Forward, Port: 4}},
		{func() error { return r.RemoveRoute(dst) }, aggregator.Verdict{Action: aggregator.Pass}},
		{func() error { return r.RemoveRoute(dst) }, aggregator.Verdict{Action: aggregator.Pass}},
		{func() error { return r.AddRoute(dst, 5) }, aggregator.Verdict{Action: aggregator.Forward, Port: 5}},
		{r.Close, aggregator.Verdict{Action: aggregator.Pass}},
	} {
		if err := step.change(); err != nil {
			t.Fatal(err)
		}
		if v, n := r.Process(frame, reply); v != step.want || n != 0 {
			t.Errorf("step %d: %v and %d bytes, want %v", i, v, n, step.want)
		}
	}
	for name, err := range map[string]error{"AddRoute": r.AddRoute(src, 0), "RemoveRoute": r.RemoveRoute(src)} {
		if !errors.Is(err, aggregator.ErrClosed) {
			t.Errorf("%s of a closed model: %v", name, err)
		}
	}
}

// TestClosedModelHasNoJobs checks that later frames are refused.
func TestClosedModelHasNoJobs(t *testing.T) {
	r := newRig(t, aggregator.JobConfig{ID: 1, Exp: -46, Slots: 1})
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	wantRefusal(t, r.send(r.hot(1, 0, pair{0, 0, 1})), wire.Refusal{Code: wire.CodeUnknownJob})
}

// TestFirstIDBeyondTheJobs checks that it is no job's, neither in a frame nor in a call.
func TestFirstIDBeyondTheJobs(t *testing.T) {
	r := newRig(t, aggregator.JobConfig{ID: 1, Exp: -46, Slots: 1})
	p := r.hot(1, 0, pair{0, 0, 1})
	p[2], p[3] = 1, 0
	wantRefusal(t, r.send(p), wire.Refusal{Code: wire.CodeUnknownJob})
	if err := r.RemoveJob(aggregator.MaxJobs); !errors.Is(err, aggregator.ErrNoJob) {
		t.Error(err)
	}
}

// TestErrorsNameJobAndSender checks them in this order, and the epochs in theirs.
func TestErrorsNameJobAndSender(t *testing.T) {
	r := newRig(t, aggregator.JobConfig{ID: 5, Epoch: 2, Exp: -46, Slots: 1})
	_, noSender := r.SenderCounters(5, 77)
	check := aggregator.JobConfig{ID: 5, Epoch: 2, Workers: 3}
	for want, err := range map[string]error{
		"job 5: sender 77: no such sender":                                               noSender,
		"job 5: sender 21845: sender is admitted already":                                r.AddSender(5, conformance.Sender(1)),
		"sender 77: epoch 4, but answers to all 3 workers have the job's, 2":             check.CheckSender(aggregator.SenderConfig{ID: 77, Epoch: 4, IP: netip.IPv4Unspecified()}, false, 0),
		"address fe80::1: not supported by this data plane: aggregators have an IPv4 ad": newModelAt(netip.MustParseAddr("fe80::1")),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func newModelAt(a netip.Addr) error {
	_, err := aggregator.NewModel(aggregator.Config{Address: a})
	return err
}

// TestPortOfSenders checks that a sender without a port has the model's, and that an IPv4 address
// in an IPv6 one is the IPv4 address.
func TestPortOfSenders(t *testing.T) {
	m, err := aggregator.NewModel(aggregator.Config{Port: 7000})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{m, aggregator.JobConfig{ID: 1, Exp: -46, Slots: 1}}
	if err := m.AddJob(r.job); err != nil {
		t.Fatal(err)
	}
	s := conformance.Sender(0)
	mapped := netip.AddrFrom16(s.IP.As16())
	plain := s.IP
	s.IP = mapped
	if err := m.AddSender(1, s); err != nil {
		t.Fatal(err)
	}
	reply := make([]byte, aggregator.MaxReplyPayload)
	for i, c := range []struct {
		from  netip.AddrPort
		known bool
	}{{netip.AddrPortFrom(plain, 7000), true}, {netip.AddrPortFrom(mapped, 7000), true}, {netip.AddrPortFrom(plain, wire.DefaultPort), false}} {
		_, n := m.ProcessPayload(c.from, r.hot(uint32(i+1), 0, pair{0, 0, 1}), reply)
		if h, err := wire.ParseHeader(reply[:n]); err != nil || (h.Type == wire.TypeAck) != c.known {
			t.Errorf("from %v: %+v, %v", c.from, h, err)
		}
	}
}

// TestCountsFramesAndPairs checks the counters of the bank, the job and each sender.
func TestCountsFramesAndPairs(t *testing.T) {
	r := newRig(t, aggregator.JobConfig{ID: 1, Exp: -46, Slots: 10, Layouts: aggregator.Dense})
	harvest := func(frames, pairs uint64) {
		t.Helper()
		b, err := r.Swap(1)
		if err != nil || b.Frames != frames || b.Pairs != pairs || b.Job != 1 {
			t.Errorf("bank %+v (%v), want %d frames and %d pairs", b, err, frames, pairs)
		}
		if err := r.Clear(b); err != nil {
			t.Fatal(err)
		}
	}
	three := r.hot(1, wire.FlagDense, pair{0, 1, 1}, pair{1, 2, 1}, pair{2, 3, 1})
	r.send(three)
	r.send(r.hot(2, wire.FlagDense, pair{0, 1, 1}, pair{1, 2, 1}))
	r.send(three)
	r.send(r.hot(3, wire.FlagDense, pair{0, 10, 1}))
	harvest(2, 5)
	for range 3 { // the banks are cleared, both
		harvest(0, 0)
	}
	s, err := r.SenderCounters(1, conformance.Sender(0).ID)
	if want := (aggregator.SenderCounters{Applied: 2, Pairs: 5, Duplicates: 1, Refused: 1}); err != nil || s != want {
		t.Errorf("sender: %+v (%v), want %+v", s, err, want)
	}
	j, err := r.JobCounters(1)
	if err != nil || j.Applied != 2 || j.Pairs != 5 || j.Duplicates != 1 || j.Refused[wire.CodeSlotRange] != 1 || j.Refused.Total() != 1 {
		t.Errorf("job: %+v (%v)", j, err)
	}
	if s, err := r.SenderCounters(1, conformance.Sender(1).ID); err != nil || s != (aggregator.SenderCounters{}) {
		t.Errorf("the other sender: %+v (%v)", s, err)
	}
}

// fetchAdd is a job that answers with sums, and a payload of all its pairs.
func fetchAdd(t *testing.T) (*rig, []byte) {
	r := newRig(t, aggregator.JobConfig{ID: 1, Mode: aggregator.FetchAdd, Exp: -46, Slots: wire.MaxStripes * wire.Lanes, MaxStripes: wire.MaxStripes})
	p := make([]byte, wire.HotLen(wire.MaxStripes))
	wire.Header{Type: wire.TypeHot, Flags: wire.FlagWantSum, Job: 1, Sender: conformance.Sender(0).ID, Seq: 1}.Put(p)
	for i := range wire.MaxStripes {
		s := wire.StripeAt(p, i)
		s.SetMask(wire.LaneMask)
		for lane := range wire.Lanes {
			s.SetSlot(lane, uint16(i))
			s.SetValue(lane, 1)
		}
	}
	return r, p
}

// TestLargestReply fills the buffer that callers provide, whatever was in it.
func TestLargestReply(t *testing.T) {
	r, p := fetchAdd(t)
	frame := seal(conformance.Host(0), conformance.Aggregator, p)
	frame = slices.Concat(frame[:12], []byte{0x81, 0, 0, 100}, frame[12:])
	reply := bytes.Repeat([]byte{0xff}, aggregator.MaxReply)
	if v, n := r.Process(frame, reply); v.Action != aggregator.Reply || n != aggregator.MaxReply {
		t.Errorf("%v with %d bytes, want %d", v, n, aggregator.MaxReply)
	}
}

// TestReplyHidesTheBuffer checks that no earlier contents of the buffer are sent.
func TestReplyHidesTheBuffer(t *testing.T) {
	r, p := fetchAdd(t)
	wire.StripeAt(p, 0).SetMask(1)
	src := netip.AddrPortFrom(conformance.Host(0).IP, conformance.Host(0).Port)
	var answers [2][]byte
	for i, old := range []byte{0, 0xff} {
		reply := bytes.Repeat([]byte{old}, aggregator.MaxReplyPayload)
		_, n := r.ProcessPayload(src, p, reply)
		answers[i] = reply[:n]
	}
	if !bytes.Equal(answers[0], answers[1]) {
		t.Errorf("answers %x and %x", answers[0], answers[1])
	}
}

// TestFramesTakeNoMemory checks that a full frame, new or repeated, does not allocate.
func TestFramesTakeNoMemory(t *testing.T) {
	r, p := fetchAdd(t)
	reply := make([]byte, aggregator.MaxReplyPayload)
	src := netip.AddrPortFrom(conformance.Host(0).IP, conformance.Host(0).Port)
	seq := byte(0)
	allocs := testing.AllocsPerRun(100, func() {
		seq++
		p[11] = seq
		r.ProcessPayload(src, p, reply)
		r.ProcessPayload(src, p, reply)
	})
	if c, err := r.JobCounters(1); allocs != 0 || err != nil || c.Applied != 101 || c.Duplicates != 101 {
		t.Errorf("%g allocations; %+v, %v", allocs, c, err)
	}
}

// TestIgnoresIPv6 sends an IPv6 frame that has the model's IPv4 address at the destination's place
// in an IPv4 header.
func TestIgnoresIPv6(t *testing.T) {
	r := newRig(t, aggregator.JobConfig{ID: 1, Exp: -46, Slots: 1})
	src, dst := conformance.Host(0), conformance.Aggregator
	ip := netip.MustParseAddr("fd00::1").As16()
	address := dst.IP.As4()
	copy(ip[8:], address[:]) // bytes 16 to 19 of the header
	src.IP, dst.IP = netip.AddrFrom16(ip), netip.MustParseAddr("fd00::2")
	v, _ := r.Process(seal(src, dst, r.hot(1, 0, pair{0, 0, 1})), make([]byte, aggregator.MaxReply))
	if v.Action != aggregator.Pass {
		t.Errorf("%v", v)
	}
}

// TestGroupsCoverTheSlots counts groups of 44 slots.
func TestGroupsCoverTheSlots(t *testing.T) {
	for slots, want := range map[int]int{1: 1, 43: 1, 44: 1, 45: 2, 66: 2, 88: 2, 89: 3} {
		if got := aggregator.Groups(aggregator.JobConfig{Mode: aggregator.Sync, Slots: slots, MaxStripes: 2}); got != want {
			t.Errorf("%d slots: %d groups, want %d", slots, got, want)
		}
	}
	if n := aggregator.Groups(aggregator.JobConfig{Slots: 44, MaxStripes: 2}); n != 0 {
		t.Errorf("%d groups without rounds", n)
	}
}

// TestShapeOfGroups accepts the last group, of one full stripe, and nothing else that begins there
// or after it.
func TestShapeOfGroups(t *testing.T) {
	r := newRig(t, aggregator.JobConfig{ID: 1, Mode: aggregator.Sync, Exp: -46, Workers: conformance.Senders, Slots: 66, MaxStripes: 2})
	seq := uint32(0)
	frame := func(group, numbers int) []byte {
		seq++
		h := wire.Header{Type: wire.TypeHot, Job: 1, Sender: conformance.Sender(0).ID, Seq: seq}
		return groupPayload(r.job, h, group, make([]uint32, numbers))
	}
	wantRefusal(t, r.send(frame(1, 44)), wire.Refusal{Code: wire.CodeLength, Value: 1})
	wantRefusal(t, r.send(frame(1, 21)), wire.Refusal{Code: wire.CodeLayout})
	wantRefusal(t, r.send(frame(0, 22)), wire.Refusal{Code: wire.CodeLength, Value: 2})
	wantRefusal(t, r.send(frame(2, 22)), wire.Refusal{Code: wire.CodeSlotRange, Value: 66})
	headless := frame(2, 22)
	wire.StripeAt(headless, 0).SetMask(1<<wire.Lanes - 2) // the slot of lane 0 is ignored
	wantRefusal(t, r.send(headless), wire.Refusal{Code: wire.CodeLayout})
	wantAck(t, r.send(frame(1, 22)), seq)
	wantAck(t, r.send(frame(0, 44)), seq)

	r = newRig(t, aggregator.JobConfig{ID: 1, Mode: aggregator.Sync, Exp: -46, Workers: conformance.Senders, Slots: 44, MaxStripes: 2})
	wantRefusal(t, r.send(frame(1, 22)), wire.Refusal{Code: wire.CodeSlotRange, Value: 44}) // the first slot that does not exist
}

// TestIterationsOfScales checks that reports are for the current iteration or the previous one.
func TestIterationsOfScales(t *testing.T) {
	r := newRig(t, aggregator.JobConfig{ID: 1, Arithmetic: aggregator.Fixed, Exp: -20, Workers: conformance.Senders, Slots: 1})
	report := func(sender int, iteration uint32, exponent uint8) (aggregator.Action, []byte) {
		h := wire.Header{Type: wire.TypeHot, Job: 1, Sender: conformance.Sender(sender).ID, Seq: 1}
		return r.sendAs(sender, wire.PutScale(make([]byte, wire.ScaleLen), h, wire.ScaleReport{Iteration: iteration, Exponent: exponent}))
	}
	refused := func(iteration, want uint32) {
		t.Helper()
		_, answer := report(0, iteration, 1)
		wantRefusal(t, answer, wire.Refusal{Code: wire.CodeRound, Value: want})
	}
	refused(math.MaxUint32, 0)
	refused(1, 0)
	for sender, want := range []aggregator.Action{aggregator.Reply, aggregator.Reply, aggregator.Broadcast} {
		if got, _ := report(sender, 0, uint8(10+sender)); got != want {
			t.Errorf("report %d: %v", sender, got)
		}
		if sender < 2 {
			report(sender, 0, 1) // again
		}
	}
	action, answer := report(0, 0, 1) // late
	if d, err := wire.ParseScale(answer); err != nil || action != aggregator.Reply || d != (wire.ScaleReport{Iteration: 0, Exponent: 12}) {
		t.Errorf("late: %v, %+v, %v", action, d, err)
	}
	refused(2, 1)
	refused(math.MaxUint32, 1)
	if c, err := r.JobCounters(1); err != nil || c.Scales != 1 || c.Duplicates != 3 || c.Refused[wire.CodeRound] != 4 {
		t.Errorf("%+v, %v", c, err)
	}
	if s, err := r.SenderCounters(1, conformance.Sender(0).ID); err != nil || s.Duplicates != 2 || s.Refused != 4 {
		t.Errorf("%+v, %v", s, err)
	}
}
