// SPDX-License-Identifier: Apache-2.0

package push

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"unsafe"

	"github.com/libra-ina/libra/internal/num/fixedpoint"
	"github.com/libra-ina/libra/internal/num/zipf"
)

// A key is its number shifted up, with scattered bits below: keys are sorted as
// their numbers are, are far apart as hashed features are, and the number can be
// read off them.
const keyShift = 64 - 20

func keyOf(number uint32) uint64 {
	return uint64(number)<<keyShift | uint64(number)*0x9e3779b97f4a7c15>>(64-keyShift)
}

func numberOf(key uint64) uint32 { return uint32(key >> keyShift) }

// valueUnit is what all gradients are multiples of. Their sums are then exact in
// float32 too, in whatever order, so that every baseline can be held to them.
const valueUnit = 1.0 / 256

// unitsPerValue is how many fixed-point units of the job make valueUnit.
const unitsPerValue = 1 << (-fixedpoint.DefaultExp - 8)

// row is a key and its sum as a server holds it.
type row struct {
	key   uint64
	units int64 // of 2^fixedpoint.DefaultExp
}

// sumsSize is the size of the memory that a server stores its rows in, after
// their number, which takes the place of the first row.
const sumsSize = int(unsafe.Sizeof(row{})) * (Keys + 1)

func putRows(mem []byte, rows []row) {
	all := view[row](mem)
	all[0] = row{key: uint64(len(rows))}
	copy(all[1:], rows)
}

func heldRows(mem []byte) []row {
	all := view[row](mem)
	return all[1:][:min(all[0].key, Keys)]
}

// workload is what the workers push. It lies in memory that all processes share,
// C++ programs included, so its layout is plain: Keys uint64, the hottest first;
// then for each worker the keys, uint64, and after them the gradients, float32, of
// its batches.
type workload struct {
	batch   int // pairs in a push
	workers int
	mem     []byte
}

func shareSize(batch int) int { return batchesEach * batch * (8 + 4) }

// view reinterprets memory that is aligned for T.
func view[T any](mem []byte) []T {
	var zero T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(mem))), len(mem)/int(unsafe.Sizeof(zero)))
}

// rankedKeys returns all keys, the hottest first.
func (w *workload) rankedKeys() []uint64 { return view[uint64](w.mem[:8*Keys]) }

// shareOf returns the keys and gradients of a worker: batchesEach batches.
func (w *workload) shareOf(worker int) (keys []uint64, grads []float32) {
	size := shareSize(w.batch)
	return splitShare(w.mem[shareOffset(w.batch, worker):][:size])
}

// shareOffset returns where a worker's part begins; that of one more than there are is the end of
// all.
func shareOffset(batch, worker int) int { return 8*Keys + worker*shareSize(batch) }

// splitShare parts a worker's memory into keys and gradients.
func splitShare(part []byte) (keys []uint64, grads []float32) {
	at := len(part) / (8 + 4) * 8
	return view[uint64](part[:at]), view[float32](part[at:])
}

func (w *workload) fillWorkload(seed uint64) {
	d := newDrawer(seed, w.batch)
	ranked := w.rankedKeys()
	for rank, number := range d.numbers {
		ranked[rank] = keyOf(number)
	}
	for worker := range w.workers {
		d.drawBatches(w.shareOf(worker))
	}
}

type drawer struct {
	batch   int
	rng     *rand.Rand
	zipf    *zipf.Distribution
	numbers []uint32 // numbers of the keys, by rank
	drawn   []uint64 // a bit for each number: what is drawn is distinct and sorted
}

func newDrawer(seed uint64, batch int) *drawer {
	d := &drawer{
		batch: batch, rng: rand.New(rand.NewPCG(seed, uint64(batch))),
		numbers: make([]uint32, Keys), drawn: make([]uint64, Keys/64),
	}
	for i := range d.numbers {
		d.numbers[i] = uint32(i)
	}
	d.rng.Shuffle(Keys, func(i, j int) { d.numbers[i], d.numbers[j] = d.numbers[j], d.numbers[i] })
	d.zipf = zipf.New(Keys, Exponent)
	return d
}

// drawBatches draws batches until keys and gradients are full.
func (d *drawer) drawBatches(keys []uint64, grads []float32) {
	for ; len(keys) > 0; keys, grads = keys[d.batch:], grads[d.batch:] {
		for n := 0; n < d.batch; {
			number := d.numbers[d.zipf.Draw(d.rng)]
			word, bit := &d.drawn[number/64], uint64(1)<<(number%64)
			if *word&bit == 0 {
				*word |= bit
				n++
			}
		}
		i := 0
		for at, word := range d.drawn {
			for ; word != 0; word &= word - 1 {
				keys[i] = keyOf(uint32(at*64 + bits.TrailingZeros64(word)))
				i++
			}
			d.drawn[at] = 0
		}
		for i := range grads[:d.batch] {
			grads[i] = float32(int8(d.rng.Uint32())) * valueUnit
		}
	}
}

// hotShare returns the share of keys that are among the HotKeys first of ranked.
func hotShare(ranked, keys []uint64) float64 {
	hot := make([]bool, Keys)
	for _, key := range ranked[:HotKeys] {
		hot[numberOf(key)] = true
	}
	n := 0
	for _, key := range keys {
		if hot[numberOf(key)] {
			n++
		}
	}
	return float64(n) / float64(len(keys))
}

// checkSums compares what a server holds with what the workers pushed: pushes[i] is
// the number of pushes of worker i. It returns an error that names the first
// key whose sum is wrong.
func (w *workload) checkSums(pushes []uint64, held []row) error {
	want := make([]int64, Keys) // in units of valueUnit, by number
	for worker, n := range pushes {
		keys, grads := w.shareOf(worker)
		for b := range batchesEach {
			times := int64(n / batchesEach)
			if uint64(b) < n%batchesEach {
				times++
			}
			for i := b * w.batch; i < (b+1)*w.batch; i++ {
				want[numberOf(keys[i])] += times * int64(grads[i]*(1/valueUnit))
			}
		}
	}
	seen := make([]bool, Keys)
	for _, r := range held {
		n := numberOf(r.key)
		if keyOf(n) != r.key || seen[n] {
			return fmt.Errorf("%w: key %#x was never pushed, or is held twice", ErrSums, r.key)
		}
		seen[n] = true
		if r.units != want[n]*unitsPerValue {
			return fmt.Errorf("%w: key %#x sums to %v, but %v was pushed", ErrSums, r.key,
				float64(r.units)/unitsPerValue*valueUnit, float64(want[n])*valueUnit)
		}
	}
	for n, sum := range want {
		if sum != 0 && !seen[n] {
			return fmt.Errorf("%w: key %#x, to which %v was pushed, is not held", ErrSums, keyOf(uint32(n)),
				float64(sum)*valueUnit)
		}
	}
	return nil
}
