// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"fmt"
	"math"
)

// Harvest is what was collected from one bank of an aggregator. Its number, ranks
// and sums are those of control.Harvest.
type Harvest struct {
	// Instance is the job's: a job that was created anew is another instance,
	// whose aggregator counts its harvests from 1 again.
	Instance uint64
	// Number identifies the harvest within its instance. Numbers increase; the
	// first is at least 1.
	Number uint64
	// Ranks are the scalar ranks that Sums belong to. Nil means that Sums
	// starts at rank 0 and leaves none out.
	Ranks []uint32
	// Sums are in units of 2^Config.Exp. aggregator.JobConfig.Units converts what
	// slots hold.
	Sums []int64
}

// harvestID names a harvest among those of all instances of a job.
type harvestID struct{ instance, number uint64 }

// ApplyHarvest adds a harvest to the open step, once: it returns false for a
// harvest of the same instance whose number is not above that of the last one
// applied, because the sender of a harvest sends it again until it is
// acknowledged.
//
// hot holds the keys of the hot set that the bank was filled under, in the order
// of their row ranks: scalar rank r belongs to row hot[r/Dim], column r%Dim.
// With an error nothing is added: a rank beyond the hot set, lengths that do not
// match, or a sum out of range (wraps [ErrOverflow]).
func (s *Store) ApplyHarvest(h Harvest, hot []uint64) (applied bool, err error) {
	d := s.cfg.Dim
	if h.Instance == s.harvest.instance && h.Number <= s.harvest.number {
		return false, nil
	}
	if h.Ranks != nil && len(h.Ranks) != len(h.Sums) {
		return false, fmt.Errorf("ps: harvest %d has %d ranks for %d sums", h.Number, len(h.Ranks), len(h.Sums))
	}
	if n := len(hot) - len(s.hotRows); n > 0 {
		s.hotRows = append(s.hotRows, make([]int, n)...)
	}
	gather := s.gatherRows
	if d == 1 {
		gather = s.gatherScalars
	}
	found, keys, units, err := gather(h, hot)
	if err != nil {
		return false, err
	}
	// Refusing a row that is summed already would lose gradients that were
	// acknowledged, and there are no more of them than the hot set has.
	if !s.note(keys, units, math.MaxInt) {
		if bad, err := s.add(found, keys, units, math.MaxInt); err != nil {
			return false, fmt.Errorf("ps: harvest %d, key %d, column %d: %w", h.Number, keys[bad/d], bad%d, err)
		}
	}
	s.harvest = harvestID{h.Instance, h.Number}
	return true, nil
}

// gatherRows returns the rows that a harvest has sums of, as add takes them.
func (s *Store) gatherRows(h Harvest, hot []uint64) (found []int, keys []uint64, units []int64, err error) {
	d := s.cfg.Dim
	rows := len(h.Sums)
	if h.Ranks == nil {
		rows = (rows + d - 1) / d
	}
	keys, units = s.batch(rows)
	keys, units, found = keys[:0], units[:0], s.batchRows[:0]
	last, first := -1, 0 // row rank of the row at the end of keys, and the rank of its column 0
	for i, sum := range h.Sums {
		rank := i
		if h.Ranks != nil {
			rank = int(h.Ranks[i])
		}
		if sum == 0 {
			continue
		}
		end := len(units)
		// A rank that comes twice starts another row, so that apply adds the
		// two and sees an overflow.
		if rank < first || rank >= first+d || last < 0 || units[end-d+rank-first] != 0 {
			row := rank / d
			if row >= len(hot) {
				return nil, nil, nil, beyondHotSet(h, rank, len(hot), d)
			}
			last, first = row, row*d
			keys = append(keys, hot[row])
			found = append(found, s.findHot(row, hot[row]))
			end += d
			units = units[:end]
			clear(units[end-d:])
		}
		units[end-d+rank-first] = sum
	}
	return found, keys, units, nil
}

// gatherScalars is gatherRows for rows of one column, in short loops: they overlap the cache misses
// of many rows.
func (s *Store) gatherScalars(h Harvest, hot []uint64) (found []int, keys []uint64, units []int64, err error) {
	keys, units = s.batch(len(h.Sums))
	found = s.batchRows
	n := 0
	for i, sum := range h.Sums {
		rank := i
		if h.Ranks != nil {
			rank = int(h.Ranks[i])
		}
		if sum == 0 {
			continue
		}
		if rank >= len(hot) {
			return nil, nil, nil, beyondHotSet(h, rank, len(hot), 1)
		}
		keys[n], units[n], found[n] = hot[rank], sum, rank
		n++
	}
	found, keys, units = found[:n], keys[:n], units[:n]
	for i, rank := range found {
		found[i] = s.findHot(rank, keys[i])
	}
	return found, keys, units, nil
}

func beyondHotSet(h Harvest, rank, rows, dim int) error {
	return fmt.Errorf("ps: harvest %d holds a sum of rank %d, the hot set has %d rows of %d", h.Number, rank, rows, dim)
}

// findHot returns the row of the key with a rank, or -1. Rows do not move, so it looks first
// where that key was last.
func (s *Store) findHot(rank int, key uint64) int {
	if r := s.hotRows[rank]; r < s.rows.n && s.rows.key(r) == key {
		return r
	}
	return s.searchHot(rank, key)
}

// searchHot is findHot of a row that is elsewhere. It is a function of its own so that the
// compiler can inline the other.
func (s *Store) searchHot(rank int, key uint64) int {
	r := s.index.find(key)
	s.hotRows[rank] = max(r, 0)
	return r
}
