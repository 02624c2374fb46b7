// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/wire"
)

func ranks(packets [][]Gradient) [][]uint32 {
	out := make([][]uint32, len(packets))
	for i, p := range packets {
		for _, g := range p {
			out[i] = append(out[i], g.Rank)
		}
	}
	return out
}

func gradients(ranks ...uint32) []Gradient {
	g := make([]Gradient, len(ranks))
	for i, r := range ranks {
		g[i] = Gradient{Rank: r, Value: float32(i)}
	}
	return g
}

// Computed by hand from the printed algorithm.
func TestAlgorithm1ByHand(t *testing.T) {
	for name, c := range map[string]struct {
		m, capacity int
		batch       []uint32
		want        [][]uint32
	}{
		"empty": {4, 3, nil, [][]uint32{}},
		"one packet": {4, 3, []uint32{5, 2, 3},
			[][]uint32{{5, 2, 3}}},
		// 4 and 8 share register 0, so 4 goes to the second packet; 8 finds no third one and gets
		// its own padded packet.
		"conflicts": {4, 3, []uint32{0, 1, 4, 8, 2, 3},
			[][]uint32{{0, 1, 2}, {4, 3}, {8}}},
		// G' ignores registers: all of 8, 12, 16 are in register 0.
		"padding": {4, 3, []uint32{0, 4, 8, 12, 16},
			[][]uint32{{0}, {4}, {8, 12, 16}}},
		// A full packet is not a candidate for a register that it lacks.
		"full": {4, 2, []uint32{0, 1, 2, 3},
			[][]uint32{{0, 1}, {2, 3}}},
		"repeated": {4, 2, []uint32{3, 3, 3},
			[][]uint32{{3}, {3}, {3}}},
	} {
		t.Run(name, func(t *testing.T) {
			got := Algorithm1(gradients(c.batch...), c.m, c.capacity)
			if diff := cmp.Diff(c.want, ranks(got)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func randomBatch(rng *rand.Rand) []Gradient {
	n := rng.IntN(120)
	universe := 1 + rng.IntN(400)
	skew := 1 + 3*rng.Float64()
	batch := make([]Gradient, n)
	for i := range batch {
		batch[i].Rank = uint32(float64(universe) * math.Pow(rng.Float64(), skew))
		batch[i].Value = rng.Float32()
	}
	return batch
}

// The fast implementation must equal the printed one: 10,000 random batches of all sizes, register
// counts, capacities and skews, with one Orchestrator for each (m, capacity) so that remaining
// state of a batch would affect the next.
func TestOrchestratorEqualsAlgorithm1(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	type shape struct{ m, capacity int }
	orchestrators := map[shape]*Orchestrator{}
	for i := range 10_000 {
		s := shape{1 + rng.IntN(40), 1 + rng.IntN(30)}
		o := orchestrators[s]
		if o == nil {
			var err error
			if o, err = NewOrchestrator(s.m, s.capacity); err != nil {
				t.Fatal(err)
			}
			orchestrators[s] = o
		}
		batch := randomBatch(rng)
		want := Algorithm1(batch, s.m, s.capacity)
		packets := o.Package(batch)
		got := make([][]Gradient, packets.Len())
		for j := range got {
			got[j] = packets.At(j)
		}
		if !slices.EqualFunc(want, got, slices.Equal) { // far faster than cmp
			diff := cmp.Diff(want, got)
			t.Fatalf("batch %d of %d gradients, m = %d, capacity %d (-printed +fast)\n%s",
				i, len(batch), s.m, s.capacity, diff)
		}
	}
}

func TestRecirculations(t *testing.T) {
	seen := make([]uint32, 4)
	for _, c := range []struct {
		packet []uint32
		want   int
	}{
		{nil, 0},
		{[]uint32{0, 1, 2, 3}, 0},
		{[]uint32{0, 1, 4, 6}, 1},
		{[]uint32{3, 7, 11, 1, 5}, 2},
		{[]uint32{2, 2, 2, 2}, 3},
	} {
		for range 2 { // the second round reuses the scratch memory
			if got := Recirculations(gradients(c.packet...), Heat(4), seen); got != c.want {
				t.Errorf("%v: %d recirculations, want %d", c.packet, got, c.want)
			}
		}
	}
}

// For any batch, a packet of Algorithm 1 proper never recirculates; only those of
// create_pkt_padding may.
func TestOnlyPaddingRecirculates(t *testing.T) {
	rng := rand.New(rand.NewPCG(13, 14))
	padded := 0
	for range 2000 {
		m, capacity := 1+rng.IntN(40), 1+rng.IntN(30)
		batch := randomBatch(rng)
		for i, packet := range Algorithm1(batch, m, capacity) {
			if i >= estimatePackets(len(batch), capacity) {
				padded++
				continue
			}
			if n := Recirculations(packet, Heat(m), make([]uint32, m)); n != 0 {
				t.Fatalf("packet %d of m = %d: %d recirculations", i, m, n)
			}
		}
	}
	if padded == 0 {
		t.Error("no batch needed padding; the test shows nothing")
	}
}

func TestPlacements(t *testing.T) {
	const n, m = 1000, 22
	random, err := NewRandom(n, m, 7)
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]Placement{"heat": Heat(m), "random": random} {
		type place struct{ register, slot uint32 }
		taken := map[place]uint32{}
		moved := 0
		for rank := range uint32(n) {
			var at place
			at.register, at.slot = p.Place(rank)
			if at.register >= m || at.slot > n/m {
				t.Fatalf("%s: rank %d is in register %d, slot %d", name, rank, at.register, at.slot)
			}
			if other, ok := taken[at]; ok {
				t.Fatalf("%s: ranks %d and %d share a slot", name, other, rank)
			}
			taken[at] = rank
			if at.register != rank%m {
				moved++
			}
		}
		if (name == "heat") != (moved == 0) {
			t.Errorf("%s: %d ranks are not in register rank mod m", name, moved)
		}
	}
	if _, err := NewRandom(n, 0, 7); err == nil {
		t.Error("no registers accepted")
	}
	if _, err := NewOrchestrator(0, 22); err == nil {
		t.Error("no registers accepted")
	}
	if _, err := NewOrchestrator(22, 0); err == nil {
		t.Error("empty packets accepted")
	}
}

func TestOrchestratorLimits(t *testing.T) {
	for _, c := range []struct {
		m, capacity int
		good        bool
	}{
		{1, 1, true}, {packer.PageSlots, 1, true}, {1, packer.PageSlots, true},
		{0, 1, false}, {1, 0, false}, {-1, 1, false}, {1, -1, false}, {packer.PageSlots + 1, 1, false}, {1, packer.PageSlots + 1, false},
	} {
		if o, err := NewOrchestrator(c.m, c.capacity); (err == nil) != c.good || err != nil && (o != nil || !errors.Is(err, packer.ErrConfig)) {
			t.Errorf("%d registers, packets of %d: %v", c.m, c.capacity, err)
		}
	}
}

// The hot path must not allocate once its scratch memory has grown.
func TestOrchestratorDoesNotAllocate(t *testing.T) {
	o, err := NewOrchestrator(wire.Lanes, wire.Lanes)
	if err != nil {
		t.Fatal(err)
	}
	batch := gradients(make([]uint32, 500)...)
	if n := testing.AllocsPerRun(20, func() { o.Package(batch) }); n != 0 {
		t.Errorf("%v allocations a batch", n)
	}
}

func BenchmarkOrchestrator(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 2))
	zipf := rand.NewZipf(rng, 1.1, 1, 30_000-1)
	batches := make([][]Gradient, 64)
	for i := range batches {
		for range 4096 {
			batches[i] = append(batches[i], Gradient{Rank: uint32(zipf.Uint64()), Value: rng.Float32()})
		}
	}
	o, err := NewOrchestrator(22, 22)
	if err != nil {
		b.Fatal(err)
	}
	for _, batch := range batches {
		o.Package(batch)
	}
	n := 0
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		batch := batches[i%len(batches)]
		o.Package(batch)
		n += len(batch)
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds()/1e6, "Mpairs/s")
}
