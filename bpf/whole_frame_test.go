// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/internal/num/fixedpoint"
	"github.com/libra-ina/libra/wire"
)

// wholeJob has sums that are just within the range in its last wire.Lanes ranks, one in each lane.
var wholeJob = aggregator.JobConfig{Exp: fixedpoint.DefaultExp, Slots: 15 * wire.Lanes, MaxStripes: wire.MaxStripes}

const (
	fullRank = 14 * wire.Lanes // the first of them
	// The least rank that an aligned pair can name whose lower 16 bits are a rank of the job.
	wrappedRank = (65536/wire.Lanes + 1) * wire.Lanes
	// In units of 2^DefaultExp: half the range, from which on a number or a sum is not plain, and
	// the full sums.
	halfRange = 1 << (62 + fixedpoint.DefaultExp)
	fullSum   = 1.99 * halfRange
)

// wholeFrame is a HOT frame that a test changes and seals.
type wholeFrame struct {
	bytes   []byte
	dense   bool
	stripes int
}

func newWholeFrame(t *testing.T, job uint16, seq uint32, flags wire.Flags, stripes int) *wholeFrame {
	t.Helper()
	e, err := wire.NewEnvelope(conformance.Host(0), conformance.Aggregator)
	if err != nil {
		t.Fatal(err)
	}
	f := &wholeFrame{bytes: make([]byte, e.Len()+wire.HotLen(stripes)), dense: flags&wire.FlagDense != 0, stripes: stripes}
	wire.Header{Type: wire.TypeHot, Flags: flags, Job: job, Sender: conformance.Sender(0).ID, Seq: seq}.Put(f.bytes[e.Len():])
	e.Seal(f.bytes)
	return f
}

// set uses a lane, by its position in the frame, for a pair. In the aligned layout the pair's rank
// is the lane's rank in the slot of the given rank.
func (f *wholeFrame) set(at, rank int, bits uint32) {
	s, lane := wire.StripeAt(f.bytes[wire.EnvelopeLen:], at/wire.Lanes), at%wire.Lanes
	s.SetMask(s.Mask() | 1<<lane)
	slot := rank
	if !f.dense {
		slot = rank / wire.Lanes
	}
	s.SetSlot(lane, uint16(slot))
	s.SetBits(lane, bits)
}

// fill sets three lanes in four to pairs that can be added, many of them to the same
// few ranks.
func (f *wholeFrame) fill(rng *rand.Rand) {
	for at := range f.stripes * wire.Lanes {
		if rng.IntN(4) == 0 {
			continue
		}
		bits := math.Float32bits(float32(rng.NormFloat64() * math.Exp2(float64(rng.IntN(60)-50))))
		if rng.IntN(16) == 0 {
			bits &= 1 << 31 // zero
		}
		f.set(at, rng.IntN(4*wire.Lanes), bits)
	}
}

func float(x float64) uint32 { return math.Float32bits(float32(x)) }

// A pair that cannot be added, at any position of a frame of 25 stripes, makes the program refuse
// the frame and leave all sums unchanged, even if pairs before it, and of the same ranks, were
// added. Answers and sums always equal the model's.
func TestFramesAreAddedWholeOrNotAtAll(t *testing.T) {
	p := openPair(t)
	d := p.Device.(*device)
	pairs := []struct {
		name    string
		refused bool
		rank    int // of the pair, or -1 for any
		bits    func(rng *rand.Rand) uint32
	}{
		{"NaN", true, -1, func(rng *rand.Rand) uint32 { return 0x7fc00000 | rng.Uint32()&0x803fffff }},
		{"infinity", true, -1, func(rng *rand.Rand) uint32 { return 0x7f800000 | rng.Uint32()&(1<<31) }},
		{"out of range", true, -1, func(rng *rand.Rand) uint32 { return float(2*halfRange) | rng.Uint32()&0x807fffff }},
		{"rank beyond the last", true, wholeJob.Slots, func(rng *rand.Rand) uint32 { return float(rng.NormFloat64()) }},
		{"greatest rank", true, 65535 - wire.Lanes, func(rng *rand.Rand) uint32 { return float(rng.NormFloat64()) }},
		{"rank of which the lower 16 bits are the job's", true, wrappedRank, func(rng *rand.Rand) uint32 { return float(rng.NormFloat64()) }},
		{"zero for a rank beyond the last", true, wholeJob.Slots, func(rng *rand.Rand) uint32 { return rng.Uint32() & (1 << 31) }},
		{"sum overflows", true, fullRank, func(*rand.Rand) uint32 { return float(0.9 * halfRange) }},
		{"upper half, sum overflows", true, fullRank, func(*rand.Rand) uint32 { return float(1.5 * halfRange) }},
		{"sum in the upper half", false, fullRank, func(*rand.Rand) uint32 { return float(1e-3) }},
		{"upper half", false, 5 * wire.Lanes, func(rng *rand.Rand) uint32 { return float(halfRange) | rng.Uint32()&(1<<31) }},
	}
	id := uint16(130)
	for _, mode := range []aggregator.Mode{aggregator.Combine, aggregator.FetchAdd} {
		for _, layout := range []wire.Flags{0, wire.FlagDense} {
			job := wholeJob
			job.ID, job.Mode = id, mode
			id++
			flags := layout
			if mode == aggregator.FetchAdd {
				flags |= wire.FlagWantSum
			}
			t.Run(fmt.Sprintf("%v, flags %#x", mode, uint8(flags)), func(t *testing.T) {
				for _, plane := range []aggregator.Plane{p.Device, p.Model} {
					if err := conformance.StartJob(plane, job); err != nil {
						t.Fatal(err)
					}
				}
				rng := rand.New(rand.NewPCG(uint64(id), 15))
				seq := uint32(0)
				// send returns whether the frame was added.
				send := func(f *wholeFrame) bool {
					t.Helper()
					conformance.Repair(f.bytes)
					before, err := p.Model.JobCounters(job.ID)
					if err != nil {
						t.Fatal(err)
					}
					if _, err := p.Process(f.bytes); err != nil {
						t.Fatal(err)
					}
					after, err := p.Model.JobCounters(job.ID)
					if err != nil {
						t.Fatal(err)
					}
					return after.Applied > before.Applied
				}
				restore := func() { // the full sums
					t.Helper()
					if err := p.Harvest(job.ID); err != nil {
						t.Fatal(err)
					}
					seq++
					f := newWholeFrame(t, job.ID, seq, flags, 1)
					for lane := range wire.Lanes {
						f.set(lane, fullRank+lane, float(fullSum))
					}
					if !send(f) {
						t.Fatal("the first frame is refused")
					}
				}
				step := 3 // every lane, in every third stripe
				if mode == aggregator.FetchAdd {
					step = 21 // survey checks these frames first, as it does for other arithmetics
				}
				for at := 0; at < wire.MaxStripes*wire.Lanes; at += step {
					restore()
					for _, bad := range pairs {
						if bad.rank == wrappedRank && layout == wire.FlagDense {
							continue
						}
						// First a plain frame: after others, survey checks frames.
						seq++
						f := newWholeFrame(t, job.ID, seq, flags, wire.MaxStripes)
						f.fill(rng)
						if !send(f) {
							t.Fatalf("before %s at %d: a plain frame is refused", bad.name, at)
						}
						seq++
						f = newWholeFrame(t, job.ID, seq, flags, wire.MaxStripes)
						f.fill(rng)
						rank := bad.rank
						if rank < 0 {
							rank = rng.IntN(4) * wire.Lanes
						}
						f.set(at, rank+at%wire.Lanes, bad.bits(rng))
						before := stateOf(t, d.Aggregator, job.ID)
						if added := send(f); added == bad.refused {
							t.Fatalf("%s at %d: the frame is added: %v", bad.name, at, added)
						}
						after := stateOf(t, d.Aggregator, job.ID)
						if bad.rank == fullRank { // the filter remembers a number that is refused for its sums
							forgetNumber(after, before, seq)
						}
						if bad.refused && !reflect.DeepEqual(after, before) {
							t.Fatalf("%s at %d: the frame is refused, but the state has changed", bad.name, at)
						}
					}
				}
				if err := p.Harvest(job.ID); err != nil {
					t.Fatal(err)
				}
				got, err := p.Device.JobCounters(job.ID)
				if err != nil {
					t.Fatal(err)
				}
				if want, err := p.Model.JobCounters(job.ID); err != nil || got != want {
					t.Errorf("counters are %+v, the model's %+v, %v", got, want, err)
				}
			})
		}
	}
}

// forgetNumber gives the filters' entries of a sequence number the state that they had before.
func forgetNumber(s, before *jobState, seq uint32) {
	for sender, entries := range s.Filters {
		for i, e := range entries {
			if uint32(e) == seq {
				entries[i] = before.Filters[sender][i]
			}
		}
	}
}
