// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"testing"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/wire"
)

// lengthsJob accepts the longest frames.
var lengthsJob = aggregator.JobConfig{ID: 250, Epoch: 4, Mode: aggregator.FetchAdd, Exp: -46, Slots: 3000, MaxStripes: wire.MaxStripes}

// ofLength returns a sealed frame whose body has n bytes: dense stripes with a pair in each lane,
// of which the last is cut.
func ofLength(t *testing.T, seq uint32, n int) []byte {
	t.Helper()
	stripes := (n + wire.StripeLen - 1) / wire.StripeLen
	payload := make([]byte, wire.HotLen(stripes))
	wire.Header{
		Type: wire.TypeHot, Flags: wire.FlagDense | wire.FlagWantSum, Job: lengthsJob.ID, Sender: conformance.Sender(0).ID, Epoch: lengthsJob.Epoch, Seq: seq,
	}.Put(payload)
	for i := range stripes {
		s := wire.StripeAt(payload, i)
		s.SetMask(wire.LaneMask)
		for lane := range wire.Lanes {
			s.SetSlot(lane, uint16(i*wire.Lanes+lane))
			s.SetValue(lane, float32(i+1)/16)
		}
	}
	e, err := wire.NewEnvelope(conformance.Host(0), conformance.Aggregator)
	if err != nil {
		t.Fatal(err)
	}
	frame := make([]byte, e.Len()+wire.HeaderLen+n)
	copy(frame[e.Len():], payload)
	e.Seal(frame)
	return frame
}

// Bodies of every length that a test run has room for: bodies of 1 to 25 whole stripes are added,
// all others are refused, and answers and sums equal the model's.
func TestBodiesOfEveryLength(t *testing.T) {
	d, m := open(t), newModel(t)
	for _, plane := range []aggregator.Plane{d, m} {
		if err := conformance.StartJob(plane, lengthsJob); err != nil {
			t.Fatal(err)
		}
	}
	p := &conformance.Pair{Device: d, Model: m}
	const most = testRunRoom - wire.EnvelopeLen - wire.HeaderLen
	for n := range most + 1 {
		if _, err := p.Process(ofLength(t, uint32(n+1), n)); err != nil {
			t.Fatalf("%d bytes: %v", n, err)
		}
	}
	if err := p.Harvest(lengthsJob.ID); err != nil {
		t.Error(err)
	}
	c, err := d.JobCounters(lengthsJob.ID)
	const whole = wire.MaxStripes
	if refused := uint64(most + 1 - whole); err != nil || c.Applied != whole || c.Refused[wire.CodeLength] != refused {
		t.Errorf("%d frames applied, %d refused by their length, want %d and %d; %v", c.Applied, c.Refused[wire.CodeLength], whole, refused, err)
	}
}

// A frame of 26 stripes does not fit a driver's buffer, but a program in generic mode gets it. Like
// the model, it refuses the length: the checksum is correct and covers all stripes.
func TestFrameOf26Stripes(t *testing.T) {
	inNetwork(t, 1, testbed.VethConfig{MTU: 9000}, func() {
		d, m := open(t), newModel(t)
		for _, plane := range []aggregator.Plane{d, m} {
			if err := conformance.StartJob(plane, lengthsJob); err != nil {
				t.Fatal(err)
			}
		}
		if err := d.Attach("port0", afxdp.AttachGeneric); err != nil {
			t.Fatal(err)
		}
		from := openTap(t, "host0")
		reply := make([]byte, aggregator.MaxReply)
		for i, stripes := range []int{wire.MaxStripes, wire.MaxStripes + 1} {
			frame := ofLength(t, uint32(i+1), stripes*wire.StripeLen)
			v, n := m.Process(frame, reply)
			if v.Action != aggregator.Reply {
				t.Fatalf("the model's verdict is %v", v)
			}
			from.send(t, frame)
			from.expect(t, reply[:n])
		}
	})
}
