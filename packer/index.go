// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"math"
	"math/bits"
	"slices"
)

// index maps keys to their positions in a key list: a hash table with linear
// probing that is at most half full, with 4 bytes an entry.
//
// An entry holds position + 1 (0 is empty), and a flag that is set if a key was
// moved past the entry when the table was built. A lookup ends at the first entry
// without the flag. So the home entry answers nearly every lookup, of hot and cold
// keys alike, without a branch; a branch predictor cannot learn whether the next
// key is hot. Keys are inserted by rank, so that the hottest are in their home
// entries.
//
// The key itself is compared in the key list, whose hot end stays in the
// first-level cache because it is in rank order.
type index struct {
	entries []uint32
	keys    []uint64 // keys[0] is padding, so that position + 1 indexes it
	placing
}

const (
	entryPassed = 1 << 31
	entryAt     = entryPassed - 1

	// maxIndexed is the largest number of keys in an index, with a table of
	// 256 MiB.
	maxIndexed = 1<<24 - 1
)

// placing computes home entries in one of two ways, which its constants select.
//
// Evenly spread keys, such as hashed features, keep their order: a sorted batch
// of keys, as parameter servers receive them, then walks through the table once,
// and the hardware prefetches the entries. Other keys are scattered by the folded
// 128-bit product, whose high bits depend on the whole key.
type placing struct {
	base, flip, factor uint64
	fold               uint64 // all ones to scatter
	shift              uint
	last               uint64 // largest entry, for keys beyond the known ones
}

func scatter(log int) placing {
	return placing{flip: 0x2d358dccaa6c78a5, factor: 0x9e3779b97f4a7c15, fold: ^uint64(0), shift: uint(64 - log),
		last: 1<<log - 1}
}

// keepOrder places keys from least to greatest in 2^log entries.
func keepOrder(log int, least, greatest uint64) placing {
	entries := uint64(1) << log
	width := greatest - least
	if width >= math.MaxUint64-1 {
		return placing{factor: entries, last: entries - 1}
	}
	// entries/width as a fraction of 2^64. Numbered from 1, keys without gaps get an
	// entry each even though it is rounded down.
	factor, _ := bits.Div64(entries, 0, max(width+2, entries+1))
	return placing{base: least - 1, factor: factor, last: entries - 1}
}

func (p *placing) homeEntry(key uint64) uint64 {
	hi, lo := bits.Mul64((key-p.base)^p.flip, p.factor)
	return min((hi^lo&p.fold)>>(p.shift&63), p.last)
}

// newIndex indexes keys[1:]. For a repeated key it returns both positions in keys.
func newIndex(keys []uint64) (x index, first, second int) {
	n := len(keys) - 1
	if n > 1 {
		log := max(4, bits.Len(uint(n))+1)
		x, first, second = buildIndex(keys, keepOrder(log, slices.Min(keys[1:]), slices.Max(keys[1:])), n/2)
		if x.entries != nil {
			return x, first, second
		}
	}
	// The table is at most a quarter full: a second probe mispredicts.
	return buildIndex(keys, scatter(max(4, bits.Len(uint(n))+2)), math.MaxInt)
}

// buildIndex returns no entries if keys have to move past more than patience
// entries.
func buildIndex(keys []uint64, p placing, patience int) (x index, first, second int) {
	x = index{entries: make([]uint32, p.last+1), keys: keys, placing: p}
	for i := 1; i < len(keys); i++ {
		home := x.homeEntry(keys[i])
		for ; x.entries[home] != 0; home = x.nextEntry(home) {
			if at := x.entries[home] & entryAt; keys[at] == keys[i] {
				return x, int(at), i
			}
			x.entries[home] |= entryPassed
			if patience--; patience < 0 {
				return index{}, 0, 0
			}
		}
		x.entries[home] = uint32(i)
	}
	return x, 0, 0
}

func (x *index) nextEntry(entry uint64) uint64 { return (entry + 1) & uint64(len(x.entries)-1) }

func (x *index) findKey(key uint64) uint32 {
	for at := x.homeEntry(key); ; at = x.nextEntry(at) {
		entry := x.entries[at]
		if at := entry & entryAt; x.keys[at] == key {
			return at // 0 if the padding equals the key
		}
		if entry < entryPassed {
			return 0
		}
	}
}

// findAll is findKey for a batch; out must be as long as keys. It takes two passes:
// in a short loop over independent loads, the processor overlaps many cache misses.
// The conditional assignments compile to conditional moves.
func (x *index) findAll(out []uint32, keys []uint64) {
	out = out[:len(keys)]
	entries, known, p := x.entries, x.keys, x.placing
	for i, key := range keys {
		out[i] = entries[p.homeEntry(key)]
	}
	for i, key := range keys {
		entry := out[i]
		at := entry & entryAt
		passed := entry &^ entryAt
		found := at
		if known[at] != key {
			found = 0
		}
		if found != 0 {
			passed = 0
		}
		out[i] = found
		if passed != 0 {
			out[i] = x.findKey(key)
		}
	}
}
