// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"cmp"
	"errors"
	"math"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/libra-ina/libra/packer/share"
	"github.com/libra-ina/libra/wire"
)

// newShares returns the shares of a hot set, or ends the test.
func newShares(tb rapid.TB, hot *HotSet, count int) *share.Division {
	s, err := share.Divide(hot.Len(), hot.Dim(), hot.Fingerprint(), count)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// pair is a hot pair, by its rank in the hot set.
type pair struct{ rank, bits uint32 }

// sharedPairs reads the frames of a batch: the pairs of each share by their ranks in the hot set, and the
// number of cold rows.
func sharedPairs(tb rapid.TB, p *Packer, s *share.Division, layout Layout) (pairs [][]pair, cold int) {
	pairs = make([][]pair, s.Len())
	buffer, last := make([]byte, wire.MaxPayload), 0
	for p.Next() != 0 {
		hot, share, before := p.Next() == wire.TypeHot, p.To(), p.Sent()
		payload, err := p.Fill(buffer)
		if err != nil {
			tb.Fatal(err)
		}
		if !hot {
			cold += p.Sent().ColdRows - before.ColdRows
			continue
		}
		if share < last {
			tb.Fatalf("a frame of share %d after one of share %d", share, last)
		}
		last = share
		for i := range (len(payload) - wire.HeaderLen) / wire.StripeLen {
			stripe := wire.StripeAt(payload, i)
			for lane := range wire.Lanes {
				if stripe.Mask()>>lane&1 == 0 {
					continue
				}
				local := layout.Rank(stripe, lane)
				rank, ok := s.Rank(share, local)
				if !ok {
					tb.Fatalf("local rank %d, share %d has %d slots", local, share, s.Slots(share))
				}
				pairs[share] = append(pairs[share], pair{rank, stripe.Bits(lane)})
			}
		}
	}
	return pairs, cold
}

// ownerOf returns the share of a rank by the rule for parts.
func ownerOf(hot *HotSet, count int, rank uint32) int {
	return int(rank) / hot.Dim() / share.PartRows(hot.Len(), share.MaxParts) % count
}

// Every pair arrives once, in a frame of the share that has its part, by a rank that leads back to it.
func TestPackShares(t *testing.T) {
	small, err := NewHotSet(2, []uint64{0, 3, 6, 9, 12, 15, 18, 21, 24}, nil, Meta{})
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		hot := small
		if dim := rapid.SampledFrom([]int{0, 1, 1, 2, 7, 23}).Draw(t, "dim"); dim > 0 {
			hot = pagedHotSet(t, dim)
		}
		dim, count := hot.Dim(), rapid.IntRange(2, 9).Draw(t, "shares")
		layout := rapid.SampledFrom([]Layout{LaneAligned, Dense}).Draw(t, "layout")
		s := newShares(t, hot, count)
		p, err := New(Config{HotSet: hot, Shares: s, Layout: layout, Stripes: rapid.IntRange(1, 10).Draw(t, "stripes")})
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			keys := rapid.SliceOfN(pagedKey(hot), 0, 200).Draw(t, "keys")
			grads := make([]float32, len(keys)*dim)
			for i := range grads {
				grads[i] = float32(i + 1)
			}
			first := rapid.IntRange(0, len(keys)).Draw(t, "first")
			how := rapid.SampledFrom([]string{"keys", "prepared", "merged", "sum"}).Draw(t, "how")
			switch how {
			case "keys":
				err = p.Begin(keys, grads)
			case "prepared":
				err = p.BeginPrepared(grads, prepared(t, p, keys))
			case "merged":
				err = p.BeginPrepared(grads, prepared(t, p, keys[:first]), prepared(t, p, keys[first:]))
			case "sum":
				_, err = p.BeginSum(-20, []Part{{Keys: keys[:first], Grads: grads[:first*dim]},
					{Prepared: prepared(t, p, keys[first:]), Grads: grads[first*dim:]}})
			}
			if err != nil {
				t.Fatal(err)
			}
			got, cold := sharedPairs(t, p, s, layout)
			want, wantCold := make([][]pair, count), 0
			for i, key := range keys {
				row, ok := hot.Rank(key)
				if !ok {
					wantCold++
					continue
				}
				for j := range dim {
					rank := row*uint32(dim) + uint32(j)
					owner := ownerOf(hot, count, rank)
					want[owner] = append(want[owner], pair{rank, math.Float32bits(grads[i*dim+j])})
				}
			}
			if cold != wantCold {
				t.Fatalf("%d cold rows, want %d", cold, wantCold)
			}
			for share := range want {
				g, w := sortPairs(got[share]), sortPairs(want[share])
				if how == "sum" {
					g, w = sumPairs(g), sumPairs(w)
				}
				if diff := gocmp.Diff(w, g, gocmp.AllowUnexported(pair{})); diff != "" {
					t.Fatalf("%s: share %d of %d (-want +got)\n%s", how, share, count, diff)
				}
			}
		}
	})
}

func prepared(t rapid.TB, p *Packer, keys []uint64) *Prepared {
	b, err := p.Prepare(keys)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func sortPairs(pairs []pair) []pair {
	slices.SortFunc(pairs, func(a, b pair) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.bits, b.bits))
	})
	return pairs
}

// sumPairs adds up the values of each rank, which are small integers.
func sumPairs(pairs []pair) (sums []pair) {
	total := map[uint32]float32{}
	for _, p := range pairs {
		total[p.rank] += math.Float32frombits(p.bits)
	}
	for rank, sum := range total {
		sums = append(sums, pair{rank, math.Float32bits(sum)})
	}
	return sortPairs(sums)
}

// The shares have all ranks of the hot set, each once, and no others.
func TestSharesHaveAllRanks(t *testing.T) {
	for _, rows := range []int{2, 63, 64, 65, 129, 5000} {
		keys := make([]uint64, rows)
		for i := range keys {
			keys[i] = uint64(i)
		}
		hot, err := NewHotSet(3, keys, nil, Meta{})
		if err != nil {
			t.Fatal(err)
		}
		s := newShares(t, hot, 2)
		seen := make([]bool, hot.Slots())
		for share := range 2 {
			for local := range uint32(s.Slots(share)) {
				rank, ok := s.Rank(share, local)
				if !ok || seen[rank] || ownerOf(hot, 2, rank) != share {
					t.Fatalf("%d rows: local rank %d of share %d is %d, %v", rows, local, share, rank, ok)
				}
				seen[rank] = true
			}
			if _, ok := s.Rank(share, uint32(s.Slots(share))); ok {
				t.Errorf("%d rows: share %d has a rank beyond its slots", rows, share)
			}
		}
		if slices.Contains(seen, false) {
			t.Errorf("%d rows: a rank is in no share", rows)
		}
	}
}

// Parties with other parts, or another hot set, have other fingerprints.
func TestSharesAreTold(t *testing.T) {
	hot := pagedHotSet(t, 1)
	seen := map[Fingerprint]bool{hot.Fingerprint(): true}
	for _, s := range []*share.Division{newShares(t, hot, 2), newShares(t, hot, 3), newShares(t, pagedHotSet(t, 2), 2)} {
		for share := range s.Len() {
			if f := s.Fingerprint(share); seen[f] {
				t.Errorf("share %d of %d has a fingerprint of another", share, s.Len())
			} else {
				seen[f] = true
			}
		}
	}
	if again := newShares(t, hot, 2); !seen[again.Fingerprint(1)] {
		t.Error("equal shares have different fingerprints")
	}
}

func TestBadShares(t *testing.T) {
	hot, err := NewHotSet(1, []uint64{5, 6}, nil, Meta{})
	if err != nil {
		t.Fatal(err)
	}
	for _, count := range []int{-1, 0, 3, share.Max + 1} {
		if _, err := share.Divide(hot.Len(), hot.Dim(), hot.Fingerprint(), count); !errors.Is(err, share.ErrConfig) {
			t.Errorf("%d shares: %v", count, err)
		}
	}
	if _, err := New(Config{HotSet: pagedHotSet(t, 1), Shares: newShares(t, hot, 2)}); !errors.Is(err, ErrConfig) {
		t.Errorf("shares of another hot set: %v", err)
	}
	if _, err := New(Config{Dim: 1, Shares: newShares(t, hot, 2)}); !errors.Is(err, ErrConfig) {
		t.Errorf("shares of no hot set: %v", err)
	}
	if _, err := share.Divide(MaxHotRows(40_000), 40_000, hot.Fingerprint(), 9); !errors.Is(err, share.ErrConfig) {
		t.Errorf("more pages than frames name: %v", err)
	}
	one, err := New(Config{HotSet: hot, Shares: newShares(t, hot, 1)})
	if err != nil {
		t.Fatal(err)
	}
	all, err := New(Config{HotSet: hot})
	if err != nil {
		t.Fatal(err)
	}
	if err := one.BeginPrepared([]float32{1}, prepared(t, all, []uint64{5})); err != nil {
		t.Errorf("one share is not the same as none: %v", err)
	}
	two, err := New(Config{HotSet: hot, Shares: newShares(t, hot, 2)})
	if err != nil {
		t.Fatal(err)
	}
	if err := two.BeginPrepared([]float32{1}, prepared(t, all, []uint64{5})); !errors.Is(err, ErrConfig) {
		t.Errorf("a batch prepared for other shares: %v", err)
	}
}

func TestPackSharesDoesNotAllocate(t *testing.T) {
	hot := pagedHotSet(t, 1)
	p, err := New(Config{HotSet: hot, Shares: newShares(t, hot, 3), Layout: Dense, Stripes: wire.DefaultStripes})
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
		t.Errorf("%v allocations a batch", n)
	}
}
