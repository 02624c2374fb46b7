// SPDX-License-Identifier: Apache-2.0

package ps

import "math/rand/v2"

// table maps keys to row numbers by extendible hashing (Fagin, Nievergelt,
// Pippenger and Strong 1979): the upper bits of a key's hash select a segment,
// and the lower ones an entry of it, where linear probing starts. At most half
// of a segment's entries are used. A full segment is split into two, which takes
// about ten microseconds for any table size; only the directory, one pointer for
// each segment, is ever copied as a whole.
//
// An entry is 16 bytes, so a probe sequence rarely leaves its cache line.
type table struct {
	dir   []*segment // 2^(64-shift) of them, by the upper bits of the hash
	shift uint
	// seed keeps clients from choosing keys that collide.
	seed uint64
	// base is the entry value of row 0. Entries below it are free: see forgetKeys.
	base uint64
	// spare is a segment that was split, or nil. The next split reuses its memory: new memory costs
	// more than the rest of a split.
	spare *segment
}

// segment holds the keys whose hashes begin with the same depth bits.
type segment struct {
	entries [segmentEntries]entry
	used    int
	depth   uint
}

const segmentEntries = 1 << 12

// entry holds a key and its row number plus the table's base. The base is above 0, so new entries
// are free, and every uint64 is a valid key.
type entry struct{ key, row uint64 }

// fullWith reports whether a segment would be full with more keys; a full one is split before the
// next insertion.
func (s *segment) fullWith(more int) bool { return 2*(s.used+more) >= segmentEntries }

// newTable returns a table with room for about capacity keys.
func newTable(capacity int) table {
	t := table{shift: 63, seed: rand.Uint64(), base: 1}
	// Hashes are uneven: with segments full on average, one in four would be split
	// at once.
	for segments := 2; capacity > segments*segmentEntries*3/8; segments *= 2 {
		t.shift--
	}
	t.dir = make([]*segment, 1<<(64-t.shift))
	for i := range t.dir {
		t.dir[i] = &segment{depth: 64 - t.shift}
	}
	return t
}

// mix is the output function of splitmix64 (Steele, Lea and Flood 2014), a
// bijection whose every output bit depends on every input bit.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

func (t *table) hashKey(key uint64) uint64 { return mix(key ^ t.seed) }

// findRow returns the row of a key, or -1.
func (t *table) findRow(key uint64) int {
	h := t.hashKey(key)
	s := t.dir[h>>(t.shift&63)]
	for i := h; ; i++ {
		e := &s.entries[i%segmentEntries]
		if e.row < t.base {
			return -1
		}
		if e.key == key {
			return int(e.row - t.base)
		}
	}
}

// findBatch looks up a batch of keys: rows[i] becomes the row of keys[i] if that key is in
// one of the first two entries of its probe sequence, as nearly all are, else less
// than 0. The branch predictor cannot guess where a key is, and a misprediction that
// waits for memory costs more than the rest of a look-up. So this loop does not branch on
// what it finds, and the processor overlaps the cache misses of many keys. A shorter
// loop overlaps more of them, so the hashes are computed first. The conditional
// assignments compile to conditional moves.
func (t *table) findBatch(rows []int, keys []uint64) {
	dir, shift, seed, base := t.dir, t.shift, t.seed, t.base
	rows = rows[:len(keys)]
	for i, key := range keys {
		rows[i] = int(mix(key ^ seed))
	}
	for i, key := range keys {
		h := uint64(rows[i])
		s := dir[h>>(shift&63)]
		first, second := &s.entries[h%segmentEntries], &s.entries[(h+1)%segmentEntries]
		row, other := first.row, second.row
		if second.key != key {
			other = 0
		}
		if first.key != key {
			row = other
		}
		rows[i] = int(row - base)
	}
}

// placeKey returns the row of a key. If the key is new, it gets row next.
func (t *table) placeKey(key uint64, next int) (row int, inserted bool) {
	h := t.hashKey(key)
	s := t.dir[h>>(t.shift&63)]
	for s.fullWith(0) {
		if row := t.findRow(key); row >= 0 {
			return row, false
		}
		t.splitSegment(h)
		s = t.dir[h>>(t.shift&63)]
	}
	return s.placeInSegment(h, key, uint64(next), t.base)
}

// placeInSegment inserts a key with its row at the end of its probe sequence, or returns
// its existing row.
func (s *segment) placeInSegment(h, key, row, base uint64) (int, bool) {
	for i := h; ; i++ {
		e := &s.entries[i%segmentEntries]
		if e.row < base {
			*e = entry{key, base + row}
			s.used++
			return int(row), true
		}
		if e.key == key {
			return int(e.row - base), false
		}
	}
}

// forgetKeys removes all keys, whose rows are below n, by raising the base above their entries. The
// base never overflows 64 bits.
func (t *table) forgetKeys(n int) {
	t.base += uint64(n)
	for _, s := range t.dir {
		s.used = 0
	}
}

// splitSegment moves half of the segment of hash h to a new one.
func (t *table) splitSegment(h uint64) {
	old := t.dir[h>>(t.shift&63)]
	if old.depth == 64-t.shift { // the directory has one pointer to it
		dir := make([]*segment, 2*len(t.dir))
		for i, s := range t.dir {
			dir[2*i], dir[2*i+1] = s, s
		}
		t.dir = dir
		t.shift--
	}
	if t.spare == nil {
		t.spare = new(segment)
	}
	halves := [2]*segment{t.spare, new(segment)}
	*halves[0] = segment{}
	halves[0].depth, halves[1].depth = old.depth+1, old.depth+1
	for _, e := range &old.entries {
		if e.row >= t.base {
			h := t.hashKey(e.key)
			halves[h>>(63-old.depth)&1].placeInSegment(h, e.key, e.row-t.base, t.base)
		}
	}
	// The pointers to the old segment are adjacent.
	n := len(t.dir) >> old.depth
	first := int(h>>(t.shift&63)) &^ (n - 1)
	for i := range n {
		t.dir[first+i] = halves[2*i/n]
	}
	t.spare = old
}

// makeRoom splits the segments that would be full with n more keys, if n is large compared with the
// segments to visit.
func (t *table) makeRoom(n int) {
	if n < len(t.dir) {
		return
	}
	for h := uint64(0); ; {
		s := t.dir[h>>(t.shift&63)]
		share := n >> s.depth
		if more := share + share/4; s.used > segmentEntries/8 && s.fullWith(more) { // hashes are uneven
			t.splitSegment(h)
			continue
		}
		if h += 1 << (64 - s.depth); h == 0 {
			return
		}
	}
}

// unplaceKey removes a key. Entries behind it whose probe sequences pass over it move
// up (Knuth, The Art of Computer Programming 3, algorithm 6.4R).
func (t *table) unplaceKey(key uint64) {
	h := t.hashKey(key)
	s := t.dir[h>>(t.shift&63)]
	hole := h % segmentEntries
	for s.entries[hole].key != key || s.entries[hole].row < t.base {
		hole = (hole + 1) % segmentEntries
	}
	for i := (hole + 1) % segmentEntries; s.entries[i].row >= t.base; i = (i + 1) % segmentEntries {
		home := t.hashKey(s.entries[i].key) % segmentEntries
		// The entry may move if its home is not behind the hole.
		if (i-home)%segmentEntries >= (i-hole)%segmentEntries {
			s.entries[hole] = s.entries[i]
			hole = i
		}
	}
	s.entries[hole] = entry{}
	s.used--
}
