// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/libra-ina/libra/wire"
)

var pagedSets sync.Map // by dimension

// pagedHotSet returns a hot set of four pages, the last not full. Its keys are 3 times the rank.
func pagedHotSet(tb rapid.TB, dim int) *HotSet {
	if h, ok := pagedSets.Load(dim); ok {
		return h.(*HotSet)
	}
	keys := make([]uint64, (3*PageSlots+PageSlots/3)/dim)
	for i := range keys {
		keys[i] = 3 * uint64(i)
	}
	h, err := NewHotSet(dim, keys, nil, Meta{})
	if err != nil {
		tb.Fatal(err)
	}
	pagedSets.Store(dim, h)
	return h
}

// pagedKey returns keys of a paged hot set: often of the same rows, of rows at the ends of pages,
// and cold ones.
func pagedKey(h *HotSet) *rapid.Generator[uint64] {
	near := rapid.Custom(func(t *rapid.T) uint64 {
		row := (rapid.IntRange(0, h.pages()).Draw(t, "page")*PageSlots)/h.Dim() + rapid.IntRange(-2, 2).Draw(t, "row")
		return 3 * uint64(min(max(row, 0), h.Len()-1))
	})
	any := rapid.Map(rapid.IntRange(0, h.Len()-1), func(row int) uint64 { return 3 * uint64(row) })
	return rapid.OneOf(near, any, rapid.Map(rapid.Uint64Range(0, 1000), func(k uint64) uint64 { return 3*k + 1 }))
}

// expectedPages is expected for hot sets of several pages: the pairs of a page fill its stripes in
// order, and the stripes are numbered in the order of their first pairs.
func expectedPages(hot *HotSet, layout Layout, keys []uint64, grads []float32) (pairs []placed, rows []coldRow) {
	type place struct{ page, stripe int }
	numbers, used := map[place]int{}, map[[2]int]int{}
	one, rows := expected(hot, Dense, keys, grads) // the pairs in the order of the batch
	for _, p := range one {
		page, within := int(p.Rank)/PageSlots, int(p.Rank)%PageSlots
		lane := 0 // that counts the pairs which fill a stripe
		if layout == LaneAligned {
			lane = within % wire.Lanes
		}
		n := used[[2]int{page, lane}]
		used[[2]int{page, lane}]++
		at := place{page, n}
		p.Lane = lane
		if layout == Dense {
			at.stripe, p.Lane = n/wire.Lanes, n%wire.Lanes
		}
		if _, ok := numbers[at]; !ok {
			numbers[at] = len(numbers)
		}
		p.Stripe = numbers[at]
		pairs = append(pairs, p)
	}
	return pairs, rows
}

// Every pair of a job of several pages arrives exactly once, in a stripe of its page.
func TestPackPages(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dim := rapid.SampledFrom([]int{1, 1, 2, 7, 23}).Draw(t, "dim")
		hot := pagedHotSet(t, dim)
		layout := rapid.SampledFrom([]Layout{LaneAligned, Dense}).Draw(t, "layout")
		stripes := rapid.IntRange(1, wire.MaxStripes).Draw(t, "stripes")
		p, err := New(Config{HotSet: hot, Layout: layout, Stripes: stripes})
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			keys := rapid.SliceOfN(pagedKey(hot), 0, 200).Draw(t, "keys")
			grads := make([]float32, len(keys)*dim)
			for i := range grads {
				grads[i] = math.Float32frombits(uint32(i)*0x9e3779b1%0x7f800000 | uint32(i)<<31)
			}
			r := &recorder{tb: t, hotLen: wire.HotLen(stripes), cold: wire.MaxPayload}
			sent, err := r.pack(p, keys, grads)
			if err != nil {
				t.Fatal(err)
			}
			wantPairs, wantRows := expectedPages(hot, layout, keys, grads)
			gotPairs, gotRows := r.hotPairs(layout, stripes), r.coldRows(dim)
			if len(gotPairs) != len(wantPairs) || sent.HotPairs != len(wantPairs) {
				t.Fatalf("%d hot pairs, %d counted, want %d", len(gotPairs), sent.HotPairs, len(wantPairs))
			}
			if diff := cmp.Diff(sortPlaced(wantPairs), sortPlaced(gotPairs)); diff != "" {
				t.Fatalf("hot pairs (-want +got)\n%s", diff)
			}
			if diff := cmp.Diff(wantRows, gotRows); diff != "" {
				t.Fatalf("cold rows (-want +got)\n%s", diff)
			}
		}
	})
}

func TestRankOfSlotBeyondItsPage(t *testing.T) {
	var s wire.Stripe
	s.SetPage(1, wire.LaneMask)
	s.SetSlot(19, PageSlots/wire.Lanes)
	s.SetSlot(20, PageSlots/wire.Lanes)
	if last, none := LaneAligned.Rank(&s, 19), LaneAligned.Rank(&s, 20); last != 2*PageSlots-1 || none != Cold {
		t.Errorf("ranks %d and %d, want %d and %d", last, none, 2*PageSlots-1, uint32(Cold))
	}
}

// A batch has at most one stripe that is not full for each page that it has pairs of.
func TestUnfilledPages(t *testing.T) {
	hot := pagedHotSet(t, 1)
	p, err := New(Config{HotSet: hot, Layout: Dense, Stripes: wire.DefaultStripes})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{1, 32, 256, 4096} {
		keys := make([]uint64, n)
		perPage := make([]int, hot.pages())
		for i := range keys {
			rank := i * 7919 % hot.Len()
			keys[i] = hot.Key(uint32(rank))
			perPage[rank/PageSlots]++
		}
		want := 0
		for _, pairs := range perPage {
			want += VectorStripes(pairs)
		}
		r := &recorder{tb: t, hotLen: wire.HotLen(wire.DefaultStripes), cold: wire.MaxPayload}
		sent, err := r.pack(p, keys, make([]float32, n))
		if err != nil || sent.HotStripes != want {
			t.Errorf("a batch of %d pairs has %d stripes, %v; want %d", n, sent.HotStripes, err, want)
		}
	}
}

func TestPackPagesDoesNotAllocate(t *testing.T) {
	for _, layout := range []Layout{LaneAligned, Dense} {
		hot := pagedHotSet(t, 1)
		p, err := New(Config{HotSet: hot, Layout: layout, Stripes: wire.DefaultStripes})
		if err != nil {
			t.Fatal(err)
		}
		keys, buffer := make([]uint64, 512), make([]byte, wire.MaxPayload)
		for i := range keys {
			keys[i] = hot.Key(uint32(i * 7919 % hot.Len()))
		}
		grads := make([]float32, len(keys))
		fill := func() {
			if err := p.Begin(keys, grads); err != nil {
				t.Fatal(err)
			}
			for p.Next() != 0 {
				if _, err := p.Fill(buffer); err != nil {
					t.Fatal(err)
				}
			}
		}
		if n := testing.AllocsPerRun(20, fill); n != 0 {
			t.Errorf("%v: %v allocations a batch", layout, n)
		}
	}
}

// What is out of range in a late page ends a sum, and the next one is correct.
func TestSumOfPagesOutOfRange(t *testing.T) {
	hot := pagedHotSet(t, 1)
	for _, layout := range []Layout{LaneAligned, Dense} {
		p, err := New(Config{HotSet: hot, Layout: layout})
		if err != nil {
			t.Fatal(err)
		}
		keys := []uint64{hot.Key(5), hot.Key(2*PageSlots + 9)}
		large := Part{Keys: keys, Grads: []float32{1, 3 << 15}}
		if _, err := p.BeginSum(-46, []Part{large, large}); !errors.Is(err, ErrSum) {
			t.Fatalf("%v: %v", layout, err)
		}
		small := Part{Keys: keys, Grads: []float32{1, 2}}
		if _, err := p.BeginSum(-46, []Part{small, small}); err != nil {
			t.Fatal(err)
		}
		r := &recorder{tb: t, hotLen: wire.HotLen(1), cold: wire.MaxPayload}
		for range r.coldFrames(p) {
		}
		got := map[uint32]float32{}
		for _, pair := range r.hotPairs(layout, 1) {
			got[pair.Rank] += math.Float32frombits(pair.Bits)
		}
		if want := map[uint32]float32{5: 2, 2*PageSlots + 9: 4}; !cmp.Equal(got, want) {
			t.Errorf("%v: sums %v, want %v", layout, got, want)
		}
	}
}

// BenchmarkPackPages packs batches of hot pairs whose ranks have a Zipf distribution of exponent 1,
// and reports what stripes that are not full cost.
func BenchmarkPackPages(b *testing.B) {
	for _, slots := range []int{PageSlots, 4 * PageSlots, 16 * PageSlots} {
		keys := make([]uint64, slots)
		for i := range keys {
			keys[i] = uint64(i)
		}
		hot, err := NewHotSet(1, keys, nil, Meta{})
		if err != nil {
			b.Fatal(err)
		}
		for _, n := range []int{32, 256, 4096} {
			b.Run(fmt.Sprintf("pages=%d/pairs=%d", hot.pages(), n), func(b *testing.B) {
				p, err := New(Config{HotSet: hot, Layout: Dense, Stripes: wire.DefaultStripes})
				if err != nil {
					b.Fatal(err)
				}
				rng, batches := rand.New(rand.NewPCG(1, 2)), make([][]uint64, 64)
				for i := range batches {
					for range n {
						batches[i] = append(batches[i], uint64(math.Pow(float64(slots), rng.Float64())))
					}
				}
				grads, buffer, at := make([]float32, n), make([]byte, wire.MaxPayload), 0
				stripes, pairs := 0, 0
				for b.Loop() {
					if err := p.Begin(batches[at%len(batches)], grads); err != nil {
						b.Fatal(err)
					}
					for p.Next() != 0 {
						if _, err := p.Fill(buffer); err != nil {
							b.Fatal(err)
						}
					}
					stripes, pairs, at = stripes+p.Sent().HotStripes, pairs+n, at+1
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(pairs), "ns/pair")
				b.ReportMetric(float64(stripes*wire.StripeLen)/float64(pairs), "bytes/pair")
			})
		}
	}
}
