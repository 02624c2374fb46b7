// SPDX-License-Identifier: Apache-2.0

package ps

import "math/bits"

// rows holds the rows of a store in chunks of 2^shift rows, so that growing moves only the
// first chunk. Rows are numbered in the order of their first update, which places the hot
// rows of a skewed job next to each other.
type rows struct {
	n      int // rows in use
	room   int // rows that the chunks hold
	shift  uint
	method Method // method of the optimiser, which decides whether there are weights
	dim    int
	chunks []chunk
	whole  []*[wholeRows]int64 // the sums of each chunk, if dim is 1 and there is a whole chunk
}

// chunk is a part of the rows. The data for accumulating, for reading and for committing
// are in separate arrays, so that none pulls the others into the cache.
type chunk struct {
	keys    []uint64
	sums    []int64   // dim a row: the open step
	weights []float32 // dim a row, nil without an optimiser
	squares []float32 // dim a row under Adagrad, else nil
	marks   []uint64  // one bit a row: it is in the open step
}

// chunkBytes bounds the sums of a chunk, and so the time to allocate one.
const chunkBytes = 1 << 19

// wholeRows is the number of rows in a chunk of dimension 1.
const wholeRows = chunkBytes / 8

func newRows(dim int, method Method) rows {
	// A chunk has at least the rows of one word of marks.
	shift := max(6, bits.Len(uint(chunkBytes/8/dim))-1)
	return rows{dim: dim, method: method, shift: uint(shift)}
}

// chunkAt returns the chunk of a row and the row's number in it.
func (t *rows) chunkAt(r int) (c *chunk, i int) {
	return &t.chunks[r>>(t.shift&63)], r & (1<<(t.shift&63) - 1)
}

// prefetchSums prefetches the sums of rows; its result only keeps the compiler from removing the
// loads. Large stores of dimension 1 have their own loop: the fewer instructions between two loads,
// the more of them run in parallel.
func (t *rows) prefetchSums(rows []int) (loaded int64) {
	if whole := t.whole; whole != nil {
		for _, r := range rows {
			loaded |= whole[uint(r)/wholeRows][uint(r)%wholeRows]
		}
		return loaded
	}
	for _, r := range rows {
		c, i := t.chunkAt(r)
		loaded |= c.sums[i*t.dim] | c.sums[(i+1)*t.dim-1]
	}
	return loaded
}

// reserveRows makes room for n rows in total. The first chunk starts small and doubles up to its
// full size, so that a store of few rows takes little memory.
func (t *rows) reserveRows(n int) {
	if n <= t.room {
		return
	}
	size := 1 << t.shift
	if t.room < size {
		var small chunk
		if t.room > 0 {
			small = t.chunks[0]
		}
		t.room = min(size, 1<<bits.Len(uint(max(n, 64)-1)))
		t.chunks = []chunk{t.grownChunk(small, t.room)}
	}
	for ; t.room < n; t.room += size {
		t.chunks = append(t.chunks, t.grownChunk(chunk{}, size))
	}
	if t.dim == 1 && t.room >= size {
		for _, c := range t.chunks[len(t.whole):] {
			t.whole = append(t.whole, (*[wholeRows]int64)(c.sums))
		}
	}
}

// grownChunk returns a chunk of size rows that starts with those of c.
func (t *rows) grownChunk(c chunk, size int) chunk {
	g := chunk{
		keys:  make([]uint64, size),
		sums:  make([]int64, size*t.dim),
		marks: make([]uint64, size/64),
	}
	copy(g.keys, c.keys)
	copy(g.sums, c.sums)
	copy(g.marks, c.marks)
	if t.method != None {
		g.weights = make([]float32, size*t.dim)
		copy(g.weights, c.weights)
	}
	if t.method == Adagrad {
		g.squares = make([]float32, size*t.dim)
		copy(g.squares, c.squares)
	}
	return g
}

// rowArrays returns the arrays of one row; squares is nil without Adagrad, weights without an
// optimiser.
func (t *rows) rowArrays(r int) (key uint64, sums []int64, weights, squares []float32) {
	c, i := t.chunkAt(r)
	from, to := i*t.dim, (i+1)*t.dim
	if t.method == Adagrad {
		squares = c.squares[from:to:to]
	}
	if t.method != None {
		weights = c.weights[from:to:to]
	}
	return c.keys[i], c.sums[from:to:to], weights, squares
}

func (t *rows) keyOf(r int) uint64 {
	c, i := t.chunkAt(r)
	return c.keys[i]
}

// markRow adds a row to the open step, and returns false if it is in it already.
func (c *chunk) markRow(i int) bool {
	word, bit := &c.marks[i>>6], uint64(1)<<(i&63)
	if *word&bit != 0 {
		return false
	}
	*word |= bit
	return true
}

// forgetRows removes all rows, and zeroes their sums and marks.
func (t *rows) forgetRows() {
	for i, left := 0, t.n; left > 0; i++ {
		c, n := &t.chunks[i], min(left, 1<<t.shift)
		clear(c.sums[:n*t.dim])
		clear(c.marks[:(n+63)/64])
		left -= n
	}
	t.n = 0
}

func (t *rows) unmarkRow(r int) {
	c, i := t.chunkAt(r)
	c.marks[i>>6] &^= 1 << (i & 63)
}
