// SPDX-License-Identifier: Apache-2.0

package heat

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/libra-ina/libra/packer"
)

func count(c Counter, keys []uint64) Ranking {
	for _, key := range keys {
		c.Add(key)
	}
	return c.Ranking()
}

func TestExact(t *testing.T) {
	got := count(&Exact{}, []uint64{7, 3, 7, 9, 3, 7, 1})
	want := Ranking{
		Counts:  []Count{{7, 3}, {3, 2}, {1, 1}, {9, 1}}, // ties by key
		Updates: 7,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if got := (&Exact{}).Ranking(); len(got.Counts) != 0 || got.Updates != 0 {
		t.Errorf("nothing counted: %+v", got)
	}
}

func TestSpaceSavingIsExactWhileCountersLast(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keys := rapid.SliceOf(rapid.Uint64Range(0, 30)).Draw(t, "keys")
		s, err := NewSpaceSaving(32)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(count(&Exact{}, keys), count(s, keys)); diff != "" {
			t.Fatalf("(-exact +space saving)\n%s", diff)
		}
	})
}

// The bounds that the algorithm guarantees, on skewed, uniform and adversarial streams.
func TestSpaceSavingBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		counters := rapid.IntRange(1, 40).Draw(t, "counters")
		universe := rapid.Uint64Range(1, 200).Draw(t, "universe")
		small := rapid.Uint64Range(0, universe)
		keys := rapid.SliceOfN(rapid.OneOf(small, rapid.Uint64Range(0, 3)), 0, 600).Draw(t, "keys")
		s, err := NewSpaceSaving(counters)
		if err != nil {
			t.Fatal(err)
		}
		got := count(s, keys)
		truth := map[uint64]uint64{}
		for _, key := range keys {
			truth[key]++
		}
		if n := uint64(len(keys)); got.Updates != n || got.Err > n/uint64(counters) {
			t.Fatalf("updates %d, error %d; want %d, at most %d", got.Updates, got.Err, n, n/uint64(counters))
		}
		if len(s.groups) > counters+1 { // no leak: at most one group per counter, and one more during a move
			t.Fatalf("%d groups for %d counters", len(s.groups), counters)
		}
		var total uint64
		listed := map[uint64]bool{}
		for i, c := range got.Counts {
			total += c.Updates
			listed[c.Key] = true
			if c.Updates < truth[c.Key] || c.Updates > truth[c.Key]+got.Err {
				t.Fatalf("key %d: counted %d, truth %d, stated error %d", c.Key, c.Updates, truth[c.Key], got.Err)
			}
			if i > 0 && c.Updates > got.Counts[i-1].Updates {
				t.Fatalf("not descending: %v", got.Counts)
			}
		}
		if total != got.Updates { // every update is in exactly one counter
			t.Fatalf("counters add up to %d of %d updates", total, got.Updates)
		}
		for key, n := range truth {
			if !listed[key] && n > got.Err {
				t.Fatalf("key %d with %d updates is not listed, stated error %d", key, n, got.Err)
			}
		}
	})
}

func TestSpaceSavingFindsTheHotHead(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	zipf := rand.NewZipf(rng, 1.2, 1, 1<<30)
	s, err := NewSpaceSaving(2000)
	if err != nil {
		t.Fatal(err)
	}
	exact := &Exact{}
	for range 300_000 {
		key := zipf.Uint64()
		s.Add(key)
		exact.Add(key)
	}
	const top = 200
	found := map[uint64]bool{}
	for _, c := range s.Ranking().Counts[:top] {
		found[c.Key] = true
	}
	hits := 0
	for _, c := range exact.Ranking().Counts[:top] {
		if found[c.Key] {
			hits++
		}
	}
	if hits < top*95/100 {
		t.Errorf("found %d of the %d hottest keys", hits, top)
	}
}

func TestNewSpaceSavingErrors(t *testing.T) {
	for _, k := range []int{-1, 0, maxCounters + 1} {
		if _, err := NewSpaceSaving(k); !errors.Is(err, packer.ErrConfig) {
			t.Errorf("%d counters: %v", k, err)
		}
	}
}

func BenchmarkCounter(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 2))
	zipf := rand.NewZipf(rng, 1.1, 1, 1<<20-1)
	keys := make([]uint64, 1<<20)
	for i := range keys {
		keys[i] = zipf.Uint64() * 0x9e3779b97f4a7c15
	}
	for name, c := range map[string]func() Counter{
		"exact": func() Counter { return &Exact{} },
		"spacesaving": func() Counter {
			s, err := NewSpaceSaving(100_000)
			if err != nil {
				b.Fatal(err)
			}
			return s
		},
	} {
		b.Run(name, func(b *testing.B) {
			n := 0
			for b.Loop() {
				counter := c()
				for _, key := range keys {
					counter.Add(key)
				}
				n += len(keys)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/update")
		})
	}
}
