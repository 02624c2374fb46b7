// SPDX-License-Identifier: Apache-2.0

package p4

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/internal/num/fixedpoint"
	"github.com/libra-ina/libra/wire"
	"github.com/libra-ina/libra/wire/golden"
)

// Numbers of all exponents, and sums of all magnitudes, at the ends and in the middle
// of the possible units.
func TestConversionsEqualModel(t *testing.T) {
	p := pair(t, openSimulated(t, nil), jobs)
	rng := rand.New(rand.NewPCG(12, 13))
	e, err := wire.NewEnvelope(conformance.Host(0), conformance.Aggregator)
	if err != nil {
		t.Fatal(err)
	}
	frame := make([]byte, e.Len()+wire.HotLen(1))
	for i, exp := range []int{fixedpoint.MinExp, -99, -63, -47, fixedpoint.DefaultExp, -1, 1, 59, fixedpoint.MaxExp} {
		job := aggregator.JobConfig{
			ID: uint16(110 + i), Epoch: 9, Mode: aggregator.FetchAdd, Slots: wire.Lanes, Exp: exp, MaxStripes: 1, Layouts: aggregator.Aligned,
		}
		for _, plane := range []aggregator.Plane{p.Device, p.Model} {
			if err := conformance.StartJob(plane, job); err != nil {
				t.Fatal(err)
			}
		}
		for seq := range uint32(200) {
			wire.Header{
				Type: wire.TypeHot, Flags: wire.FlagWantSum, Job: job.ID, Sender: conformance.Sender(0).ID, Epoch: job.Epoch, Seq: seq + 1,
			}.Put(frame[e.Len():])
			s := wire.StripeAt(frame[e.Len():], 0)
			s.SetMask(wire.LaneMask)
			for lane := range wire.Lanes {
				// From 2^-3 to 2^64 units; most often small compared with the sums.
				exponent := 127 + exp - 3 + rng.IntN(rng.IntN(67)+1)
				s.SetBits(lane, uint32(min(max(exponent, 0), 255))<<23|rng.Uint32()&0x807fffff)
				if rng.IntN(8) == 0 { // halves of the last place of a float32
					s.SetBits(lane, math.Float32bits(float32(math.Ldexp(1+2*float64(rng.IntN(2)), exp+rng.IntN(40)))))
				}
			}
			e.Seal(frame)
			if _, err := p.Process(frame); err != nil {
				t.Fatalf("unit 2^%d: %v", exp, err)
			}
		}
		if err := p.Harvest(job.ID); err != nil {
			t.Fatal(err)
		}
	}
}

func TestGoldenFramesEqualModel(t *testing.T) {
	p := pair(t, openSimulated(t, nil), jobs)
	cases, err := golden.Load("../wire/testdata")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range cases {
		for _, time := range []string{"first", "again"} {
			if len(c.Bytes) < 14 {
				continue // no network delivers it
			}
			if _, err := p.Process(c.Bytes); err != nil {
				t.Errorf("%s, %s: %v", c.Name, time, err)
			}
		}
	}
	for _, j := range jobs {
		if err := p.Harvest(j.ID); err != nil {
			t.Error(err)
		}
	}
	if err := p.CompareCounters(); err != nil {
		t.Error(err)
	}
}

// onesFrame returns a frame of sender 0 that adds 1 to each lane of row 0.
func onesFrame(tb testing.TB, job aggregator.JobConfig, seq uint32) []byte {
	tb.Helper()
	e, err := wire.NewEnvelope(conformance.Host(0), conformance.Aggregator)
	if err != nil {
		tb.Fatal(err)
	}
	frame := make([]byte, e.Len()+wire.HotLen(1))
	wire.Header{Type: wire.TypeHot, Job: job.ID, Sender: conformance.Sender(0).ID, Epoch: job.Epoch, Seq: seq}.Put(frame[e.Len():])
	s := wire.StripeAt(frame[e.Len():], 0)
	s.SetMask(wire.LaneMask)
	for lane := range wire.Lanes {
		s.SetValue(lane, 1)
	}
	e.Seal(frame)
	return frame
}
