package ps

import "math/bits"

// table maps keys to row numbers by open addressing with linear probing. An
// entry is 16 bytes, so a probe sequence seldom leaves its cache line; at most
// half of the entries are used.
type table struct {
	entries []entry // a power of two
	shift   uint    // 64 - log2(len(entries))
	used    int
}

// entry holds a key and its row number plus one; 0 marks a free entry, because
// every uint64 is a valid key.
type entry struct{ key, row uint64 }

const minTable = 16

func newTable(capacity int) table {
	size := max(minTable, 2*capacity)
	log := bits.Len(uint(size - 1))
	return table{entries: make([]entry, 1<<log), shift: uint(64 - log)}
}

// mix is the output function of splitmix64 (Steele, Lea and Flood 2014), a
// bijection whose every output bit depends on every input bit.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// find returns the row of a key, or -1.
func (t *table) find(key uint64) int {
	mask := uint64(len(t.entries) - 1)
	for i := mix(key) >> t.shift; ; i++ {
		e := &t.entries[i&mask]
		if e.row == 0 {
			return -1
		}
		if e.key == key {
			return int(e.row - 1)
		}
	}
}

// home looks a batch of keys up: rows[i] becomes the row of keys[i] if that key
// is in the entry that its probe sequence begins with, as most are, else -1.
// Whether it is can hardly be predicted, and a wrong prediction that waits for
// memory costs more than the rest of a look-up; so this loop does not branch on
// what it finds, and the processor overlaps the cache misses of many keys. The
// conditional assignment compiles to a conditional move.
func (t *table) home(rows []int, keys []uint64) {
	entries, shift := t.entries, t.shift
	rows = rows[:len(keys)]
	for i, key := range keys {
		e := &entries[mix(key)>>(shift&63)]
		row := e.row
		if e.key != key {
			row = 0
		}
		rows[i] = int(row) - 1
	}
}

// place returns the row of a key. If the key is new, it gets row next. There
// must be room; see grow.
func (t *table) place(key uint64, next int) (row int, inserted bool) {
	mask := uint64(len(t.entries) - 1)
	for i := mix(key) >> t.shift; ; i++ {
		e := &t.entries[i&mask]
		if e.row == 0 {
			*e = entry{key, uint64(next) + 1}
			t.used++
			return next, true
		}
		if e.key == key {
			return int(e.row - 1), false
		}
	}
}

// unplace removes the key that was placed last, if the table has not grown
// since. Nothing was placed after it, so no probe sequence leads over its entry.
func (t *table) unplace(key uint64) {
	mask := uint64(len(t.entries) - 1)
	i := mix(key) >> t.shift
	for t.entries[i&mask].key != key || t.entries[i&mask].row == 0 {
		i++
	}
	t.entries[i&mask] = entry{}
	t.used--
}

// grow makes room for n more keys.
func (t *table) grow(n int) {
	if 2*(t.used+n) <= len(t.entries) {
		return
	}
	old := t.entries
	*t = newTable(max(t.used+n, len(old)))
	for _, e := range old {
		if e.row != 0 {
			t.place(e.key, int(e.row-1))
		}
	}
}
