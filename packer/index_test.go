// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// keySets are easy and hard sets of keys for tables.
func keySets(rng *rand.Rand) map[string][]uint64 {
	draw := func(n int, key func(i int) uint64) []uint64 {
		keys := make([]uint64, n)
		for i := range keys {
			keys[i] = key(i)
		}
		slices.Sort(keys)
		keys = slices.Compact(keys)
		rng.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
		return keys
	}
	return map[string][]uint64{
		"none":          {},
		"zero":          {0},
		"greatest":      {math.MaxUint64},
		"both ends":     {0, math.MaxUint64},
		"neighbours":    {7, 8},
		"small numbers": draw(5000, func(i int) uint64 { return uint64(i) }),
		"at the top":    draw(5000, func(i int) uint64 { return math.MaxUint64 - uint64(i) }),
		"hashed":        draw(30_000, func(int) uint64 { return rng.Uint64() }),
		"fields":        draw(20_000, func(i int) uint64 { return uint64(i%40)<<48 | rng.Uint64N(1000) }),
		"one far away":  append(draw(1000, func(i int) uint64 { return uint64(i) * 3 }), math.MaxUint64),
		"powers of two": draw(64, func(i int) uint64 { return 1 << i }),
	}
}

func TestIndexFindsWhatIsThere(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for name, keys := range keySets(rng) {
		t.Run(name, func(t *testing.T) {
			x, first, second := newIndex(append([]uint64{0}, keys...))
			if first != 0 || second != 0 {
				t.Fatalf("keys %d and %d are said to be equal", first, second)
			}
			want := make(map[uint64]uint32, len(keys))
			batch := []uint64{0, 1, math.MaxUint64, math.MaxUint64 - 1}
			for i, key := range keys {
				want[key] = uint32(i + 1)
				batch = append(batch, key, key-1, key+1, rng.Uint64())
			}
			for _, order := range []string{"shuffled", "sorted"} {
				if order == "sorted" {
					slices.Sort(batch)
				}
				out := make([]uint32, len(batch))
				x.findAll(out, batch)
				for i, key := range batch {
					if out[i] != want[key] || x.findKey(key) != want[key] {
						t.Fatalf("%s: key %#x: findAll gives %d, find %d, want %d", order, key, out[i], x.findKey(key), want[key])
					}
				}
			}
		})
	}
}

func TestIndexKeepsTheOrderOfEvenlySpreadKeys(t *testing.T) {
	for name, keys := range keySets(rand.New(rand.NewPCG(7, 8))) {
		x, _, _ := newIndex(append([]uint64{0}, keys...))
		switch ordered := x.fold == 0; name {
		case "small numbers", "at the top", "hashed":
			if !ordered {
				t.Errorf("%s: scattered", name)
			}
		case "fields", "one far away", "powers of two":
			if ordered {
				t.Errorf("%s: in order", name)
			}
		}
	}
}

// Keys keep their order as long as at most half as many entries are skipped as there are keys.
func TestIndexScattersWhatGoesPastMore(t *testing.T) {
	for pairs, want := range map[int]bool{2: true, 3: false} {
		keys := []uint64{0, 0, 1, 2, 3} // after the padding, four with the first entry: three skip one, two and three
		for k := uint64(4); len(keys) <= 16; k++ {
			keys = append(keys, k<<36)
			if pairs > 0 {
				keys = append(keys, k<<36+1) // skips the last one
			}
			pairs--
		}
		keys[len(keys)-1] = 16<<36 - 1
		if x, _, _ := newIndex(keys); len(keys) != 17 || (x.fold == 0) != want {
			t.Errorf("%d keys in order: %v, want %v", len(keys)-1, x.fold == 0, want)
		}
	}
}

func TestIndexNamesEqualKeys(t *testing.T) {
	for name, keys := range keySets(rand.New(rand.NewPCG(9, 10))) {
		if len(keys) == 0 {
			continue
		}
		padded := append([]uint64{0}, append(keys, keys[len(keys)/2])...)
		if _, first, second := newIndex(padded); first != len(keys)/2+1 || second != len(padded)-1 {
			t.Errorf("%s: %d and %d", name, first, second)
		}
	}
}

// Keys with the same home entry must be found, and so must keys whose probe sequence wraps at the
// end of the table.
func TestIndexWithCollidingKeys(t *testing.T) {
	for name, p := range map[string]placing{"scattered": scatter(8), "in order": keepOrder(8, 1<<20, 1<<30)} {
		const n, spare = 50, 200
		keys := []uint64{0}
		for key := uint64(1 << 30); len(keys) < 1+n+spare; key-- {
			if p.homeEntry(key) == p.last {
				keys = append(keys, key)
			}
		}
		x, _, _ := buildIndex(keys[:1+n], p, math.MaxInt)
		out := make([]uint32, len(keys)-1)
		x.findAll(out, keys[1:])
		for i, key := range keys[1:] {
			want := uint32(i + 1)
			if i >= n {
				want = 0
			}
			if out[i] != want || x.findKey(key) != want {
				t.Fatalf("%s: key %d: findAll gives %d, find %d, want %d", name, key, out[i], x.findKey(key), want)
			}
		}
	}
}
