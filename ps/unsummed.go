// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"math"
	"slices"
)

const (
	// unsummedBits bounds the units that a store notes without adding them, and unsummedRows the number of their rows. Sums of units and
	// rows within these bounds are in range, in whatever order they are added.
	unsummedBits = 42
	unsummedRows = 1 << 20
)

// unsummed is the open step of a store without an optimiser as long as nothing asks what its sums are but
// [Store.AppendSums]. That sorts rows by their keys anyway, and then equal ones are next to each other: to
// look each up in the table, as it comes, would take longer than all else. The table is empty meanwhile.
type unsummed struct {
	closed bool // the step is in the table
	keys   []uint64
	units  []int64 // dim for each key

	summed, rows int // AppendSums has looked at the first summed keys, and found that they are of rows rows
}

// note adds rows to a step that is not summed yet. It returns false, and the step is in the table, if it is there already, or might
// have an overflow or more than limit rows there.
func (s *Store) note(keys []uint64, units []int64, limit int) bool {
	u := &s.unsummed
	if u.closed {
		return false
	}
	var most int64
	for _, n := range units {
		most |= n ^ n>>63
	}
	if most>>unsummedBits != 0 || len(u.keys)+len(keys) > min(limit, unsummedRows) {
		s.sum()
		return false
	}
	u.keys, u.units = append(u.keys, keys...), append(u.units, units...)
	return true
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
