// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/libra-ina/libra/wire"
)

// TestSplit checks the server of each row, on which files and other programs depend.
func TestSplit(t *testing.T) {
	var got []int
	for _, key := range []uint64{0, 1, 2, 3, 1000, 1 << 40, math.MaxUint64} {
		got = append(got, Split(3).Of(key), Split(7).Of(key))
	}
	if want := []int{0, 0, 1, 2, 2, 6, 0, 0, 2, 5, 0, 0, 2, 4}; !slices.Equal(got, want) {
		t.Errorf("the servers of keys are %v, not %v", got, want)
	}
}

// TestSplitIsEven splits consecutive keys, distant keys, and keys that differ in their upper bits.
func TestSplitIsEven(t *testing.T) {
	const n = 100_000
	for name, key := range map[string]func(i uint64) uint64{
		"dense":   func(i uint64) uint64 { return i },
		"strided": func(i uint64) uint64 { return i * 4096 },
		"upper":   func(i uint64) uint64 { return i << 47 },
	} {
		for _, servers := range []Split{2, 3, 8, wire.MaxServers} {
			counts := make([]int, servers)
			for i := range uint64(n) {
				counts[servers.Of(key(i))]++
			}
			mean := n / float64(servers)
			for server, count := range counts {
				// Six standard deviations of a fair deal.
				if off := math.Abs(float64(count) - mean); off > 6*math.Sqrt(mean) {
					t.Errorf("%s keys: server %d of %d has %d, a fair share is %.0f", name, server, servers, count, mean)
				}
			}
		}
	}
}

// TestSplitOfBatches packs batches for several servers, prepared alone and together, and not: each
// row occurs once, in a frame for its server, in batch order for each; Order lists the same.
func TestSplitOfBatches(t *testing.T) {
	hot, err := NewHotSet(2, []uint64{5, 6, 7}, nil, Meta{})
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		split := Split(rapid.IntRange(1, 5).Draw(t, "servers"))
		layout := Layout(rapid.IntRange(0, 1).Draw(t, "layout"))
		p, err := New(Config{HotSet: hot, Layout: layout, Split: split})
		if err != nil {
			t.Fatal(err)
		}
		drawn := rapid.SliceOfN(rapid.Uint64Range(0, 40), 0, 200).Draw(t, "keys")
		cut := rapid.IntRange(0, len(drawn)).Draw(t, "cut")
		grads := make([]float32, 2*len(drawn))
		want := make([][]float32, split) // first gradients of the cold rows by server
		for i, key := range drawn {
			grads[2*i], grads[2*i+1] = float32(i), -float32(i)
			if _, isHot := hot.Rank(key); !isHot {
				want[split.Of(key)] = append(want[split.Of(key)], float32(i))
			}
		}
		if rapid.Bool().Draw(t, "prepared") {
			a, errA := p.Prepare(drawn[:cut])
			b, errB := p.Prepare(drawn[cut:])
			if errA != nil || errB != nil {
				t.Fatal(errA, errB)
			}
			err = p.BeginPrepared(grads, a, b)
		} else {
			err = p.Begin(drawn, grads)
		}
		if err != nil {
			t.Fatal(err)
		}
		got := make([][]float32, split)
		row, last := make([]float32, 2), 0
		for p.Next() != 0 {
			kind, server := p.Next(), p.To()
			size := wire.HotLen(1)
			if kind != wire.TypeHot {
				size = wire.ColdLen(3, 2)
			}
			payload, err := p.Fill(make([]byte, size))
			if err != nil {
				t.Fatal(err)
			}
			if kind == wire.TypeHot {
				continue
			}
			if server < last {
				t.Fatalf("a frame for server %d follows one for server %d", server, last)
			}
			last = server
			body, err := wire.ParseRows(payload, kind)
			if err != nil {
				t.Fatal(err)
			}
			for i := range body.Count {
				body.Row(i, row)
				if key := drawn[int(row[0])]; body.Key(i) != key || row[1] != -row[0] {
					t.Fatalf("row %v comes with key %d, not %d", row, body.Key(i), key)
				}
				got[server] = append(got[server], row[0])
			}
		}
		for server := range want {
			if !slices.Equal(got[server], want[server]) {
				t.Fatalf("server %d gets %v, not %v", server, got[server], want[server])
			}
		}
		order, ends := split.Order(hot, drawn, nil, nil)
		first := 0
		for server, end := range ends {
			if !slices.IsSorted(order[first:end]) {
				t.Fatalf("the keys of server %d are in the order %v", server, order[first:end])
			}
			for _, at := range order[first:end] {
				if owner := split.Owner(hot, drawn[at]); owner != server {
					t.Fatalf("key %d of server %d is asked of server %d", drawn[at], owner, server)
				}
			}
			first = end
		}
		if len(ends) != int(split) || first != len(drawn) || len(order) != len(drawn) {
			t.Fatalf("%d of %d keys in the lists of %d servers", first, len(drawn), len(ends))
		}
	})
}
