// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/wire"
)

// pairBits returns a function that draws the bits of a pair: numbers as in training, numbers that
// move sums to the ends of their range and back, and sometimes arbitrary bits.
func pairBits(rng *rand.Rand, a aggregator.Arithmetic) func() uint32 {
	return func() uint32 {
		kind := rng.IntN(200)
		switch {
		case kind == 0 && a == aggregator.Fixed:
			return [...]uint32{1 << 31, math.MaxInt32, 0, math.MaxUint32}[rng.IntN(4)]
		case kind == 0: // but no infinities, which would refuse most frames
			return rng.Uint32() &^ (1 << (23 + rng.IntN(8)))
		case a == aggregator.Fixed:
			return uint32(int32(rng.NormFloat64() * math.Exp2(float64(rng.IntN(31)))))
		case a == aggregator.LUT && kind < 20:
			return math.Float32bits(float32(rng.NormFloat64() * 0x1p126))
		default:
			return math.Float32bits(float32(rng.NormFloat64() * math.Exp2(float64(rng.IntN(20)-10))))
		}
	}
}

// setPairs gives every pair of a sealed HOT frame new bits.
func setPairs(frame []byte, stripes int, bits func() uint32) {
	for i := range stripes {
		s := wire.StripeAt(frame[wire.EnvelopeLen:], i)
		for lane := range wire.Lanes {
			s.SetBits(lane, bits())
		}
	}
	conformance.Repair(frame)
}

func TestArithmeticsEqualModel(t *testing.T) {
	p := openPair(t)
	id := uint16(120)
	for _, arithmetic := range []aggregator.Arithmetic{aggregator.Exact, aggregator.LUT, aggregator.Fixed} {
		for _, mode := range []aggregator.Mode{aggregator.Combine, aggregator.FetchAdd} {
			job := aggregator.JobConfig{ID: id, Mode: mode, Arithmetic: arithmetic, Exp: aggregator.DefaultExp(arithmetic), Slots: 300, MaxStripes: wire.MaxStripes}
			id++
			t.Run(fmt.Sprintf("%v-%v", arithmetic, mode), func(t *testing.T) {
				for _, plane := range []aggregator.Plane{p.Device, p.Model} {
					if err := conformance.StartJob(plane, job); err != nil {
						t.Fatal(err)
					}
				}
				rng := rand.New(rand.NewPCG(uint64(id), 14))
				var flags wire.Flags
				if mode == aggregator.FetchAdd {
					flags = wire.FlagWantSum
				}
				draw := pairBits(rng, arithmetic)
				for seq := range uint32(3000) {
					sender, stripes := rng.IntN(conformance.Senders), 1+rng.IntN(wire.MaxStripes)
					frame := denseFrame(t, rng, sender, job, seq+1-rng.Uint32N(2), flags, stripes, job.Slots, func() float32 { return 0 })
					setPairs(frame, stripes, draw)
					if _, err := p.Process(frame); err != nil {
						t.Fatal(err)
					}
				}
				got, err := p.Device.JobCounters(job.ID)
				if err != nil {
					t.Fatal(err)
				}
				want, err := p.Model.JobCounters(job.ID)
				if err != nil {
					t.Fatal(err)
				}
				if got != want {
					t.Errorf("counters are %+v, the model's %+v", got, want)
				}
				if want.Applied == 0 || want.Duplicates == 0 || (want.Saturated == 0) != (arithmetic == aggregator.Exact) {
					t.Errorf("the test wants sums that are cut, and duplicates: %+v", want)
				}
				if err := p.Harvest(job.ID); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}
