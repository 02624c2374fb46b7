// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/wire"
)

// hotFrames returns FeederFrames different dense HOT frames, all with sequence number 0.
func hotFrames(tb testing.TB, job aggregator.JobConfig, stripes, spread int, flags wire.Flags) [][]byte {
	tb.Helper()
	return manyHotFrames(tb, job, stripes, spread, flags, FeederFrames)
}

func manyHotFrames(tb testing.TB, job aggregator.JobConfig, stripes, spread int, flags wire.Flags, count int) [][]byte {
	tb.Helper()
	rng := rand.New(rand.NewPCG(1, 2))
	e, err := wire.NewEnvelope(conformance.Host(0), conformance.Aggregator)
	if err != nil {
		tb.Fatal(err)
	}
	frames := make([][]byte, count)
	for i := range frames {
		frame := make([]byte, e.Len()+wire.HotLen(stripes))
		payload := frame[e.Len():]
		wire.Header{
			Type: wire.TypeHot, Flags: flags | wire.FlagDense, Job: job.ID,
			Sender: conformance.Sender(0).ID, Epoch: job.Epoch,
		}.Put(payload)
		for k := range stripes {
			s := wire.StripeAt(payload, k)
			page := zipfian(rng, job.Slots) / aggregator.PageSlots
			s.SetPage(page, wire.LaneMask)
			for lane := range wire.Lanes {
				slot := rng.IntN(spread)
				if count > FeederFrames && page == 0 {
					slot = zipfian(rng, spread)
				}
				s.SetSlot(lane, uint16(slot))
				if x := rng.NormFloat64(); job.Arithmetic == aggregator.Fixed {
					s.SetBits(lane, uint32(int32(1000*x)))
				} else {
					s.SetValue(lane, float32(x)*1e-3)
				}
			}
		}
		e.Seal(frame)
		frames[i] = frame
	}
	return frames
}

// zipfian draws a rank below n, about as a Zipf distribution of exponent 1 does.
func zipfian(rng *rand.Rand, n int) int { return int(math.Pow(float64(n), rng.Float64())) - 1 }

// BenchmarkPages feeds frames of 10 stripes to jobs of up to 64 pages, too many for caches to hold
// the slots that they name. The ranks have a Zipf distribution of exponent 1; beyond the first page
// they are nearly uniform within a page.
func BenchmarkPages(b *testing.B) {
	needPrivileges(b)
	for _, pages := range []int{1, 2, 4, 16, 64} {
		b.Run(fmt.Sprintf("slots=%d", pages*aggregator.PageSlots), func(b *testing.B) {
			job := aggregator.JobConfig{Exp: aggregator.DefaultExp(aggregator.Exact), Slots: pages * aggregator.PageSlots}
			benchmarkJob(b, job, wire.DefaultStripes, aggregator.PageSlots, 16*FeederFrames)
		})
	}
}

func BenchmarkAggregate(b *testing.B) {
	needPrivileges(b)
	for _, arithmetic := range []aggregator.Arithmetic{aggregator.Exact, aggregator.Fixed, aggregator.LUT} {
		for _, mode := range []aggregator.Mode{aggregator.Combine, aggregator.FetchAdd} {
			for _, size := range [][2]int{{1, 1000}, {10, 1000}, {1, aggregator.PageSlots}, {10, aggregator.PageSlots}} {
				stripes, spread := size[0], size[1]
				b.Run(fmt.Sprintf("%v/%v/ranks=%d/stripes=%d", arithmetic, mode, spread, stripes), func(b *testing.B) {
					job := aggregator.JobConfig{Mode: mode, Arithmetic: arithmetic, Exp: aggregator.DefaultExp(arithmetic), Slots: aggregator.PageSlots}
					benchmarkJob(b, job, stripes, spread, FeederFrames)
				})
			}
		}
	}
}

// benchmarkJob feeds a number of frames of a job with random ranks below spread.
func benchmarkJob(b *testing.B, job aggregator.JobConfig, stripes, spread, count int) {
	b.Helper()
	d := open(b)
	if err := conformance.StartJob(d, job); err != nil {
		b.Fatal(err)
	}
	var flags wire.Flags
	if job.Mode == aggregator.FetchAdd {
		flags = wire.FlagWantSum
	}
	frames := manyHotFrames(b, job, stripes, spread, flags, count)
	answer := wire.EnvelopeLen + wire.HeaderLen
	if flags != 0 {
		answer = len(frames[0])
	}
	feeder, err := d.NewFeeder(frames, answer)
	if err != nil {
		b.Fatal(err)
	}
	defer feeder.Close()
	n := min(b.N, 1<<20) // more runs give no more digits
	b.ResetTimer()
	ns, own, err := feeder.Run(n)
	b.StopTimer()
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(ns, "ns/frame")
	b.ReportMetric(ns/float64(stripes*wire.Lanes), "ns/pair")
	b.ReportMetric(own, "feeder-ns")
	j, err := d.JobCounters(job.ID)
	if err != nil {
		b.Fatal(err)
	}
	if j.Applied < uint64(n) {
		b.Fatalf("%d frames, but %+v", b.N, j)
	}
}

func BenchmarkModel(b *testing.B) {
	for _, stripes := range []int{1, 10} {
		b.Run(fmt.Sprintf("stripes=%d", stripes), func(b *testing.B) {
			m, err := aggregator.NewModel(aggregator.Config{Address: conformance.Aggregator.IP})
			if err != nil {
				b.Fatal(err)
			}
			job := aggregator.JobConfig{Exp: -46, Slots: aggregator.PageSlots}
			if err := conformance.StartJob(m, job); err != nil {
				b.Fatal(err)
			}
			frames := hotFrames(b, job, stripes, job.Slots, 0)
			reply := make([]byte, aggregator.MaxReply)
			src := netip.AddrPortFrom(conformance.Host(0).IP, wire.DefaultPort)
			seq := uint32(0)
			for b.Loop() {
				seq++
				payload := frames[seq%FeederFrames][wire.EnvelopeLen:]
				binary.BigEndian.PutUint32(payload[8:], seq)
				m.ProcessPayload(src, payload, reply)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*stripes*wire.Lanes), "ns/pair")
		})
	}
}
