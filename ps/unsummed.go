// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"math"
	"math/bits"
	"slices"
)

const (
	// unsummedMost bounds the sums of noted rows, in units: in any order of additions, none leaves
	// the range.
	unsummedMost = 1 << 62
	unsummedRows = 1 << 20
)

// unsummed is the open step of a store without an optimiser while only [Store.AppendSums] needs the
// sums. AppendSums sorts rows by key anyway, which places equal keys next to each other: looking up
// each row in the table on arrival would take longer than all else. The table is empty meanwhile.
type unsummed struct {
	closed bool // the step is in the table
	keys   []uint64
	units  []int64 // dim for each key
	most   uint64  // upper bound of the sum of any key's units

	summed, rows int // AppendSums found rows distinct rows among the first summed keys
}

// noteRows adds rows to a step that is not in the table. It returns false with the step in the
// table if the step is there already, or might overflow or exceed limit.
func (s *Store) noteRows(keys []uint64, units []int64, limit int) bool {
	u := &s.unsummed
	if u.closed {
		return false
	}
	over, most := bits.Mul64(largest(units), timesOfKey(keys))
	most, carry := bits.Add64(u.most, most, 0)
	if over|carry != 0 || most > unsummedMost || len(u.keys)+len(keys) > min(limit, unsummedRows) {
		s.sumNoted()
		return false
	}
	u.most = most
	u.keys, u.units = append(u.keys, keys...), append(u.units, units...)
	return true
}

// largest returns the largest absolute value of units, or 1 more.
func largest(units []int64) uint64 {
	var most int64
	for _, n := range units {
		most = max(most, n^n>>63)
	}
	return uint64(most) + 1
}

// timesOfKey bounds how often a key occurs in keys: once if they ascend, as in most frames.
func timesOfKey(keys []uint64) uint64 {
	for i := 1; i < len(keys); i++ {
		if keys[i] <= keys[i-1] {
			return uint64(len(keys))
		}
	}
	return 1
}

// sumNoted moves the open step into the table.
func (s *Store) sumNoted() {
	u := &s.unsummed
	if u.closed {
		return
	}
	u.closed = true
	var rows [readBatch]int
	for keys, units := u.keys, u.units; len(keys) > 0; {
		n := min(len(keys), readBatch)
		s.index.findBatch(rows[:n], keys[:n])
		_, _ = s.addUnits(rows[:n], keys[:n], units[:n*s.cfg.Dim], math.MaxInt) // no sum is out of range
		keys, units = keys[n:], units[n*s.cfg.Dim:]
	}
	u.keys, u.units = u.keys[:0], u.units[:0]
}

func (u *unsummed) beginStep() { *u = unsummed{keys: u.keys[:0], units: u.units[:0]} }

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
	_, total := s.scratchRows(1)
	u.summed, u.rows = n, 0
	for len(rows) > 0 {
		key, units := rows[0].key, u.units[rows[0].row*d:][:d]
		if rows = rows[1:]; len(rows) > 0 && rows[0].key == key { // seldom
			copy(total, units)
			for units = total; len(rows) > 0 && rows[0].key == key; rows = rows[1:] {
				for col, n := range u.units[rows[0].row*d:][:d] {
					total[col] += n
				}
			}
		}
		keys, sums = s.appendRow(keys, sums, key, units)
		u.rows++
	}
	return keys, sums
}
