package packer

import "math/bits"

// index maps keys to their positions in a key list: a hash table with linear
// probing that is at most a quarter full, with 4 bytes an entry.
//
// An entry holds position + 1 (0 is empty), and a flag that says that some key
// had to go past it when the table was built. A lookup ends at the first entry
// without the flag. So the home entry answers nearly every lookup, of hot and
// of cold keys alike, without a branch; that matters because whether the next
// key is hot is the one thing that a branch predictor cannot learn. Keys go in
// by rank, so that it is the hottest that live at home.
//
// The key itself is compared in the key list, whose hot end stays in the
// first-level cache because it is in rank order.
type index struct {
	entries []uint32
	shift   uint     // hash >> shift is the home entry
	keys    []uint64 // keys[0] is padding, so that position + 1 indexes it
}

const (
	entryPassed = 1 << 31
	entryAt     = entryPassed - 1

	// maxIndexed is the largest number of keys of an index: a table of
	// 256 MiB.
	maxIndexed = 1<<24 - 1
)

// newIndex indexes keys[1:]. Where a key repeats it returns the positions in
// keys of the two.
func newIndex(keys []uint64) (x index, first, second int) {
	log := max(4, bits.Len(uint(len(keys)-1))+2)
	x = index{entries: make([]uint32, 1<<log), shift: uint(64 - log), keys: keys}
	for i := 1; i < len(keys); i++ {
		home := hash(keys[i]) >> x.shift
		for ; x.entries[home] != 0; home = x.next(home) {
			if at := x.entries[home] & entryAt; keys[at] == keys[i] {
				return x, int(at), i
			}
			x.entries[home] |= entryPassed
		}
		x.entries[home] = uint32(i)
	}
	return x, 0, 0
}

func (x *index) next(entry uint64) uint64 { return (entry + 1) & uint64(len(x.entries)-1) }

// hash spreads a key over 64 bits: the folded 128-bit product, whose high bits
// depend on the whole key.
func hash(key uint64) uint64 {
	hi, lo := bits.Mul64(key^0x2d358dccaa6c78a5, 0x9e3779b97f4a7c15)
	return hi ^ lo
}

// find returns the position + 1 of key, or 0.
func (x *index) find(key uint64) uint32 {
	for at := hash(key) >> x.shift; ; at = x.next(at) {
		entry := x.entries[at]
		if at := entry & entryAt; x.keys[at] == key {
			return at // 0 if the padding happens to equal the key
		}
		if entry < entryPassed {
			return 0
		}
	}
}

// findAll is find for a batch; out must be as long as keys. It takes two passes,
// because a short loop over independent loads is what lets the processor overlap
// many cache misses. The conditional assignments compile to conditional moves.
func (x *index) findAll(out []uint32, keys []uint64) {
	out = out[:len(keys)]
	entries, known, shift := x.entries, x.keys, x.shift
	for i, key := range keys {
		out[i] = entries[hash(key)>>(shift&63)]
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
			out[i] = x.find(key)
		}
	}
}
