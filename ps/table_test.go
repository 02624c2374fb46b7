// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// tableModel applies the same operations to a table and Go's map.
type tableModel struct {
	table table
	want  map[uint64]int
	order []uint64
}

func (m *tableModel) place(t interface{ Fatalf(string, ...any) }, k uint64) {
	row, inserted := m.table.placeKey(k, len(m.order))
	if known, ok := m.want[k]; ok == inserted || ok && row != known || !ok && row != len(m.order) {
		t.Fatalf("place(%d) = %d, %v; the map has %d, %v", k, row, inserted, known, ok)
	}
	if inserted {
		m.want[k] = row
		m.order = append(m.order, k)
	}
}

func (m *tableModel) check(t interface{ Fatalf(string, ...any) }) {
	for k, row := range m.want {
		if got := m.table.findRow(k); got != row {
			t.Fatalf("find(%d) = %d, want %d", k, got, row)
		}
	}
	// home finds a key's row or nothing, never another's.
	rows := make([]int, len(m.order))
	m.table.findBatch(rows, m.order)
	for i, k := range m.order {
		if rows[i] >= 0 && rows[i] != m.want[k] {
			t.Fatalf("home of %d is %d, want %d or none", k, rows[i], m.want[k])
		}
	}
	used := 0
	seen := map[*segment]bool{}
	for i, s := range m.table.dir {
		if !seen[s] {
			seen[s] = true
			used += s.used
			if 2*s.used > segmentEntries {
				t.Fatalf("%d of %d entries of a segment are used", s.used, segmentEntries)
			}
		}
		for _, e := range &s.entries {
			if e.row >= m.table.base && m.table.hashKey(e.key)>>(64-s.depth) != uint64(i)>>(uint(bits.Len(uint(len(m.table.dir))))-1-s.depth) {
				t.Fatalf("key %d is in the wrong segment", e.key)
			}
		}
	}
	if used != len(m.want) {
		t.Fatalf("%d entries are used, for %d keys", used, len(m.want))
	}
}

// unmix is the inverse of mix: it returns keys whose hashes a test chooses.
func unmix(x uint64) uint64 {
	x ^= x>>31 ^ x>>62
	x *= 0x319642b2d24d8ec3
	x ^= x>>27 ^ x>>54
	x *= 0x96de1b173f119089
	return x ^ x>>30 ^ x>>60
}

// TestTableMatchesMap compares the table with Go's map, including keys that collide in an entry or
// in their segment, and removes keys in any order.
func TestTableMatchesMap(t *testing.T) {
	if unmix(mix(12345)) != 12345 {
		t.Fatal("unmix is no inverse")
	}
	rapid.Check(t, func(t *rapid.T) {
		m := tableModel{table: newTable(0), want: map[uint64]int{}}
		// A few entries at both ends of a segment, so that probing wraps.
		hash := rapid.Custom(func(t *rapid.T) uint64 {
			upper := rapid.Uint64Range(0, 3).Draw(t, "upper") << 62
			middle := rapid.Uint64Range(0, 1<<20).Draw(t, "middle") << 13
			lower := rapid.SampledFrom([]uint64{0, 1, 2, segmentEntries - 2, segmentEntries - 1}).Draw(t, "lower")
			return upper | middle | lower
		})
		key := rapid.OneOf(rapid.Uint64Range(0, 40), rapid.Uint64(),
			rapid.Map(hash, func(h uint64) uint64 { return unmix(h) ^ m.table.seed }))
		t.Repeat(map[string]func(*rapid.T){
			"place": func(t *rapid.T) {
				old := len(m.order)
				for _, k := range rapid.SliceOfN(key, 1, 12).Draw(t, "keys") {
					m.place(t, k)
				}
				if rapid.Bool().Draw(t, "take back") {
					for _, k := range rapid.Permutation(slices.Clone(m.order[old:])).Draw(t, "order") {
						m.table.unplaceKey(k)
						delete(m.want, k)
					}
					m.order = m.order[:old]
				}
			},
			"forget": func(t *rapid.T) {
				m.table.forgetKeys(len(m.order))
				clear(m.want)
				m.order = m.order[:0]
			},
			"make room": func(t *rapid.T) {
				m.table.makeRoom(rapid.IntRange(-1, 30_000).Draw(t, "room"))
			},
			"": func(t *rapid.T) {
				m.check(t)
				k := key.Draw(t, "absent")
				if _, ok := m.want[k]; !ok && m.table.findRow(k) != -1 {
					t.Fatalf("find(%d) = %d, want -1", k, m.table.findRow(k))
				}
			},
		})
	})
}

// TestTableGrows splits segments and doubles the directory many times, and empties
// the table again.
func TestTableGrows(t *testing.T) {
	for _, capacity := range []int{0, 10_000} {
		m := tableModel{table: newTable(capacity), want: map[uint64]int{}}
		directory := len(m.table.dir)
		rng := rand.New(rand.NewPCG(1, 2))
		for n := 1; n <= 60_000; n++ {
			m.place(t, rng.Uint64())
			if n == capacity && len(m.table.dir) != directory {
				t.Errorf("a table for %d keys has grown", capacity)
			}
			if n%7000 == 0 {
				m.check(t)
			}
		}
		for _, k := range m.order[:100] {
			m.place(t, k) // also in full segments
		}
		m.check(t)
		if n := len(m.table.dir); n < 32 || n > 128 {
			t.Errorf("%d pointers in the directory", n)
		}
		for i, k := range m.order {
			m.table.unplaceKey(k)
			delete(m.want, k)
			if i%20_000 == 0 {
				m.check(t)
			}
		}
		m.check(t)
	}
}

// A table that has reserved space for as many keys as it has accepts them without a split, and a
// table that would have to check more segments than there are keys does not change.
func TestTableMakesRoom(t *testing.T) {
	const n = 20_000
	m := tableModel{table: newTable(0), want: map[uint64]int{}}
	rng := rand.New(rand.NewPCG(1, 2))
	for range n {
		m.place(t, rng.Uint64())
	}
	before := slices.Clone(m.table.dir)
	m.table.makeRoom(len(m.table.dir) - 1)
	if !slices.Equal(m.table.dir, before) {
		t.Error("split for few keys")
	}
	m.table.makeRoom(n)
	m.check(t)
	room := slices.Clone(m.table.dir)
	if len(slices.Compact(slices.Clone(room))) < 2*n/(segmentEntries/2) {
		t.Errorf("%d segments", len(room))
	}
	for range n {
		m.place(t, rng.Uint64())
	}
	if m.check(t); !slices.Equal(m.table.dir, room) {
		t.Error("split although there was room")
	}
}

// Space reserved for few more keys is also enough.
func TestTableMakesRoomForFew(t *testing.T) {
	const n = 20_000
	for more := 1000; more <= n; more += 1000 {
		m := tableModel{table: newTable(0), want: map[uint64]int{}}
		rng := rand.New(rand.NewPCG(1, 2))
		for range n {
			m.place(t, rng.Uint64())
		}
		m.table.makeRoom(more)
		room := slices.Clone(m.table.dir)
		for range more {
			m.place(t, rng.Uint64())
		}
		if !slices.Equal(m.table.dir, room) {
			t.Errorf("%d keys: split although there was room", more)
		}
	}
}

// A full segment that already has the key is not split.
func TestFullSegmentIsSplitForNewKeysOnly(t *testing.T) {
	m := tableModel{table: newTable(0), want: map[uint64]int{}}
	for k := uint64(0); m.table.dir[0].used < segmentEntries/2; k++ {
		if key := unmix(k) ^ m.table.seed; k>>63 == 0 { // the lower half of the hashes
			m.place(t, key)
		}
	}
	first := m.table.dir[0]
	for _, k := range m.order {
		m.place(t, k)
	}
	if m.table.dir[0] != first {
		t.Error("the segment was split")
	}
	m.place(t, unmix(1<<62)^m.table.seed)
	if m.table.dir[0] == first {
		t.Error("the segment was not split")
	}
	m.check(t)
}

// The hash of a key is another in every table, so that no set of keys is the worst
// for all.
func TestTablesHaveSeeds(t *testing.T) {
	a, b := newTable(0), newTable(0)
	if a.hashKey(1) == b.hashKey(1) {
		t.Error("two tables have the same hash")
	}
}
