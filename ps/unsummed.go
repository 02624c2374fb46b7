// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"math"
	"math/bits"
	"slices"
)

const (
	// unsummedMost bounds the sums of what a store notes without adding it, in units: whatever the order of the additions, all are in range.
	unsummedMost = 1 << 62
	// unsummedRows bounds the memory of what is noted.
	unsummedRows = 1 << 20
)

// unsummed is the open step of a store without an optimiser as long as nothing asks what its sums are but
// [Store.AppendSums]. That sorts rows by their keys anyway, and then equal ones are next to each other: to
// look each up in the table, as it comes, would take longer than all else. The table is empty meanwhile.
type unsummed struct {
	closed bool // the step is in the table
	keys   []uint64
	units  []int64 // dim for each key
	most   uint64  // no sum of a key's units is larger

	summed, rows int // AppendSums has looked at the first summed keys, and found that they are of rows rows
}

// note adds rows to a step that is not summed yet. It returns false, and the step is in the table, if it is there already, or might
// have an overflow or more than limit rows there.
func (s *Store) note(keys []uint64, units []int64, limit int) bool {
	u := &s.unsummed
	if u.closed {
		return false
	}
	over, most := bits.Mul64(largest(units), timesOfKey(keys))
	most, carry := bits.Add64(u.most, most, 0)
	if over|carry != 0 || most > unsummedMost || len(u.keys)+len(keys) > min(limit, unsummedRows) {
		s.sum()
		return false
	}
	u.most = most
	u.keys, u.units = append(u.keys, keys...), append(u.units, units...)
	return true
}

// largest returns at least the largest absolute value of units, and at most 1 more.
func largest(units []int64) uint64 {
	var most int64
	for _, n := range units {
		most = max(most, n^n>>63)
	}
	return uint64(most) + 1
}

// timesOfKey returns how often a key may be among keys: once if they ascend, as those of most frames do.
func timesOfKey(keys []uint64) uint64 {
	for i := 1; i < len(keys); i++ {
		if keys[i] <= keys[i-1] {
			return uint64(len(keys))
		}
	}
	return 1
}

// sum brings the open step into the table.
func (s *Store) sum() {
	u := &s.unsummed
	if u.closed {
		return
	}
	u.closed = true
	var rows [readBatch]int
	for keys, units := u.keys, u.units; len(keys) > 0; {
		n := min(len(keys), readBatch)
		s.index.home(rows[:n], keys[:n])
		_, _ = s.add(rows[:n], keys[:n], units[:n*s.cfg.Dim], math.MaxInt) // no sum is out of range
		keys, units = keys[n:], units[n*s.cfg.Dim:]
	}
	u.keys, u.units = u.keys[:0], u.units[:0]
}

// begin begins the next step of a store without an optimiser.
func (u *unsummed) begin() { *u = unsummed{keys: u.keys[:0], units: u.units[:0]} }

// appendUnsummed is AppendSums of a step that is not in the table.
func (s *Store) appendUnsummed(keys []uint64, sums []float32) ([]uint64, []float32) {
	u, d := &s.unsummed, s.cfg.Dim
	n := len(u.keys)
	rows := slices.Grow(s.sorting[:0], 2*n)[:2*n]
	s.sorting = rows
	for i, key := range u.keys {
		rows[i] = keyedRow{key, i}
	}
	rows = sortByKey(rows[:n], rows[n:])
	keys, sums = slices.Grow(keys, n), slices.Grow(sums, n*d)
	_, total := s.batch(1)
	for u.summed, u.rows = n, 0; len(rows) > 0; u.rows++ {
		key := rows[0].key
		clear(total)
		for ; len(rows) > 0 && rows[0].key == key; rows = rows[1:] {
			for col, n := range u.units[rows[0].row*d:][:d] {
				total[col] += n
			}
		}
		keys, sums = s.appendRow(keys, sums, key, total)
	}
	return keys, sums
}
