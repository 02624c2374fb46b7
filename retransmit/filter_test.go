// SPDX-License-Identifier: Apache-2.0

package retransmit

import (
	"testing"
	"time"

	"github.com/libra-ina/libra/wire"
	"pgregory.net/rapid"
)

// TestExactlyOnce sends frames over networks with every kind of fault.
func TestExactlyOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := faults{
			drop:      rapid.Float64Range(0, 0.3).Draw(t, "drop"),
			duplicate: rapid.Float64Range(0, 0.3).Draw(t, "duplicate"),
			late:      rapid.Float64Range(0, 0.1).Draw(t, "late"),
			delay:     time.Duration(rapid.IntRange(0, 10_000).Draw(t, "delay µs")) * time.Microsecond,
			lateDelay: time.Duration(rapid.IntRange(0, 1000).Draw(t, "late delay ms")) * time.Millisecond,
			refuse:    rapid.Float64Range(0, 0.2).Draw(t, "refuse"),
			busy:      rapid.Float64Range(0, 0.5).Draw(t, "busy"),
			stall:     rapid.Float64Range(0, 0.01).Draw(t, "stall"),
			dark:      rapid.Float64Range(0, 0.01).Draw(t, "dark"),
			outage:    time.Duration(rapid.IntRange(0, 100).Draw(t, "outage ms")) * time.Millisecond,
		}
		size := 1 << rapid.IntRange(0, 9).Draw(t, "log size")
		n := rapid.IntRange(1, 6*size+500).Draw(t, "frames")
		// Some flows wrap around, in the middle of the numbers or of their sign.
		first := rapid.SampledFrom([]uint32{wire.FirstSeq, 0 - uint32(n/2), 1<<31 - uint32(n/2)}).Draw(t, "first")
		s := newSim(f, rapid.Uint64().Draw(t, "seed"), n, size, first, &Filter{})
		if err := s.run(); err != nil {
			t.Fatal(err)
		}
	})
}

// table is a direct-mapped filter with the wrong, or another, size or test.
type table struct {
	seen  []uint32
	fresh func(seq, seen uint32) bool
	retx  bool // the frame at hand has the RETX flag
	naive bool // checks only frames with the flag
}

func (f *table) receiveRetx(retx bool) { f.retx = retx }
func (f *table) Fresh(seq uint32) bool {
	return f.naive && !f.retx || f.fresh(seq, f.seen[seq%uint32(len(f.seen))])
}
func (f *table) Mark(seq uint32) { f.seen[seq%uint32(len(f.seen))] = seq }

// bloom records applied frames by two bits each, and forgets nothing.
type bloom [4096]bool

func (f *bloom) bits(seq uint32) (*bool, *bool) {
	return &f[seq*2654435761>>20], &f[seq*2246822519>>20]
}
func (f *bloom) Fresh(seq uint32) bool { a, b := f.bits(seq); return !*a || !*b }
func (f *bloom) Mark(seq uint32) {
	a, b := f.bits(seq)
	*a, *b = true, true
}

// TestSimulationCatchesBrokenFilters shows that the simulation above can fail,
// and that it fails for the filters that the documentation of Filter rejects.
func TestSimulationCatchesBrokenFilters(t *testing.T) {
	differs := func(seq, seen uint32) bool { return seq != seen }
	const w = wire.DefaultWindow
	for _, c := range []struct {
		name  string
		make  func() filter
		exact bool
	}{
		{"Filter", func() filter { return &Filter{} }, true},
		{"W entries", func() filter { return &table{seen: make([]uint32, w), fresh: newer} }, true},
		{"W/2 entries", func() filter { return &table{seen: make([]uint32, w/2), fresh: newer} }, false},
		{"inequality", func() filter { return &table{seen: make([]uint32, 2*w), fresh: differs} }, false},
		{"only retransmissions", func() filter { return &table{seen: make([]uint32, 2*w), fresh: newer, naive: true} }, false},
		{"no filter", func() filter {
			return &table{seen: make([]uint32, 2*w), fresh: func(uint32, uint32) bool { return true }}
		}, false},
		{"Bloom", func() filter { return &bloom{} }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := faults{drop: 0.02, duplicate: 0.02, late: 0.02, delay: time.Millisecond, lateDelay: 100 * time.Millisecond}
			err := newSim(f, 1, 8000, w, wire.FirstSeq, c.make()).run()
			if (err == nil) != c.exact {
				t.Fatalf("the simulation says %v", err)
			}
		})
	}
}

func BenchmarkFilter(b *testing.B) {
	var f Filter
	seq := uint32(wire.FirstSeq)
	b.ReportAllocs()
	for b.Loop() {
		if f.Fresh(seq) {
			f.Mark(seq)
		}
		seq++
	}
}
