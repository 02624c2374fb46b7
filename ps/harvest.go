// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"errors"
	"fmt"
	"math"
)

// Harvest holds the sums collected from one bank of an aggregator. Its number, ranks
// and sums are those of control.Harvest.
type Harvest struct {
	// Instance is the job's: a recreated job is a new instance, whose harvest
	// numbers start at 1 again.
	Instance uint64
	// Number identifies the harvest within its instance. Numbers increase; the
	// first is at least 1.
	Number uint64
	// Ranks are the scalar ranks of Sums. Nil means consecutive ranks from 0.
	Ranks []uint32
	// Sums are in units of 2^Config.Exp. aggregator.JobConfig.Units converts
	// slots to units.
	Sums []int64
}

// ErrFenced means that a harvest is of an instance from which the store takes none any more.
var ErrFenced = errors.New("ps: harvests of this instance of the job are not taken any more")

// BeginGeneration makes the store take harvests of one instance of the job only, until the next call;
// of none if it is 0. What another aggregator still sends is refused with [ErrFenced]: its gradients may
// come again from elsewhere. Before the first call the store takes all.
func (s *Store) BeginGeneration(instance uint64) { s.generation = &instance }

// Generation returns the instance of the last call of BeginGeneration, 0 before the first.
func (s *Store) Generation() uint64 {
	if s.generation == nil {
		return 0
	}
	return *s.generation
}

// TakeAlways makes the store take gradients of these rows even if it is full, as harvests do, which
// bring no other rows.
func (s *Store) TakeAlways(keys []uint64) {
	s.always = make(map[uint64]struct{}, len(keys))
	for _, key := range keys {
		s.always[key] = struct{}{}
	}
}

// harvestID identifies a harvest across all instances of a job.
type harvestID struct{ instance, number uint64 }

// ApplyHarvest adds a harvest to the open step, once: a sender repeats a harvest until
// it is acknowledged, so ApplyHarvest returns false if the harvest's number is not above
// the last one applied of the same instance.
//
// hot holds the keys of the hot set of the bank in order of row ranks: scalar rank r
// belongs to row hot[r/Dim], column r%Dim. On an error nothing is added: a rank beyond
// the hot set, lengths that do not match, a sum out of range (wraps [ErrOverflow]), or another
// instance than that of [Store.BeginGeneration] (wraps [ErrFenced]).
func (s *Store) ApplyHarvest(h Harvest, hot []uint64) (applied bool, err error) {
	d := s.cfg.Dim
	if s.generation != nil && (*s.generation == 0 || *s.generation != h.Instance) {
		return false, fmt.Errorf("%w: harvest %d of instance %d", ErrFenced, h.Number, h.Instance)
	}
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
	// Refusing a row would lose acknowledged gradients, and a harvest adds at most
	// the rows of the hot set.
	if !s.noteRows(keys, units, math.MaxInt) {
		if bad, err := s.addUnits(found, keys, units, math.MaxInt); err != nil {
			return false, fmt.Errorf("ps: harvest %d, key %d, column %d: %w", h.Number, keys[bad/d], bad%d, err)
		}
	}
	s.harvest = harvestID{h.Instance, h.Number}
	return true, nil
}

// gatherRows returns the rows with sums in a harvest, as arguments of addUnits.
func (s *Store) gatherRows(h Harvest, hot []uint64) (found []int, keys []uint64, units []int64, err error) {
	d := s.cfg.Dim
	rows := len(h.Sums)
	if h.Ranks == nil {
		rows = (rows + d - 1) / d
	}
	keys, units = s.scratchRows(rows)
	keys, units, found = keys[:0], units[:0], s.batchRows[:0]
	last, first := -1, 0 // row rank of the last row in keys, and the rank of its column 0
	for i, sum := range h.Sums {
		rank := i
		if h.Ranks != nil {
			rank = int(h.Ranks[i])
		}
		if sum == 0 {
			continue
		}
		end := len(units)
		// A repeated rank starts another row, so that applyUnits adds the two and
		// detects an overflow.
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

// gatherScalars is gatherRows for rows of one column, in short loops that overlap the cache
// misses of many rows.
func (s *Store) gatherScalars(h Harvest, hot []uint64) (found []int, keys []uint64, units []int64, err error) {
	keys, units = s.scratchRows(len(h.Sums))
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
	return fmt.Errorf("ps: harvest %d contains a sum of rank %d, the hot set contains %d rows of dimension %d", h.Number,
		rank, rows, dim)
}

// findHot returns the row of the key with a rank, or -1. Rows do not move, so it tries the
// last known row first.
func (s *Store) findHot(rank int, key uint64) int {
	if r := s.hotRows[rank]; r < s.rows.n && s.rows.key(r) == key {
		return r
	}
	return s.searchHot(rank, key)
}

// searchHot is findHot for a row that moved. It is a separate function so that the
// compiler can inline findHot.
func (s *Store) searchHot(rank int, key uint64) int {
	r := s.index.findRow(key)
	s.hotRows[rank] = max(r, 0)
	return r
}
