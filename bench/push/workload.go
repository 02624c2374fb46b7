// SPDX-License-Identifier: Apache-2.0

package push

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"unsafe"

	"github.com/libra-ina/libra/internal/num/fixedpoint"
	"github.com/libra-ina/libra/internal/num/zipf"
	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/packer/heat"
)

// A key is its number shifted up, with scattered bits below: keys are sorted as
// their numbers are, are far apart as hashed features are, and the number can be
// read off them.
const keyShift = 64 - 20

func keyOf(number uint32) uint64 {
	return uint64(number)<<keyShift | uint64(number)*0x9e3779b97f4a7c15>>(64-keyShift)
}

func numberOf(key uint64) uint32 { return uint32(key >> keyShift) }

// valueUnit is what all gradients that are drawn here are multiples of. Their sums are then exact
// in float32 too, in whatever order, so that every baseline can be held to them.
const valueUnit = 1.0 / 256

// units is the fixed point of the job.
var units = fixedpoint.Format{Exp: fixedpoint.DefaultExp}

// row is a key and its sums as a server holds them.
type row struct {
	key   uint64
	units []int64 // of 2^fixedpoint.DefaultExp, one for each float of the row
}

// sumsSize is the size of the memory that a server stores its rows in: their number, and for each
// its key and its sums.
func sumsSize(keys, dim int) int { return 8 * (1 + keys*(1+dim)) }

func putRows(mem []byte, rows []row) {
	all := view[uint64](mem)
	all[0] = uint64(len(rows))
	all = all[1:]
	for _, r := range rows {
		all[0] = r.key
		for i, n := range r.units {
			all[1+i] = uint64(n)
		}
		all = all[1+len(r.units):]
	}
}

func heldRows(mem []byte, dim int) []row {
	all := view[int64](mem)
	rows := make([]row, min(all[0], int64(len(all)-1)/int64(1+dim)))
	for i := range rows {
		at := all[1+i*(1+dim):][:1+dim]
		rows[i] = row{key: uint64(at[0]), units: at[1:]}
	}
	return rows
}

// workload is what the workers push. It lies in memory that all processes share, C++ programs
// included, so its layout is plain: a page with a header; all keys, uint64, the hottest first; and
// for each worker a share: where its batches start, uint64, with one more for the end, their keys,
// uint64, and gradients, float32. Shares begin on pages.
type workload struct {
	header
	mem []byte
	// replayed is nil if the workload is drawn here.
	replayed *replayed
}

// header is the first page of a workload.
type header struct {
	keys, dim, hot int // number of keys, floats of a row, hot rows
	shares         []share
}

// share is where a worker's batches are.
type share struct{ offset, batches, rows int }

// page has room for the shares of 64 workers, as kv_zmq.cc has.
const page = 4096

func onPages(size int) int { return (size + page - 1) / page * page }

// layOut returns a header with shares of given numbers of batches and rows, and the size of all.
func layOut(keys, dim, hot int, shares []share) (h header, size int) {
	h = header{keys: keys, dim: dim, hot: hot}
	size = page + onPages(8*keys)
	for _, s := range shares {
		s.offset = size
		size += onPages(s.shareBytes(dim))
		h.shares = append(h.shares, s)
	}
	return h, size
}

// shareBytes returns the bytes of a share.
func (s share) shareBytes(dim int) int { return 8*(s.batches+1) + 8*s.rows + 4*s.rows*dim }

func (h *header) putHeader(mem []byte) {
	words := view[uint64](mem[:page])
	copy(words, []uint64{uint64(h.keys), uint64(h.dim), uint64(h.hot), uint64(len(h.shares))})
	for i, s := range h.shares {
		copy(words[4+3*i:], []uint64{uint64(s.offset), uint64(s.batches), uint64(s.rows)})
	}
}

func headerOf(mem []byte) header {
	words := view[int](mem[:page])
	h := header{keys: words[0], dim: words[1], hot: words[2]}
	for i := range words[3] {
		at := words[4+3*i:]
		h.shares = append(h.shares, share{at[0], at[1], at[2]})
	}
	return h
}

// view reinterprets memory that is aligned for T.
func view[T any](mem []byte) []T {
	var zero T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(mem))), len(mem)/int(unsafe.Sizeof(zero)))
}

// rankedKeys returns all keys, the hottest first.
func (w *workload) rankedKeys() []uint64 { return view[uint64](w.mem[page:][:8*w.keys]) }

// shareOf returns the batches of a worker. If there are more workers than shares, some have the
// same.
func (w *workload) shareOf(worker int) batches {
	s := w.shares[worker%len(w.shares)]
	return s.splitMemory(w.mem[s.offset:][:s.shareBytes(w.dim)], w.dim)
}

// splitMemory parts the memory of a share.
func (s share) splitMemory(mem []byte, dim int) batches {
	starts, rest := mem[:8*(s.batches+1)], mem[8*(s.batches+1):]
	return batches{dim: dim, starts: view[uint64](starts), keys: view[uint64](rest[:8*s.rows]),
		grads: view[float32](rest[8*s.rows:])}
}

// batches is what one worker pushes.
type batches struct {
	dim    int
	starts []uint64 // first row of each batch, and the number of rows
	keys   []uint64
	grads  []float32
}

func (b *batches) countPairs() int { return len(b.starts) - 1 }

// keysOf and gradsOf return the n-th push.
func (b *batches) keysOf(n int) []uint64 {
	n %= b.countPairs()
	return b.keys[b.starts[n]:b.starts[n+1]]
}

func (b *batches) gradsOf(n int) []float32 {
	n %= b.countPairs()
	return b.grads[int(b.starts[n])*b.dim : int(b.starts[n+1])*b.dim]
}

// rowsOf returns the number of rows in pushes from one number to another.
func (b *batches) rowsOf(from, to uint64) uint64 {
	before := func(n uint64) uint64 {
		count := uint64(b.countPairs())
		return n/count*uint64(len(b.keys)) + b.starts[n%count]
	}
	return before(to) - before(from)
}

// rowsOf returns the number of rows in a worker's pushes from one number to another.
func (w *workload) rowsOf(worker int, from, to uint64) uint64 {
	b := w.shareOf(worker)
	return b.rowsOf(from, to)
}

// drawnLayout is that of a workload that is drawn.
func drawnLayout(batch, workers int) (header, int) {
	shares := make([]share, workers)
	for i := range shares {
		shares[i] = share{batches: batchesEach, rows: batchesEach * batch}
	}
	return layOut(Keys, 1, HotKeys, shares)
}

func (w *workload) fillWorkload(seed uint64) {
	w.header.putHeader(w.mem)
	batch := w.shares[0].rows / batchesEach
	d := newDrawer(seed, batch)
	ranked := w.rankedKeys()
	for rank, number := range d.numbers {
		ranked[rank] = keyOf(number)
	}
	for worker := range w.shares {
		b := w.shareOf(worker)
		for i := range b.starts {
			b.starts[i] = uint64(i * batch)
		}
		d.drawBatches(b.keys, b.grads)
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

// setHot sets the number of hot keys for the processes that are started next, and returns their
// share.
func (w *workload) setHot(hot int) float64 {
	w.header.hot = hot
	w.header.putHeader(w.mem)
	return w.hotShare()
}

// autoHot returns the number of hot rows that cost least under a load, to which it adds the
// workload's.
func (w *workload) autoHot(load heat.Auto) (int, error) {
	counts := make([]heat.Count, w.keys)
	for rank, key := range w.rankedKeys() {
		counts[rank].Key = key
	}
	ranks := make([]int, w.keys) // by number
	for rank, key := range w.rankedKeys() {
		ranks[w.numberOf(key)] = rank
	}
	updates := uint64(0)
	for worker := range w.shares {
		n := len(w.shareOf(worker).keys)
		for row := range n {
			counts[ranks[w.numberAt(worker, row)]].Updates++
		}
		updates += uint64(n)
	}
	pushed := slices.DeleteFunc(counts, func(c heat.Count) bool { return c.Updates == 0 })
	slices.SortStableFunc(pushed, func(a, b heat.Count) int { return cmp.Compare(b.Updates, a.Updates) })
	load.Batch = w.shares[0].rows / w.shares[0].batches
	load.Costs = heat.Measured
	load.Costs.Commit = nil // the server keeps its sums
	e, err := load.Choose(heat.Ranking{Counts: pushed, Updates: updates}, w.dim)
	return e.Rows, err
}

// hotShare returns the share of the first worker's pairs whose keys are hot.
func (w *workload) hotShare() float64 {
	hot := make([]bool, w.keys)
	for _, key := range w.rankedKeys()[:w.hot] {
		hot[w.numberOf(key)] = true
	}
	n, keys := 0, w.shareOf(0).keys
	for i := range keys {
		if hot[w.numberAt(0, i)] {
			n++
		}
	}
	return experiment.Quotient(float64(n), float64(len(keys)))
}

// numberOf returns the number of a key, or -1 if it was never pushed.
func (w *workload) numberOf(key uint64) int {
	if w.replayed != nil {
		return w.replayed.numberOf(key)
	}
	if n := numberOf(key); keyOf(n) == key {
		return int(n)
	}
	return -1
}

// keyAt returns the key of a number.
func (w *workload) keyAt(number int) uint64 {
	if w.replayed != nil {
		return w.replayed.keys[number]
	}
	return keyOf(uint32(number))
}

// numberAt is numberOf for a row of a worker.
func (w *workload) numberAt(worker, row int) int {
	if w.replayed != nil {
		return int(w.replayed.numbers[worker%len(w.shares)][row])
	}
	return int(numberOf(w.shareOf(worker).keys[row]))
}

// checkSums compares what a server holds with what the workers pushed: pushes[i] is the number of
// pushes of worker i. It returns an error that names the first key whose sum is wrong. Where a
// server adds floats, sums of gradients that are replayed may be off by what these additions round.
func (w *workload) checkSums(pushes []uint64, held []row, floats bool) error {
	want := make([]int64, w.keys*w.dim) // by number
	var slack []float64                 // of each sum, in units
	if floats && w.replayed != nil {
		slack = make([]float64, len(want))
	}
	total := uint64(0)
	for _, n := range pushes {
		total += n
	}
	for worker, n := range pushes {
		w.addPushes(worker, n, want, slack, float64(total)*0x1p-24)
	}
	seen := make([]bool, w.keys)
	for _, r := range held {
		n := w.numberOf(r.key)
		if n < 0 || seen[n] {
			return fmt.Errorf("%w: key %#x was never pushed, or is held twice", ErrSums, r.key)
		}
		seen[n] = true
		for i, has := range r.units {
			off, most := math.Abs(float64(has-want[n*w.dim+i])), 0.0
			if slack != nil {
				most = slack[n*w.dim+i] + 1
			}
			if off > most {
				return fmt.Errorf("%w: key %#x sums to %v, but %v was pushed", ErrSums, r.key, units.ToFloat32(has),
					units.ToFloat32(want[n*w.dim+i]))
			}
		}
	}
	for i, sum := range want {
		if sum != 0 && !seen[i/w.dim] {
			return fmt.Errorf("%w: key %#x, to which %v was pushed, is not held", ErrSums, w.keyAt(i/w.dim),
				units.ToFloat32(sum))
		}
	}
	return nil
}

// addPushes adds what a worker pushed to sums, and, if slack is not nil, to that by how much it may
// be off where floats are added: by a share of its size, and what rounding it to units made of it
// here.
func (w *workload) addPushes(worker int, pushes uint64, sums []int64, slack []float64, share float64) {
	b := w.shareOf(worker)
	count := uint64(b.countPairs())
	for n := range count {
		times := pushes / count
		if n < pushes%count {
			times++
		}
		if times == 0 {
			break
		}
		for row := int(b.starts[n]); row < int(b.starts[n+1]); row++ {
			to := w.numberAt(worker, row) * w.dim
			for i, g := range b.grads[row*w.dim : (row+1)*w.dim] {
				one, _ := units.FromFloat32(g) // in range
				sums[to+i] += int64(times) * one
				if slack != nil {
					slack[to+i] += float64(times) * (math.Abs(float64(one))*share + 0.5)
				}
			}
		}
	}
}
