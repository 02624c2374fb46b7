// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"errors"
	"maps"
	"math"
	"math/big"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/libra-ina/libra/internal/num/fixedpoint"
	"github.com/libra-ina/libra/wire"
)

// exactSums are sums by key and column, without rounding.
type exactSums map[[2]uint64]*big.Float

func (e exactSums) add(key uint64, col int, x float32) {
	at := [2]uint64{key, uint64(col)}
	if e[at] == nil {
		e[at] = new(big.Float).SetPrec(1000)
	}
	e[at].Add(e[at], new(big.Float).SetFloat64(float64(x)))
}

// addFrames adds what the frames of a batch hold. Those of hot pairs hold only what the aggregator
// adds without rounding, and cold rows go to their server.
func (e exactSums) addFrames(t rapid.TB, p *Packer, units fixedpoint.Format) {
	r := &recorder{tb: t}
	for rows := range r.coldFrames(p) {
		if rows.kind != wire.TypeCold {
			t.Fatalf("a %v frame", rows.kind)
		}
		for i := range rows.Count * rows.Dim {
			key := rows.Key(i / rows.Dim)
			if owner := p.split.Owner(p.hotSet, key); owner != rows.server {
				t.Fatalf("key %d goes to server %d, not to %d", key, rows.server, owner)
			}
			e.add(key, i%rows.Dim, math.Float32frombits(rows.Bits(i)))
		}
	}
	for _, pair := range r.hotPairs(p.layout, p.stripes) {
		if !units.Holds(pair.Bits) {
			t.Fatalf("the aggregator would round %g", math.Float32frombits(pair.Bits))
		}
		e.add(p.hotSet.Key(pair.Rank/uint32(p.dim)), int(pair.Rank)%p.dim, math.Float32frombits(pair.Bits))
	}
}

func (e exactSums) check(t rapid.TB, want exactSums) {
	for _, at := range slices.Collect(maps.Keys(want)) {
		got := e[at]
		if got == nil || got.Cmp(want[at]) != 0 {
			t.Fatalf("key %d, column %d: frames hold %g, batches %g", at[0], at[1], got, want[at])
		}
	}
	if len(e) != len(want) {
		t.Fatalf("frames hold %d sums, batches %d", len(e), len(want))
	}
}

// TestMultiples sends batches with gradients of any magnitude as frames, by all ways that make
// some: what the frames hold adds up to the batches exactly, and no hot pair is rounded by the
// aggregator.
func TestMultiples(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dim := rapid.SampledFrom([]int{1, 2, 5, 23}).Draw(t, "dim")
		hot, err := NewHotSet(dim, keysGen(200).Draw(t, "hot"), nil, Meta{})
		if err != nil {
			t.Fatal(err)
		}
		exp := rapid.SampledFrom([]int{fixedpoint.DefaultExp, fixedpoint.MinExp, -3, fixedpoint.MaxExp}).Draw(t, "exp")
		units := fixedpoint.Format{Exp: exp}
		p, err := New(Config{
			HotSet: hot, Layout: rapid.SampledFrom([]Layout{LaneAligned, Dense}).Draw(t, "layout"),
			Stripes: rapid.IntRange(1, wire.MaxStripes).Draw(t, "stripes"),
			Split:   Split(rapid.SampledFrom([]int{0, 1, 2, 5}).Draw(t, "servers")), Numbers: Multiples(exp),
		})
		if err != nil {
			t.Fatal(err)
		}
		key := rapid.Uint64Range(0, 300)
		if hot.Len() > 0 {
			key = rapid.OneOf(key, rapid.Map(rapid.IntRange(0, hot.Len()-1), func(r int) uint64 { return hot.Key(uint32(r)) }))
		}
		share := rapid.SampledFrom([]int{0, 2, 40}).Draw(t, "share") // of gradients that do not fit
		grad := rapid.Custom(func(t *rapid.T) float32 {
			if share == 0 || rapid.IntRange(0, share).Draw(t, "any") != 0 {
				return float32(math.Ldexp(float64(rapid.Int32Range(-1<<24, 1<<24).Draw(t, "units")), exp+rapid.IntRange(0, 31).Draw(t, "size")))
			}
			return math.Float32frombits(rapid.Uint32Range(0, 1).Draw(t, "sign")<<31 | rapid.Uint32Range(0, infinity-1).Draw(t, "bits"))
		})
		for range rapid.IntRange(1, 3).Draw(t, "rounds") {
			var parts []Part
			var prepared []*Prepared
			var all []float32
			want := exactSums{}
			for _, keys := range rapid.SliceOfN(rapid.SliceOfN(key, 0, 30), 1, 5).Draw(t, "batches") {
				grads := rapid.SliceOfN(grad, len(keys)*dim, len(keys)*dim).Draw(t, "grads")
				for i, x := range grads {
					want.add(keys[i/dim], i%dim, x)
				}
				b, err := p.Prepare(keys)
				if err != nil {
					t.Fatal(err)
				}
				part := Part{Keys: keys, Grads: grads}
				if rapid.Bool().Draw(t, "prepared") {
					part = Part{Prepared: b, Grads: grads}
				}
				parts, prepared, all = append(parts, part), append(prepared, b), append(all, grads...)
			}
			separate, merged, added, cold := exactSums{}, exactSums{}, exactSums{}, exactSums{}
			for i, part := range parts {
				if part.Prepared != nil {
					err = p.BeginPrepared(part.Grads, part.Prepared)
				} else {
					err = p.Begin(part.Keys, part.Grads)
				}
				if err != nil {
					t.Fatal(err)
				}
				separate.addFrames(t, p, units)
				if err := p.BeginCold(prepared[i].keys, part.Grads); err != nil {
					t.Fatal(err)
				}
				if p.Next() == wire.TypeHot {
					t.Fatal("a hot frame of cold rows")
				}
				cold.addFrames(t, p, units)
			}
			separate.check(t, want)
			cold.check(t, want)
			if err := p.BeginPrepared(all, prepared...); err != nil {
				t.Fatal(err)
			}
			merged.addFrames(t, p, units)
			merged.check(t, want)
			if _, err := p.BeginSum(exp, parts); err != nil {
				t.Fatal(err)
			}
			added.addFrames(t, p, units)
			added.check(t, want)
		}
	})
}

// What is excluded is what the aggregator would round or, with others, refuse, at the ends of the
// range and in every place of a batch; and a gradient that is not finite is refused, in a hot row
// as in a cold one.
func TestWhatMultiplesExclude(t *testing.T) {
	const exp, tiny, most = -46, 0x1p-46, 1 << 10
	n := Multiples(exp)
	below := math.Nextafter32
	for x, want := range map[float32]bool{
		0: true, float32(math.Copysign(0, -1)): true, tiny: true, 3 * tiny: true, tiny / 2: false, 1.5 * tiny: false,
		1e-9: false, 0x1p-23: true, below(0x1p-23, 0): false, 0x1.fffffcp-24: true, below(0x1p-23, 1): true, below(0x1p-24, 1): false, math.SmallestNonzeroFloat32: false, 0x1p-126: false,
		most: false, below(most, 0): true, math.MaxFloat32: false, float32(math.Inf(-1)): false, float32(math.NaN()): false,
	} {
		for _, size := range []int{1, 2, 3, 8, 9} {
			for at := range size {
				for _, x := range []float32{x, -x} {
					grads := slices.Repeat([]float32{1, 0}, 5)[:size]
					grads[at] = x
					if n.fit(grads) != want {
						t.Errorf("%g, place %d of %d: fits %v", x, at, size, !want)
					}
				}
			}
		}
	}
	hot, err := NewHotSet(1, []uint64{7}, nil, Meta{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := New(Config{HotSet: hot, Numbers: n})
	if err != nil {
		t.Fatal(err)
	}
	for _, keys := range [][]uint64{{8, 7}, {7, 8}} {
		var bad *NotFiniteError
		if err := p.Begin(keys, []float32{1e-30, float32(math.Inf(1))}); !errors.As(err, &bad) || bad.Index != 1 || bad.Key != keys[1] {
			t.Errorf("%v: %v", keys, err)
		}
	}
	if err := p.Begin([]uint64{7, 8}, []float32{1, 1e-30}); err != nil || p.Next() != wire.TypeHot {
		t.Errorf("a cold row that does not fit makes a hot one cold: %v", err)
	}
	if err := p.Begin([]uint64{7, 8}, []float32{1e-30, 1}); err != nil || p.Next() != wire.TypeCold {
		t.Errorf("a hot row that does not fit stays hot: %v", err)
	}
}

func BenchmarkFit(b *testing.B) {
	n, grads := Multiples(fixedpoint.DefaultExp), slices.Repeat([]float32{1, -0.3}, 1<<11)
	for name, fit := range map[string]func() bool{
		"finite": func() bool { return n.Check(grads) < 0 }, "multiples": func() bool { return n.fit(grads) },
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if !fit() {
					b.Fatal("excluded")
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(grads)), "ns/gradient")
		})
	}
}
