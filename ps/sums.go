// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"fmt"
	"slices"
)

// SumError means that a sum of a step has no float32: it is 2^128 or more in size, or closer to
// that than to the largest float32.
type SumError struct {
	Key    uint64
	Column int
}

func (e *SumError) Error() string {
	return fmt.Sprintf("ps: the sum of key %d, column %d, is too large for a float32: scale the gradients down", e.Key, e.Column)
}

// AppendSums appends the rows of the open step in key order: their keys to keys, and the float32
// nearest to each of their Dim sums to sums. It skips rows whose sums are all zero, since the store
// does not know whether a row summed by an aggregator was touched.
//
// Without an optimiser, the error is a [*SumError] for the first sum without a float32, in key
// order: the step is to be dropped.
func (s *Store) AppendSums(keys []uint64, sums []float32) ([]uint64, []float32, error) {
	keys, sums = s.appendAll(keys, sums)
	return keys, sums, s.wide.takeError()
}

func (s *Store) appendAll(keys []uint64, sums []float32) ([]uint64, []float32) {
	if !s.unsummed.closed {
		return s.appendUnsummed(keys, sums)
	}
	d, n := s.cfg.Dim, len(s.touched)
	rows := slices.Grow(s.sorting[:0], 2*n)[:2*n]
	s.sorting = rows
	for i, r := range s.touched {
		rows[i] = keyedRow{s.rows.keyOf(r), r}
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
	if s.wide != nil && s.wide.rows > 0 {
		if row := s.wide.findRow(key); row != nil {
			return s.wide.appendRow(keys, sums, key, units, row)
		}
	}
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
