// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"crypto/sha256"
	"encoding/binary"
	"iter"
	"math"
	"slices"
)

// Rows iterates over the rows with weights in key order, with the Dim weights as of the
// last commit. The weights are views; the store must not be changed during the
// iteration.
func (s *Store) Rows() iter.Seq2[uint64, []float32] {
	return func(yield func(uint64, []float32) bool) {
		for _, r := range s.byKey() {
			if key, _, weights, _ := s.rows.rowArrays(r); !yield(key, weights) {
				return
			}
		}
	}
}

// byKey returns the row numbers in key order.
func (s *Store) byKey() []int {
	sorted := make([]keyedRow, s.kept())
	for r := range sorted {
		sorted[r] = keyedRow{s.rows.keyOf(r), r}
	}
	rows := make([]int, len(sorted))
	for i, r := range sortByKey(sorted, make([]keyedRow, len(sorted))) {
		rows[i] = r.row
	}
	return rows
}

type keyedRow struct {
	key uint64
	row int
}

// sortByKey is a radix sort, lowest digit first, that returns the rows in one of its two slices of
// equal length. It skips digits that all keys share. A comparison sort, which mispredicts every
// other comparison, takes ten times as long; digits of 8 bits instead of 11, 1.4 times.
func sortByKey(rows, other []keyedRow) []keyedRow {
	var differ uint64
	for _, r := range rows {
		differ |= r.key ^ rows[0].key
	}
	const digit, values = 11, 1 << 11
	for shift := 0; shift < 64; shift += digit {
		if differ>>shift%values == 0 {
			continue
		}
		var at [values]int // index of the next row with a digit
		for i := range rows {
			at[rows[i].key>>shift%values]++
		}
		next := 0
		for i, n := range at {
			at[i] = next
			next += n
		}
		for _, r := range rows {
			to := &at[r.key>>shift%values]
			other[*to] = r
			*to++
		}
		rows, other = other, rows
	}
	return rows
}

// Hash returns the SHA-256 of the weights as of the last commit: for every row
// in key order, the key and the bits of its Dim weights, big-endian. Rows with their
// initial weights are left out: whether a row whose gradients cancelled was
// inserted depends on where they were summed.
func (s *Store) Hash() [sha256.Size]byte {
	d := s.cfg.Dim
	h := sha256.New()
	buf := make([]byte, 8+4*d)
	initial := make([]float32, d)
	for key, weights := range s.Rows() {
		s.cfg.Init.fillRow(key, initial)
		if slices.EqualFunc(weights, initial, sameBits) {
			continue
		}
		binary.BigEndian.PutUint64(buf, key)
		for c, w := range weights {
			binary.BigEndian.PutUint32(buf[8+4*c:], math.Float32bits(w))
		}
		h.Write(buf)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

func sameBits(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) }
