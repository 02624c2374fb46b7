// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"fmt"
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/wire"
)

// openWithBudget loads the program with a budget for costly frames.
func openWithBudget(tb testing.TB, budget int) *device {
	tb.Helper()
	return openWith(tb, Options{Address: conformance.Aggregator.IP, Budget: budget})
}

// costly are changes that make a valid frame of ten dense stripes costly, and whether it is then
// refused in a job of 30,000 slots whose last slot holds three quarters of the range.
var costly = []struct {
	name    string
	mode    aggregator.Mode
	refused bool
	change  func(payload []byte)
}{
	{"last rank out of range", aggregator.Combine, true, func(p []byte) { wire.StripeAt(p, 9).SetSlot(21, 65535) }},
	{"last value NaN", aggregator.Combine, true, func(p []byte) { wire.StripeAt(p, 9).SetBits(21, 0x7fc00000) }},
	{"half-range values", aggregator.Combine, false, halves},
	{"last sum overflows", aggregator.Combine, true, func(p []byte) {
		s := wire.StripeAt(p, 9)
		s.SetSlot(21, 29_999)
		s.SetValue(21, float32(math.Ldexp(1.9, 61-46)))
	}},
	{"WANT_SUM, last rank out of range", aggregator.FetchAdd, true, func(p []byte) { wire.StripeAt(p, 9).SetSlot(21, 65535) }},
	{"WANT_SUM, half-range values", aggregator.FetchAdd, false, halves},
}

// halves adds half the range to a slot and subtracts it again.
func halves(p []byte) {
	s := wire.StripeAt(p, 9)
	for lane, sign := range map[int]float64{20: -1, 21: 1} {
		s.SetSlot(lane, 29_998)
		s.SetValue(lane, float32(math.Ldexp(sign, 62-46)))
	}
}

// startCostly starts a job for the costly frames of one kind.
func startCostly(tb testing.TB, d *device, mode aggregator.Mode) (aggregator.JobConfig, wire.Flags) {
	tb.Helper()
	job := aggregator.JobConfig{ID: 21, Mode: mode, Exp: -46, Slots: 30_000}
	if err := conformance.StartJob(d, job); err != nil {
		tb.Fatal(err)
	}
	d.places[job.ID].job.banks[0].slots[29_999] = 3 << 61
	if mode == aggregator.FetchAdd {
		return job, wire.FlagWantSum
	}
	return job, 0
}

// The costly frames of a sender that are processed in a second are limited: frames beyond the limit
// are dropped, counted, and change nothing. Ordinary frames, and costly frames of other senders,
// are not affected.
func TestBudget(t *testing.T) {
	const budget = 5 // few, because a slow machine would never use up more
	d := openWithBudget(t, budget)
	for _, c := range costly {
		t.Run(c.name, func(t *testing.T) {
			d.forget(t)
			job, flags := startCostly(t, d, c.mode)
			good := hotFrames(t, job, wire.DefaultStripes, 29_000, flags)
			seq := uint32(0)
			send := func(from int, bad bool) aggregator.Action {
				t.Helper()
				frame := append([]byte(nil), good[0]...)
				seq++
				h := wire.Header{Type: wire.TypeHot, Flags: flags | wire.FlagDense, Job: job.ID, Sender: conformance.Sender(from).ID, Seq: seq}
				h.Put(frame[wire.EnvelopeLen:])
				mac := conformance.Sender(from).MAC
				copy(frame[6:], mac[:])
				copy(frame[26:], conformance.Sender(from).IP.AsSlice())
				if bad {
					c.change(frame[wire.EnvelopeLen:])
				}
				conformance.Repair(frame)
				v, _, err := d.Process(frame, make([]byte, aggregator.MaxReply))
				if err != nil {
					t.Fatal(err)
				}
				return v.Action
			}
			begin := time.Now()
			dropped, processed := uint64(0), 0
			for dropped < 3 { // more than once, because a budget also grows
				switch before := stateOf(t, d.Aggregator, job.ID); send(0, true) {
				case aggregator.Reply:
					processed++
					if most := budget + int(budget*time.Since(begin).Seconds()); processed > most {
						t.Fatalf("%d frames were processed in %v, want %d at most", processed, time.Since(begin), most)
					}
				case aggregator.Drop:
					dropped++
					if !reflect.DeepEqual(stateOf(t, d.Aggregator, job.ID), before) {
						t.Fatal("a frame that was not paid for has changed the job")
					}
				}
			}
			if processed < budget {
				t.Errorf("%d frames were processed, want %d at least", processed, budget)
			}
			if c.name == "half-range values" {
				// After its first such frame a sender's frames are surveyed before they are added,
				// so frames that could be added cost budget, too.
				for again := 0; ; again++ {
					seq = 0 // number 1
					if v := send(0, true); v == aggregator.Drop {
						dropped++
						break
					}
					if again == 100*budget {
						t.Fatal("costly frames are processed without end, if they are repeated")
					}
				}
				seq = uint32(processed) + uint32(dropped)
			}
			for range 2 * budget {
				if v := send(0, false); v != aggregator.Reply {
					t.Fatalf("an ordinary frame of that sender: %v", v)
				}
			}
			if v := send(1, true); v != aggregator.Reply {
				t.Errorf("a costly frame of another sender: %v", v)
			}
			counted, err := d.JobCounters(job.ID)
			if err != nil {
				t.Fatal(err)
			}
			refused := uint64(0)
			if c.refused {
				refused = uint64(processed) + 1
			}
			if counted.Throttled != dropped || counted.Refused.Total() != refused {
				t.Errorf("%d throttled, %d refused; want %d and %d", counted.Throttled, counted.Refused.Total(), dropped, refused)
			}
			for deadline := time.Now().Add(eventLimit); send(0, true) != aggregator.Reply; time.Sleep(10 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("a budget that is used up never grows again")
				}
			}
		})
	}
}

// Ordinary frames cost no budget, in any arithmetic.
func TestOrdinaryFramesAreFree(t *testing.T) {
	const budget = 5
	d := openWithBudget(t, budget)
	for _, arithmetic := range []aggregator.Arithmetic{aggregator.Exact, aggregator.Fixed, aggregator.LUT} {
		for mode, flags := range map[aggregator.Mode]wire.Flags{aggregator.Combine: 0, aggregator.FetchAdd: wire.FlagWantSum} {
			d.forget(t)
			job := aggregator.JobConfig{ID: 21, Mode: mode, Arithmetic: arithmetic, Exp: aggregator.DefaultExp(arithmetic), Slots: 30_000, MaxStripes: wire.MaxStripes}
			if err := conformance.StartJob(d, job); err != nil {
				t.Fatal(err)
			}
			for i, frame := range hotFrames(t, job, wire.MaxStripes, job.Slots, flags)[:10*budget] {
				wire.Header{
					Type: wire.TypeHot, Flags: flags | wire.FlagDense, Job: job.ID, Sender: conformance.Sender(0).ID, Seq: uint32(i + 1),
				}.Put(frame[wire.EnvelopeLen:])
				conformance.Repair(frame)
				if v, _, err := d.Process(frame, make([]byte, aggregator.MaxReply)); err != nil || v.Action != aggregator.Reply {
					t.Fatalf("%v, mode %v, frame %d: %v, %v", arithmetic, mode, i, v.Action, err)
				}
			}
			counted, err := d.JobCounters(job.ID)
			if err != nil || counted.Throttled != 0 || counted.Refused.Total() != 0 {
				t.Errorf("%v, mode %v: %d throttled, %d refused, %v", arithmetic, mode, counted.Throttled, counted.Refused.Total(), err)
			}
		}
	}
}

// The cost of costly frames, with and without a budget that is used up.
func BenchmarkCostly(b *testing.B) {
	for _, c := range costly {
		for _, budget := range []int{-1, 1} {
			b.Run(fmt.Sprintf("%s/budget=%d", c.name, budget), func(b *testing.B) {
				d := openWithBudget(b, budget)
				job, flags := startCostly(b, d, c.mode)
				frames := hotFrames(b, job, wire.DefaultStripes, 29_000, flags)
				for _, f := range frames {
					c.change(f[wire.EnvelopeLen:])
					conformance.Repair(f)
				}
				answer := len(frames[0]) // also of dropped frames
				if budget < 0 {
					answer = wire.EnvelopeLen + wire.HeaderLen
				}
				feeder, err := d.NewFeeder(frames, answer)
				if err != nil {
					b.Fatal(err)
				}
				defer feeder.Close()
				ns, _, err := feeder.Run(max(b.N, 1000))
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(ns, "ns/frame")
			})
		}
	}
}
