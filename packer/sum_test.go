// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/libra-ina/libra/internal/num/fixedpoint"
	"github.com/libra-ina/libra/wire"
)

// applied is the result of frames at an aggregator and servers: sums by rank, in units, and cold
// rows by server, in order.
type applied struct {
	Sums map[uint32]int64
	Cold map[int][]coldRow
}

func newApplied() applied { return applied{Sums: map[uint32]int64{}, Cold: map[int][]coldRow{}} }

// numbersOf returns row numbers for tests: the number of a row is its key plus 1, and a numbering
// is 7 plus the index of the server.
func numbersOf(b *Prepared, servers int) *RowNumbers {
	rows := &RowNumbers{}
	for server := range servers {
		rows.Numberings = append(rows.Numberings, uint32(7+server))
	}
	for _, key := range b.ColdRows().Keys {
		rows.Numbers = append(rows.Numbers, uint32(key)+1)
	}
	return rows
}

// add applies a packer's frames of a batch. A sum that leaves the range in between is an error.
func (c *applied) add(t rapid.TB, p *Packer, units fixedpoint.Format) {
	r := &recorder{tb: t}
	for rows := range r.coldFrames(p) {
		values := make([]float32, p.dim)
		for i := range rows.Count {
			rows.Row(i, values)
			var key uint64
			if rows.kind == wire.TypeColdAt {
				key = uint64(rows.Number(i)) - 1
				if rows.Numbering != uint32(7+rows.server) {
					t.Fatalf("server %d gets numbers of numbering %d", rows.server, rows.Numbering)
				}
			} else {
				key = rows.Key(i)
			}
			c.Cold[rows.server] = append(c.Cold[rows.server], coldRow{key, bitsOf(values)})
		}
	}
	for _, pair := range r.hotPairs(p.layout, p.stripes) {
		n, err := units.FromBits(pair.Bits)
		sum, ok := fixedpoint.Add(c.Sums[pair.Rank], n)
		if err != nil || !ok {
			t.Fatalf("rank %d: %#x (%v) is added to %d", pair.Rank, pair.Bits, err, c.Sums[pair.Rank])
		}
		c.Sums[pair.Rank] = sum
	}
}

// TestBeginSum compares batches that are added up with the same batches one by one, prepared or
// not, with row numbers or not: the aggregator's sums, including slots that get 0, and the cold
// rows of each server. After sums that are out of range the next ones are correct again.
func TestBeginSum(t *testing.T) { rapid.Check(t, checkBeginSum) }

func checkBeginSum(t *rapid.T) {
	dim := rapid.SampledFrom([]int{1, 1, 2, 7, 23}).Draw(t, "dim")
	hot, err := NewHotSet(dim, keysGen(200).Draw(t, "hot"), nil, Meta{})
	if err != nil {
		t.Fatal(err)
	}
	paged := rapid.IntRange(0, 3).Draw(t, "pages") == 0
	if paged {
		hot = pagedHotSet(t, dim)
	}
	p, err := New(Config{
		HotSet: hot, Layout: rapid.SampledFrom([]Layout{LaneAligned, Dense}).Draw(t, "layout"),
		Stripes: rapid.IntRange(1, wire.MaxStripes).Draw(t, "stripes"),
		Split:   Split(rapid.SampledFrom([]int{0, 1, 2, 5}).Draw(t, "servers")),
	})
	if err != nil {
		t.Fatal(err)
	}
	exp := rapid.SampledFrom([]int{fixedpoint.DefaultExp, fixedpoint.MinExp, -3, fixedpoint.MaxExp}).Draw(t, "exp")
	units := fixedpoint.Format{Exp: exp}
	key := rapid.Uint64Range(0, 300)
	if hot.Len() > 0 {
		key = rapid.OneOf(key, rapid.Map(rapid.IntRange(0, hot.Len()-1), func(r int) uint64 { return hot.Key(uint32(r)) }))
	}
	if paged {
		key = pagedKey(hot)
	}
	for range rapid.IntRange(1, 3).Draw(t, "rounds") {
		var parts []Part
		want, hotPairs, fits := newApplied(), 0, true
		allPrepared := rapid.Bool().Draw(t, "all prepared")
		for _, keys := range rapid.SliceOfN(rapid.SliceOfN(key, 0, 60), 1, 6).Draw(t, "batches") {
			part := Part{Keys: keys, Grads: make([]float32, dim*len(keys))}
			for i := range part.Grads {
				// All sizes from a part of a unit to a part of the range, and sometimes nearly all
				// of it.
				size := rapid.IntRange(-2, 60).Draw(t, "size")
				if rapid.IntRange(0, 300).Draw(t, "large") == 0 {
					size = 62
				}
				g := math.Ldexp(1+float64(rapid.Uint32Range(0, 1<<23-1).Draw(t, "fraction"))/(1<<23), size+exp)
				part.Grads[i] = float32(g * float64(rapid.SampledFrom([]int{-1, 1}).Draw(t, "sign")))
				if rank, ok := hot.Rank(keys[i/dim]); ok {
					n, err := units.FromFloat32(part.Grads[i])
					if err != nil {
						t.Fatal(err)
					}
					slot := rank*uint32(dim) + uint32(i%dim)
					var in bool
					want.Sums[slot], in = fixedpoint.Add(want.Sums[slot], n)
					hotPairs, fits = hotPairs+1, fits && in
				}
			}
			for i, k := range keys {
				if _, ok := hot.Rank(k); !ok {
					server := p.split.Of(k)
					want.Cold[server] = append(want.Cold[server], coldRow{k, bitsOf(part.Grads[i*dim:][:dim])})
				}
			}
			if allPrepared || rapid.Bool().Draw(t, "prepared") {
				if part.Prepared, err = p.Prepare(keys); err != nil {
					t.Fatal(err)
				}
				if allPrepared {
					part.Prepared.ColdRows().SetNumbers(numbersOf(part.Prepared, int(p.split)))
				}
				part.Keys = nil
			}
			parts = append(parts, part)
		}
		for _, sum := range want.Sums {
			fits = fits && sum != math.MinInt64
		}
		pairs, err := p.BeginSum(exp, parts)
		if !fits {
			if !errors.Is(err, ErrSum) || pairs != 0 || p.Next() != 0 {
				t.Fatalf("sums out of range: %v, and a frame of type %v", err, p.Next())
			}
			continue
		}
		if err != nil || pairs != hotPairs {
			t.Fatalf("%d of %d pairs added: %v", pairs, hotPairs, err)
		}
		got := newApplied()
		got.add(t, p, units)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("one by one -, added up +:\n%s", diff)
		}
	}
}

// TestBeginSumRefuses passes batches that Begin refuses, and those prepared for other frames; the
// next sum is not affected.
func TestBeginSumRefuses(t *testing.T) {
	hot, err := NewHotSet(1, []uint64{7}, nil, Meta{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := New(Config{HotSet: hot, Layout: Dense, Stripes: 2})
	if err != nil {
		t.Fatal(err)
	}
	aligned, err := New(Config{HotSet: hot, Stripes: 2})
	if err != nil {
		t.Fatal(err)
	}
	other, err := aligned.Prepare([]uint64{7})
	if err != nil {
		t.Fatal(err)
	}
	good := Part{Keys: []uint64{7, 8}, Grads: []float32{1, 2}}
	for name, bad := range map[string]Part{
		"shape": {Keys: []uint64{7}}, "cold NaN": {Keys: []uint64{8}, Grads: []float32{float32(math.NaN())}},
		"hot infinity": {Keys: []uint64{7}, Grads: []float32{float32(math.Inf(1))}},
		"out of range": {Keys: []uint64{7}, Grads: []float32{1 << 17}},
		"layout":       {Prepared: other, Grads: []float32{1}},
	} {
		pairs, err := p.BeginSum(fixedpoint.DefaultExp, []Part{good, bad})
		var notFinite *NotFiniteError
		if !errors.Is(err, ErrShape) && !errors.Is(err, ErrSum) && !errors.Is(err, ErrConfig) && !errors.As(err, &notFinite) || pairs != 0 || p.Next() != 0 {
			t.Errorf("%s: %d pairs, %v", name, pairs, err)
		}
		if _, err := p.BeginSum(fixedpoint.DefaultExp, []Part{good, good}); err != nil {
			t.Fatalf("after %s: %v", name, err)
		}
		got := newApplied()
		got.add(t, p, fixedpoint.Format{Exp: fixedpoint.DefaultExp})
		if want := []coldRow{{8, bitsOf([]float32{2})}, {8, bitsOf([]float32{2})}}; got.Sums[0] != 2<<46 || !slices.Equal(got.Cold[0], want) {
			t.Errorf("after %s: %+v", name, got)
		}
	}
}

// TestBeginSumAllocatesNothing checks that it does not allocate once its memory has grown.
func TestBeginSumAllocatesNothing(t *testing.T) {
	hot := benchHotSet(t, 1)
	p, err := New(Config{HotSet: hot, Layout: Dense, Stripes: wire.MaxStripes})
	if err != nil {
		t.Fatal(err)
	}
	var parts []Part
	for i, b := range benchBatches(4, 1000, 1, true) {
		parts = append(parts, Part{Keys: b.keys, Grads: b.grads})
		if i%2 == 0 {
			if parts[i].Prepared, err = p.Prepare(b.keys); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := testing.AllocsPerRun(10, func() {
		if _, err := p.BeginSum(fixedpoint.DefaultExp, parts); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations a sum", n)
	}
}

// TestBeginSumOfTheLeast has a sum of -2^63 units, whose size exceeds every float32 in range.
func TestBeginSumOfTheLeast(t *testing.T) {
	hot, err := NewHotSet(1, []uint64{7}, nil, Meta{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := New(Config{HotSet: hot, Layout: Dense})
	if err != nil {
		t.Fatal(err)
	}
	half := Part{Keys: []uint64{7}, Grads: []float32{-1 << 16}}
	if pairs, err := p.BeginSum(fixedpoint.DefaultExp, []Part{half, half}); !errors.Is(err, ErrSum) || pairs != 0 || p.Next() != 0 {
		t.Errorf("%d pairs, %v", pairs, err)
	}
	if _, err := p.BeginSum(fixedpoint.DefaultExp, []Part{half}); err != nil {
		t.Fatal(err)
	}
	got := newApplied()
	if got.add(t, p, fixedpoint.Format{Exp: fixedpoint.DefaultExp}); got.Sums[0] != -1<<62 {
		t.Errorf("the next sum is %d", got.Sums[0])
	}
}
