// SPDX-License-Identifier: Apache-2.0

package ps

import "slices"

// AppendSums appends the rows of the open step in key order: their keys to keys, and the float32
// nearest to each of their Dim sums to sums. It skips rows whose sums are all zero, since the store
// does not know whether a row summed by an aggregator was touched.
func (s *Store) AppendSums(keys []uint64, sums []float32) ([]uint64, []float32) {
	if !s.unsummed.closed {
		return s.appendUnsummed(keys, sums)
	}
	d, n := s.cfg.Dim, len(s.touched)
	rows := slices.Grow(s.sorting[:0], 2*n)[:2*n]
	s.sorting = rows
	for i, r := range s.touched {
		rows[i] = keyedRow{s.rows.key(r), r}
	}
	keys, sums = slices.Grow(keys, n), slices.Grow(sums, n*d)
	for _, row := range sortByKey(rows[:n], rows[n:]) {
		c, i := s.rows.chunkAt(row.row)
		keys, sums = s.appendRow(keys, sums, row.key, c.sums[i*d:][:d])
	}
	return keys, sums
}

// appendRow appends a row, unless its sums are all zero.
func (s *Store) appendRow(keys []uint64, sums []float32, key uint64, units []int64) ([]uint64, []float32) {
	var any int64
	for _, n := range units {
		any |= n
		sums = append(sums, float32(n)*s.unit)
	}
	if any == 0 {
		return keys, sums[:len(sums)-len(units)]
	}
	return append(keys, key), sums
}
