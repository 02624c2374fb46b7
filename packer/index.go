package packer

import "math/bits"

// index maps keys to their positions in a key list: an open-addressing table
// with linear probing, at most half full, of 32-bit entries.
//
// An entry holds position + 1 in its low bits and a tag, more bits of the
// key's hash, in the others; 0 is empty. Sixteen entries share a cache line, so
// a probe sequence nearly always costs one miss, and 30,000 keys make a table
// of 256 KiB. The tag decides nearly every comparison; the key itself is
// compared in the key list, which is in rank order, so that the hot end of it
// stays in the first-level cache.
type index struct {
	entries []uint32
	shift   uint   // hash >> shift is the home entry
	posMask uint32 // low bits of an entry: position + 1
	keys    []uint64
}

// maxIndexed is the largest number of keys of an index; it leaves at least 8
// bits of an entry to the tag.
const maxIndexed = 1<<24 - 1

// newIndex indexes keys. Where a key repeats it returns the positions of the
// two, and false.
func newIndex(keys []uint64) (x index, first, second int, ok bool) {
	size := max(16, 1<<bits.Len(uint(2*len(keys))))
	x = index{
		entries: make([]uint32, size),
		shift:   uint(64 - bits.TrailingZeros(uint(size))),
		posMask: 1<<bits.Len(uint(len(keys))) - 1,
		keys:    keys,
	}
	mask := uint64(size - 1)
	for i, key := range keys {
		h := hash(key)
		e := h >> x.shift
		for ; x.entries[e] != 0; e = (e + 1) & mask {
			at := x.entries[e]&x.posMask - 1
			if keys[at] == key {
				return x, int(at), i, false
			}
		}
		x.entries[e] = uint32(h)&^x.posMask | uint32(i+1)
	}
	return x, 0, 0, true
}

// hash spreads a key over 64 bits: the folded 128-bit product, of which both
// the high bits (home entry) and the low bits (tag) depend on the whole key.
func hash(key uint64) uint64 {
	hi, lo := bits.Mul64(key^0x2d358dccaa6c78a5, 0x9e3779b97f4a7c15)
	return hi ^ lo
}

// find returns the position of key. It is small enough to be inlined.
func (x *index) find(key uint64) (uint32, bool) {
	h := hash(key)
	entries := x.entries
	for e := h >> x.shift; ; e++ {
		entry := entries[e&uint64(len(entries)-1)]
		if entry == 0 {
			return 0, false
		}
		if (entry^uint32(h))&^x.posMask == 0 {
			if at := entry&x.posMask - 1; x.keys[at] == key {
				return at, true
			}
		}
	}
}
