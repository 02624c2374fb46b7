// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"encoding/binary"
	"math"
	"reflect"
	"slices"
	"testing"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/wire"
)

// jobState is a copy of everything that frames can change in a job, except counters.
type jobState struct {
	Banks   [2]string
	Filters map[uint16][]uint64
	Groups  []groupState
	Scale   [4]uint64
	Lock    uint32
}

// groupState is struct group of maps.h.
type groupState struct {
	Contributed uint64
	Taken       uint64
	Round       uint32
	_           uint32
}

func stateOf(t *testing.T, a *Aggregator, id uint16) *jobState {
	t.Helper()
	j := a.places[id].job
	entry := &a.table.jobs[id]
	s := &jobState{
		Filters: make(map[uint16][]uint64),
		Scale:   [4]uint64{entry.Reported, uint64(entry.Iteration), uint64(entry.Largest), uint64(entry.Previous)},
		Lock:    entry.Lock,
	}
	for i, b := range j.banks[:j.Banks()] {
		s.Banks[i] = string(b.mem)
	}
	for sender, m := range j.senders {
		e := &a.senders.entries[m.index]
		s.Filters[sender] = slices.Clone(e.Seen[e.Turn&1][:])
	}
	if j.groups != nil {
		var key uint32
		var g groupState
		for all := j.groups.Iterate(); all.Next(&key, &g); {
			s.Groups = append(s.Groups, g)
		}
	}
	return s
}

// Offsets in the frames of a generator.
const (
	headerAt = wire.EnvelopeLen
	stripeAt = headerAt + wire.HeaderLen
	slotsAt  = stripeAt + 92
)

// withBits returns a change of a frame that sets lane 0 to a pair with the number.
func withBits(number float64) func(f []byte) []byte {
	return func(f []byte) []byte {
		if f[stripeAt+3]&1 == 0 {
			f[stripeAt+3] |= 1
			binary.BigEndian.PutUint16(f[slotsAt:], 0)
		}
		binary.BigEndian.PutUint32(f[stripeAt+4:], math.Float32bits(float32(number)))
		return f
	}
}

// taken makes a frame a TAKEN, of round 0 of group 0.
func taken(f []byte) []byte {
	f[headerAt] = f[headerAt]&0xf0 | byte(wire.TypeTaken)
	return append(f[:stripeAt:stripeAt], make([]byte, wire.TakenLen-wire.HeaderLen)...)
}

// Refused and dropped frames change nothing, in any mode and arithmetic, and are counted by reason.
// A contribution to a round of which its sender is part already is remembered in the filter.
func TestRefusedFramesChangeNothing(t *testing.T) {
	any := func(aggregator.JobConfig) bool { return true }
	floats := func(j aggregator.JobConfig) bool { return j.Arithmetic != aggregator.Fixed }
	rounds := func(j aggregator.JobConfig) bool { return j.Mode.HasRounds() }
	refused := []struct {
		name   string
		change func(f []byte) []byte
		code   wire.Code
		jobs   func(aggregator.JobConfig) bool
	}{
		{"unknown job", func(f []byte) []byte { f[headerAt+2] = 1; return f }, wire.CodeUnknownJob, any},
		{"unknown sender", func(f []byte) []byte { f[headerAt+4] ^= 16; return f }, wire.CodeUnknownSender, any},
		{"other MAC address", func(f []byte) []byte { f[6] ^= 4; return f }, wire.CodeUnknownSender, any},
		{"other IP address", func(f []byte) []byte { f[29] = 77; return f }, wire.CodeUnknownSender, any},
		{"other version", func(f []byte) []byte { f[headerAt] ^= 0x30; return f }, wire.CodeWrongVersion, any},
		{"other type", func(f []byte) []byte { f[headerAt] ^= 8; return f }, wire.CodeType, any},
		{"other epoch", func(f []byte) []byte { f[headerAt+6] ^= 64; return f }, wire.CodeWrongEpoch, any},
		{"part of a stripe", func(f []byte) []byte { return f[:len(f)-4] }, wire.CodeLength, any},
		{"no stripe", func(f []byte) []byte { return f[:stripeAt] }, wire.CodeLength, any},
		{"page in a job of one", func(f []byte) []byte { f[stripeAt] |= 64; return f }, wire.CodeLayout,
			func(j aggregator.JobConfig) bool { return j.Pages() == 1 }},
		{"page beyond the job's", func(f []byte) []byte { f = withBits(1)(f); f[stripeAt] |= 64; return f }, wire.CodeSlotRange,
			func(j aggregator.JobConfig) bool { return j.Pages() > 1 }},
		{"slot beyond the last", func(f []byte) []byte {
			f = withBits(1)(f)
			binary.BigEndian.PutUint16(f[slotsAt:], 65534)
			return f
		}, wire.CodeSlotRange, func(j aggregator.JobConfig) bool { return j.Slots < 65534 }},
		{"NaN", withBits(math.NaN()), wire.CodeNotFinite, floats},
		{"infinity", withBits(math.Inf(-1)), wire.CodeNotFinite, floats},
		{"out of range", withBits(-math.MaxFloat32), wire.CodeOverflow,
			func(j aggregator.JobConfig) bool { return j.Arithmetic == aggregator.Exact }},
		{"dense", func(f []byte) []byte { f[headerAt+1] |= byte(wire.FlagDense); return f }, wire.CodeLayout, rounds},
		{"sums", func(f []byte) []byte { f[headerAt+1] |= byte(wire.FlagWantSum); return f }, wire.CodeMode,
			func(j aggregator.JobConfig) bool { return j.Mode != aggregator.FetchAdd }},
		{"taken, too short", func(f []byte) []byte { return taken(f)[:stripeAt+7] }, wire.CodeLength, any},
		{"taken, without rounds of this mode", taken, wire.CodeMode,
			func(j aggregator.JobConfig) bool { return j.Mode != aggregator.Acked }},
		{"taken, of a round that is not complete", taken, wire.CodeRound,
			func(j aggregator.JobConfig) bool { return j.Mode == aggregator.Acked }},
		{"second contribution to a round", func(f []byte) []byte {
			for i := stripeAt; i < len(f); i += wire.StripeLen { // of group 0
				stripe := (i - stripeAt) / wire.StripeLen
				for lane := range wire.Lanes {
					binary.BigEndian.PutUint16(f[i+92+2*lane:], uint16(stripe))
				}
			}
			return f
		}, wire.CodeRound, rounds},
	}
	dropped := []struct {
		name   string
		change func(f []byte) []byte // of a sealed frame
		count  func(aggregator.Counters) uint64
	}{
		{"cut", func(f []byte) []byte { return f[:len(f)-10] }, func(c aggregator.Counters) uint64 { return c.Truncated }},
		{"flipped bit", func(f []byte) []byte { f[len(f)-60] ^= 1; return f }, func(c aggregator.Counters) uint64 { return c.BadChecksum }},
		{"no header", func(f []byte) []byte {
			f = f[:stripeAt-1]
			conformance.Repair(f)
			return f
		}, func(c aggregator.Counters) uint64 { return c.Short }},
		{"answer", func(f []byte) []byte {
			f[headerAt] = f[headerAt]&0xf0 | byte(wire.TypeAck)
			conformance.Repair(f)
			return f
		}, func(c aggregator.Counters) uint64 { return c.Unexpected }},
	}

	p := openPair(t)
	d := p.Device.(*device)
	g := conformance.NewGenerator(31)
	for k, job := range conformance.Jobs {
		// State that could be lost: sums, a filter, a contribution to group 0.
		if v, err := p.Process(g.Valid(k, 0)); err != nil || v.Action != aggregator.Reply {
			t.Fatalf("job %d: verdict %v, %v", job.ID, v, err)
		}
		next := append([]byte(nil), g.Valid(k, 0)...)
		before := stateOf(t, d.Aggregator, job.ID)
		try := func(name string, frame []byte, want aggregator.Action) {
			t.Helper()
			v, err := p.Process(frame)
			if err != nil || v.Action != want {
				t.Errorf("job %d: %s: verdict %v, %v", job.ID, name, v, err)
			}
			after := stateOf(t, d.Aggregator, job.ID)
			if last := refused[len(refused)-1]; name == last.name {
				filter := after.Filters[conformance.Sender(0).ID]
				at := binary.BigEndian.Uint32(frame[headerAt+8:])
				if want := 1<<63 | uint64(last.code)<<48 | uint64(at); filter[at%1024] != want {
					t.Errorf("job %d: %s: the entry of number %d is %#x, want %#x", job.ID, name, at, filter[at%1024], want)
				}
				before.Filters[conformance.Sender(0).ID][at%1024] = filter[at%1024]
			}
			if !reflect.DeepEqual(after, before) {
				t.Fatalf("job %d: %s: the state has changed", job.ID, name)
			}
		}
		for _, c := range refused {
			if !c.jobs(job) {
				continue
			}
			count := func() uint64 {
				all, err := d.Counters()
				if err != nil {
					t.Fatal(err)
				}
				own, err := d.JobCounters(job.ID)
				if err != nil {
					t.Fatal(err)
				}
				return all.Refused[c.code] + own.Refused[c.code]
			}
			n := count()
			frame := c.change(append([]byte(nil), next...))
			conformance.Repair(frame)
			try(c.name, frame, aggregator.Reply)
			if got := count() - n; got != 1 {
				t.Errorf("job %d: %s: counted %d times as: %v", job.ID, c.name, got, c.code)
			}
		}
		for _, c := range dropped {
			count := func() uint64 {
				all, err := d.Counters()
				if err != nil {
					t.Fatal(err)
				}
				return c.count(all)
			}
			n := count()
			try(c.name, c.change(append([]byte(nil), next...)), aggregator.Drop)
			if got := count() - n; got != 1 {
				t.Errorf("job %d: %s: counted %d times", job.ID, c.name, got)
			}
		}
		if v, err := p.Process(next); err != nil || v.Action != aggregator.Reply { // in a job with rounds, its number is refused
			t.Errorf("job %d: the frame before it was spoilt: verdict %v, %v", job.ID, v, err)
		}
	}
	if err := p.CompareCounters(); err != nil {
		t.Error(err)
	}
}
