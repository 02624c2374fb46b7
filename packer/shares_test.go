// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"cmp"
	"errors"
	"fmt"
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

// sharedPairs reads the frames of a batch: the pairs of each share by their ranks in the hot set,
// and the number of cold rows of each server.
func sharedPairs(tb rapid.TB, p *Packer, s *share.Division, layout Layout) (pairs [][]pair, cold [3]int) {
	pairs = make([][]pair, s.Len())
	buffer, last := make([]byte, wire.MaxPayload), 0
	for p.Next() != 0 {
		hot, to, before := p.Next() == wire.TypeHot, p.To(), p.Sent()
		payload, err := p.Fill(buffer)
		if err != nil {
			tb.Fatal(err)
		}
		if !hot {
			cold[to] += p.Sent().ColdRows - before.ColdRows
			continue
		}
		if to < last {
			tb.Fatalf("a frame of share %d after one of share %d", to, last)
		}
		last = to
		for i := range (len(payload) - wire.HeaderLen) / wire.StripeLen {
			stripe := wire.StripeAt(payload, i)
			for lane := range wire.Lanes {
				if stripe.Mask()>>lane&1 == 0 {
					continue
				}
				local := layout.Rank(stripe, lane)
				rank, ok := s.Rank(to, local)
				if !ok {
					tb.Fatalf("local rank %d, share %d has %d slots", local, to, s.Slots(to))
				}
				pairs[to] = append(pairs[to], pair{rank, stripe.Bits(lane)})
			}
		}
	}
	return pairs, cold
}

// ownerOf returns the share of a rank by the rule for parts.
func ownerOf(hot *HotSet, count int, rank uint32) int {
	return int(rank) / hot.Dim() / share.PartRows(hot.Len(), share.MaxParts) % count
}

// drawPlan returns a plan for some shares: a part may be in several, and cold though it is in some.
func drawPlan(t *rapid.T, hot *HotSet, count int) share.Plan {
	plan := share.Plan{PartRows: share.PartRows(hot.Len(), rapid.IntRange(1, share.MaxParts).Draw(t, "parts")),
		Shares: make([][]uint32, count)}
	for part := range (hot.Len()-1)/plan.PartRows + 1 {
		to := share.Cold
		for _, i := range rapid.Permutation([]int{0, 1, 2, 3, 4, 5, 6, 7, 8}[:count]).Draw(t, "holders")[:rapid.IntRange(0,
			min(2, count)).Draw(t, "copies")] {
			plan.Shares[i] = append(plan.Shares[i], uint32(part))
			if rapid.IntRange(0, 3).Draw(t, "cold") > 0 {
				to = i
			}
		}
		plan.To = append(plan.To, to)
	}
	for i, parts := range plan.Shares {
		if len(parts) == 0 {
			plan.Shares[i] = []uint32{0}
		}
	}
	return plan
}

// Every pair arrives once, in a frame of the share that has its part, by a rank that leads back to
// it.
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
		dim, count := hot.Dim(), rapid.IntRange(1, 9).Draw(t, "shares")
		layout := rapid.SampledFrom([]Layout{LaneAligned, Dense}).Draw(t, "layout")
		s, owner := newShares(t, hot, count), func(rank uint32) int { return ownerOf(hot, count, rank) }
		if rapid.Bool().Draw(t, "planned") {
			plan := drawPlan(t, hot, count)
			var err error
			if s, err = share.New(hot.Len(), hot.Dim(), hot.Fingerprint(), plan); err != nil {
				t.Fatal(err)
			}
			owner = func(rank uint32) int { return plan.To[int(rank)/dim/plan.PartRows] }
		}
		p, err := New(Config{HotSet: hot, Shares: s, Layout: layout, Stripes: rapid.IntRange(1, 10).Draw(t, "stripes"),
			Split: Split(rapid.IntRange(1, 3).Draw(t, "servers"))})
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
			want, wantCold := make([][]pair, count), [3]int{}
			for i, key := range keys {
				row, ok := hot.Rank(key)
				if !ok || owner(row*uint32(dim)) == share.Cold {
					wantCold[p.split.Owner(hot, key)]++
					continue
				}
				to := owner(row * uint32(dim))
				for j := range dim {
					want[to] = append(want[to], pair{row*uint32(dim) + uint32(j), math.Float32bits(grads[i*dim+j])})
				}
			}
			if cold != wantCold {
				t.Fatalf("%s: %d cold rows of each server, want %d", how, cold, wantCold)
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
	for name, plan := range map[string]share.Plan{
		"no shares":            {PartRows: 1, To: []int{-1, -1}},
		"no rows in a part":    {Shares: [][]uint32{{0}}, To: []int{0, 0}},
		"a part without place": {PartRows: 1, Shares: [][]uint32{{0}}, To: []int{0}},
		"an empty share":       {PartRows: 1, Shares: [][]uint32{{0}, {}}, To: []int{0, -1}},
		"a part twice":         {PartRows: 1, Shares: [][]uint32{{0, 0}}, To: []int{0, -1}},
		"a part beyond":        {PartRows: 1, Shares: [][]uint32{{2}}, To: []int{-1, -1}},
		"a share without it":   {PartRows: 1, Shares: [][]uint32{{0}}, To: []int{0, 0}},
		"a share beyond":       {PartRows: 1, Shares: [][]uint32{{0}}, To: []int{0, 1}},
		"less than cold":       {PartRows: 1, Shares: [][]uint32{{0}}, To: []int{0, -2}},
	} {
		if _, err := share.New(hot.Len(), hot.Dim(), hot.Fingerprint(), plan); !errors.Is(err, share.ErrConfig) {
			t.Errorf("%s: %v", name, err)
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
	if err := two.Divide(newShares(t, pagedHotSet(t, 1), 2)); !errors.Is(err, ErrConfig) {
		t.Errorf("dividing otherwise, by shares of another hot set: %v", err)
	}
}

// After the hot set is divided otherwise, every pair of a batch goes where the new shares have it,
// also of one that was prepared before; the rest of the batch in progress goes where it began to
// go.
func TestDivideOtherwise(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dim := rapid.SampledFrom([]int{1, 1, 2, 7}).Draw(t, "dim")
		hot := pagedHotSet(t, dim)
		layout := rapid.SampledFrom([]Layout{LaneAligned, Dense}).Draw(t, "layout")
		draw := func() *share.Division {
			if rapid.IntRange(0, 4).Draw(t, "undivided") == 0 {
				return newShares(t, hot, 1)
			}
			s, err := share.New(hot.Len(), dim, hot.Fingerprint(), drawPlan(t, hot, rapid.IntRange(1, 5).Draw(t, "shares")))
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		servers := Split(rapid.IntRange(1, 3).Draw(t, "servers"))
		config := Config{HotSet: hot, Shares: draw(), Layout: layout, Stripes: rapid.IntRange(1, 10).Draw(t, "stripes"),
			Split: servers}
		p, err := New(config)
		if err != nil {
			t.Fatal(err)
		}
		keys := rapid.SliceOfN(pagedKey(hot), 0, 200).Draw(t, "keys")
		grads := make([]float32, len(keys)*dim)
		for i := range grads {
			grads[i] = float32(i + 1)
		}
		cut := rapid.IntRange(0, len(keys)).Draw(t, "cut")
		whole, head, tail := prepared(t, p, keys), prepared(t, p, keys[:cut]), prepared(t, p, keys[cut:])
		numbers := rapid.Bool().Draw(t, "numbers")
		for range rapid.IntRange(1, 3).Draw(t, "changes") {
			if numbers { // of the rows that are cold now
				for _, b := range []*Prepared{whole, head, tail} {
					rows := &RowNumbers{Numberings: []uint32{1, 1, 1}[:servers], Numbers: make([]uint32, len(b.ColdRows().Keys))}
					for i, key := range b.ColdRows().Keys {
						rows.Numbers[i] = uint32(key)
					}
					b.ColdRows().SetNumbers(rows)
				}
			}
			if err := p.Begin(keys, grads); err != nil {
				t.Fatal(err)
			}
			want, wantCold := framesOf(t, p, -1)
			if err := p.Begin(keys, grads); err != nil {
				t.Fatal(err)
			}
			begun, begunCold := framesOf(t, p, rapid.IntRange(0, 3).Draw(t, "frames"))
			now := draw()
			if err := p.Divide(now); err != nil {
				t.Fatal(err)
			}
			rest, restCold := framesOf(t, p, -1)
			if diff := gocmp.Diff(want+wantCold, begun+rest+begunCold+restCold); diff != "" {
				t.Fatalf("a batch in progress (-want +got)\n%s", diff)
			}
			fresh := config
			fresh.Shares = now
			other, err := New(fresh)
			if err != nil {
				t.Fatal(err)
			}
			for how, begin := range map[string]func(*Packer) error{
				"keys":     func(p *Packer) error { return p.Begin(keys, grads) },
				"prepared": func(p *Packer) error { return p.BeginPrepared(grads, whole) },
				"merged":   func(p *Packer) error { return p.BeginPrepared(grads, head, tail) },
				"sum": func(p *Packer) error {
					_, err := p.BeginSum(-20, []Part{{Prepared: head, Grads: grads[:cut*dim]},
						{Keys: keys[cut:], Grads: grads[cut*dim:]}})
					return err
				},
			} {
				if err := begin(p); err != nil {
					t.Fatalf("%s: %v", how, err)
				}
				got, gotCold := sharedPairs(t, p, now, layout)
				if how == "sum" {
					_, err = other.BeginSum(-20, []Part{{Keys: keys[:cut], Grads: grads[:cut*dim]},
						{Keys: keys[cut:], Grads: grads[cut*dim:]}})
				} else {
					err = other.Begin(keys, grads)
				}
				if err != nil {
					t.Fatal(err)
				}
				want, wantCold := sharedPairs(t, other, now, layout)
				if gotCold != wantCold {
					t.Fatalf("%s: %d cold rows of each server, want %d", how, gotCold, wantCold)
				}
				for share := range want {
					if diff := gocmp.Diff(sortPairs(want[share]), sortPairs(got[share]), gocmp.AllowUnexported(pair{})); diff != "" {
						t.Fatalf("%s: share %d (-want +got)\n%s", how, share, diff)
					}
				}
			}
			rows := whole.ColdRows()
			if want := prepared(t, other, keys).ColdRows().Keys; !slices.Equal(rows.Keys, want) {
				t.Fatalf("the cold rows are %x, want %x", rows.Keys, want)
			}
			for i := range rows.Keys {
				if n := rows.Numbers(); n != nil && n.Numbers[i] != uint32(rows.Keys[i]) {
					t.Fatalf("cold row %x has the number of %x", rows.Keys[i], n.Numbers[i])
				}
			}
		}
	})
}

// framesOf fills at most n frames of a batch, or all, and describes the hot and the cold ones.
func framesOf(t *rapid.T, p *Packer, n int) (hot, cold string) {
	buffer := make([]byte, wire.MaxPayload)
	for ; p.Next() != 0 && n != 0; n-- {
		to, kind := p.To(), p.Next()
		payload, err := p.Fill(buffer)
		if err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprintf("%v to %d: %x\n", kind, to, payload[wire.HeaderLen:])
		if kind == wire.TypeHot {
			hot += text
		} else {
			cold += text
		}
	}
	return hot, cold
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
