// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func mustHotSet(tb testing.TB, dim int, keys ...uint64) *HotSet {
	tb.Helper()
	h, err := NewHotSet(dim, keys, nil, Meta{})
	if err != nil {
		tb.Fatal(err)
	}
	return h
}

// keysGen draws distinct keys, some of them small or multiples of a large power of
// two, where a weak hash would collide.
func keysGen(maxLen int) *rapid.Generator[[]uint64] {
	key := rapid.OneOf(
		rapid.Uint64(),
		rapid.Uint64Range(0, 200),
		rapid.Map(rapid.Uint64Range(0, 200), func(k uint64) uint64 { return k << 48 }),
	)
	return rapid.SliceOfNDistinct(key, 0, maxLen, rapid.ID[uint64])
}

func TestRankAgreesWithMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keys := keysGen(400).Draw(t, "keys")
		h, err := NewHotSet(1, keys, nil, Meta{})
		if err != nil {
			t.Fatal(err)
		}
		want := map[uint64]uint32{}
		for r, key := range keys {
			want[key] = uint32(r)
		}
		queries := append(keysGen(400).Draw(t, "queries"), keys...)
		found := make([]uint32, len(queries))
		h.Ranks(found, queries)
		for i, key := range queries {
			rank, hot := want[key]
			if got, ok := h.Rank(key); ok != hot || ok && got != rank {
				t.Fatalf("Rank(%d) = %d, %v; want %d, %v", key, got, ok, rank, hot)
			}
			if found[i] != Cold != hot || hot && found[i] != rank {
				t.Fatalf("Ranks gives %d for key %d, want %d, %v", found[i], key, rank, hot)
			}
			if hot && h.Key(rank) != key {
				t.Fatalf("Key(%d) = %d, want %d", rank, h.Key(rank), key)
			}
		}
	})
}

func TestNewHotSetErrors(t *testing.T) {
	for name, c := range map[string]struct {
		dim    int
		keys   []uint64
		counts []uint64
		want   error
	}{
		"duplicate":       {1, []uint64{5, 6, 7, 6}, nil, ErrHotSet},
		"duplicate zero":  {1, []uint64{0, 0}, nil, ErrHotSet},
		"no dimension":    {0, []uint64{1}, nil, ErrHotSet},
		"huge dimension":  {maxDim + 1, []uint64{1}, nil, ErrHotSet},
		"missing a count": {1, []uint64{1, 2}, []uint64{9}, ErrHotSet},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := NewHotSet(c.dim, c.keys, c.counts, Meta{})
			if !errors.Is(err, c.want) {
				t.Fatalf("got %v, want %v", err, c.want)
			}
		})
	}
	_, err := NewHotSet(1, []uint64{5, 6, 7, 6}, nil, Meta{})
	if want := "packer: bad hot set: key 6 has the ranks 1 and 3"; err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
}

func TestHotSetKeepsCopies(t *testing.T) {
	keys, counts := []uint64{10, 20}, []uint64{3, 2}
	h, err := NewHotSet(4, keys, counts, Meta{Updates: 10, Covered: 5})
	if err != nil {
		t.Fatal(err)
	}
	keys[0], counts[0] = 99, 99
	if h.Key(0) != 10 || h.Count(0) != 3 {
		t.Errorf("rank 0 = key %d, count %d after the caller changed its slices", h.Key(0), h.Count(0))
	}
	if h.Slots() != 8 || h.Len() != 2 || h.Dim() != 4 {
		t.Errorf("slots %d, len %d, dim %d", h.Slots(), h.Len(), h.Dim())
	}
	if got := h.Meta().Share(); got != 0.5 {
		t.Errorf("share %v, want 0.5", got)
	}
	if got := (Meta{}).Share(); got != 0 {
		t.Errorf("share of nothing %v", got)
	}
}

func TestFingerprint(t *testing.T) {
	a := mustHotSet(t, 1, 1, 2, 3)
	same, err := NewHotSet(1, []uint64{1, 2, 3}, []uint64{9, 8, 7}, Meta{Rate: 0.5})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(a.Fingerprint(), same.Fingerprint()); diff != "" {
		t.Errorf("counts and meta must not matter:\n%s", diff)
	}
	for name, other := range map[string]*HotSet{
		"order":     mustHotSet(t, 1, 2, 1, 3),
		"dimension": mustHotSet(t, 2, 1, 2, 3),
		"length":    mustHotSet(t, 1, 1, 2, 3, 4),
		"empty":     mustHotSet(t, 1),
	} {
		if other.Fingerprint() == a.Fingerprint() {
			t.Errorf("%s does not change the fingerprint", name)
		}
	}
	// Long enough that the keys pass through the digest in several parts.
	long := make([]uint64, 5000)
	for i := range long {
		long[i] = uint64(i)
	}
	b := mustHotSet(t, 3, long...)
	text := make([]byte, 16+8*len(long))
	text[7] = 3
	binary.BigEndian.PutUint64(text[8:], uint64(len(long)))
	for i, key := range long {
		binary.BigEndian.PutUint64(text[16+8*i:], key)
	}
	if want := Fingerprint(sha256.Sum256(text)); b.Fingerprint() != want {
		t.Errorf("fingerprint %v, want the SHA-256 of dimension, length and keys, %v", b.Fingerprint(), want)
	}
	long[4999] = 1 << 40
	if c := mustHotSet(t, 3, long...); c.Fingerprint() == b.Fingerprint() {
		t.Error("the last of 5000 keys does not change the fingerprint")
	}
}

func make50() []uint64 {
	keys := make([]uint64, 50)
	for i := range keys {
		keys[i] = uint64(i)
	}
	return keys
}
