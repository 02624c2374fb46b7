// SPDX-License-Identifier: Apache-2.0

package ps

import "math/bits"

// rows holds what a store knows of its rows, in chunks of 2^shift rows, so that
// growing moves none but those of the first chunk. Rows have numbers in the order of
// their first update. That order puts the hot rows of a skewed job next to each other.
type rows struct {
	n      int // in use
	room   int // for rows, in the chunks
	shift  uint
	method Method // of the optimiser, which needs weights or not
	dim    int
	chunks []chunk
}

// chunk is a part of the rows. What accumulating needs, what reading needs and
// what only committing needs are separate arrays, so that neither drags the
// others through the cache.
type chunk struct {
	keys    []uint64
	sums    []int64   // dim a row: the open step
	weights []float32 // dim a row, nil without an optimiser
	squares []float32 // dim a row under Adagrad, else nil
	marks   []uint64  // one bit a row: it is in the open step
}

// chunkBytes bounds the sums of a chunk, and so the time to allocate one.
const chunkBytes = 1 << 19

func newRows(dim int, method Method) rows {
	// At least the rows of one word of marks.
	shift := max(6, bits.Len(uint(chunkBytes/8/dim))-1)
	return rows{dim: dim, method: method, shift: uint(shift)}
}

// at returns the chunk of a row and the row's number in it.
func (t *rows) at(r int) (c *chunk, i int) {
	return &t.chunks[r>>(t.shift&63)], r & (1<<(t.shift&63) - 1)
}

// load brings the sums of rows near; what it returns only keeps the loads from being left out. A
// dimension of 1 has a loop of its own: the fewer instructions lie between two
// loads, the more of them are under way at once.
func (t *rows) load(rows []int) (loaded int64) {
	if t.dim == 1 {
		chunks, shift := t.chunks, t.shift&63
		last := 1<<shift - 1
		for _, r := range rows {
			loaded |= chunks[r>>shift].sums[r&last]
		}
		return loaded
	}
	for _, r := range rows {
		c, i := t.at(r)
		loaded |= c.sums[i*t.dim] | c.sums[(i+1)*t.dim-1]
	}
	return loaded
}

// reserve makes room for n rows in all. The first chunk begins small and doubles until it
// has its size, so that a store of few rows takes little memory.
func (t *rows) reserve(n int) {
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
		t.chunks = []chunk{t.grown(small, t.room)}
	}
	for ; t.room < n; t.room += size {
		t.chunks = append(t.chunks, t.grown(chunk{}, size))
	}
}

// grown returns a chunk of size rows, the first of which are those of c.
func (t *rows) grown(c chunk, size int) chunk {
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

// row returns the arrays of one row; squares is nil without Adagrad, weights without an optimiser.
func (t *rows) row(r int) (key uint64, sums []int64, weights, squares []float32) {
	c, i := t.at(r)
	from, to := i*t.dim, (i+1)*t.dim
	if t.method == Adagrad {
		squares = c.squares[from:to:to]
	}
	if t.method != None {
		weights = c.weights[from:to:to]
	}
	return c.keys[i], c.sums[from:to:to], weights, squares
}

func (t *rows) key(r int) uint64 {
	c, i := t.at(r)
	return c.keys[i]
}

// mark enters a row in the open step, and returns false if it is there.
func (c *chunk) mark(i int) bool {
	word, bit := &c.marks[i>>6], uint64(1)<<(i&63)
	if *word&bit != 0 {
		return false
	}
	*word |= bit
	return true
}

// forget takes all rows out, and leaves sums of zero and no marks where they were.
func (t *rows) forget() {
	for i, left := 0, t.n; left > 0; i++ {
		c, n := &t.chunks[i], min(left, 1<<t.shift)
		clear(c.sums[:n*t.dim])
		clear(c.marks[:(n+63)/64])
		left -= n
	}
	t.n = 0
}

func (t *rows) unmark(r int) {
	c, i := t.at(r)
	c.marks[i>>6] &^= 1 << (i & 63)
}
