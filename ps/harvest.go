// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"unsafe"

	"github.com/libra-ina/libra/internal/num/fixedpoint"
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

// BeginGeneration makes the store take harvests of these instances of the job only, until the next
// call: one for each of its shares; of none without any. What another aggregator still sends is
// refused with [ErrFenced]: its gradients may come again from elsewhere. Before the first call the
// store takes all.
func (s *Store) BeginGeneration(instances ...uint64) {
	s.fenced, s.generation = true, slices.Clone(instances)
	maps.DeleteFunc(s.numbers, func(instance, _ uint64) bool { return !slices.Contains(s.generation, instance) })
}

// Generation returns the instances of the last call of BeginGeneration, none before the first.
func (s *Store) Generation() []uint64 { return slices.Clone(s.generation) }

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
// the last one applied of the same instance. The instances of a generation may take turns.
//
// hot holds the keys of the hot set of the bank in order of row ranks: scalar rank r
// belongs to row hot[r/Dim], column r%Dim. The store remembers their rows while it gets the same
// slice, which must not change. On an error nothing is added: a rank beyond
// the hot set, lengths that do not match, a sum out of range (wraps [ErrOverflow]), or another
// instance than that of [Store.BeginGeneration] (wraps [ErrFenced]).
func (s *Store) ApplyHarvest(h Harvest, hot []uint64) (applied bool, err error) {
	if s.fenced && !slices.Contains(s.generation, h.Instance) {
		return false, fmt.Errorf("%w: harvest %d of instance %d", ErrFenced, h.Number, h.Instance)
	}
	if last, known := s.numbers[h.Instance]; known && h.Number <= last {
		return false, nil
	}
	if h.Ranks != nil && len(h.Ranks) != len(h.Sums) {
		return false, fmt.Errorf("ps: harvest %d has %d ranks for %d sums", h.Number, len(h.Ranks), len(h.Sums))
	}
	s.knowHot(hot)
	add := s.addRows
	if s.cfg.Dim == 1 && s.wide == nil {
		add = s.addScalars
	}
	if err := add(h, hot); err != nil {
		return false, err
	}
	s.noteHarvest(harvestID{h.Instance, h.Number})
	return true, nil
}

// noteHarvest notes that a harvest is applied. Before the first generation, one instance follows
// another.
func (s *Store) noteHarvest(id harvestID) {
	if !s.fenced {
		clear(s.numbers)
	}
	s.numbers[id.instance], s.harvest = id.number, id
}

// addRows adds the sums of a harvest to the open step.
func (s *Store) addRows(h Harvest, hot []uint64) error {
	found, keys, units, err := s.gatherRows(h, hot)
	if err != nil {
		return err
	}
	// Refusing a row would lose acknowledged gradients, and a harvest adds at most
	// the rows of the hot set.
	if s.noteRows(keys, units, math.MaxInt) {
		return nil
	}
	if bad, err := s.addUnits(found, keys, units, math.MaxInt); err != nil {
		d := s.cfg.Dim
		return fmt.Errorf("ps: harvest %d, key %d, column %d: %w", h.Number, keys[bad/d], bad%d, err)
	}
	return nil
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

// addScalars adds the sums of a harvest to rows of one column with weights, in one pass over both.
func (s *Store) addScalars(h Harvest, hot []uint64) error {
	oldRows, oldTouched := s.rows.n, len(s.touched)
	for i, sum := range h.Sums {
		rank := i
		if h.Ranks != nil {
			rank = int(h.Ranks[i])
		}
		if sum == 0 {
			continue
		}
		if rank >= len(hot) {
			s.undoScalars(h, i, oldRows, oldTouched)
			return beyondHotSet(h, rank, len(hot), 1)
		}
		r := s.hotRows[rank] - 1
		if r < 0 {
			r = s.placeHot(rank, hot[rank])
		}
		c, at := s.rows.chunkAt(r)
		after, ok := fixedpoint.Add(c.sums[at], sum)
		if !ok {
			s.undoScalars(h, i, oldRows, oldTouched)
			return fmt.Errorf("ps: harvest %d, key %d, column 0: %w", h.Number, hot[rank], ErrOverflow)
		}
		c.sums[at] = after
		if c.markRow(at) {
			s.touched = append(s.touched, r)
		}
	}
	return nil
}

// placeHot returns the row of the key with a rank, which is new unless cold gradients have placed
// it.
func (s *Store) placeHot(rank int, key uint64) int {
	r, inserted := s.index.placeKey(key, s.rows.n)
	if inserted {
		s.insertRow(key)
	}
	s.hotRows[rank] = r + 1
	return r
}

// undoScalars reverts addScalars up to the sum at position n.
func (s *Store) undoScalars(h Harvest, n, oldRows, oldTouched int) {
	_, units := s.scratchRows(n)
	rows := s.batchRows[:0]
	units = units[:0]
	for i, sum := range h.Sums[:n] {
		rank := i
		if h.Ranks != nil {
			rank = int(h.Ranks[i])
		}
		if sum != 0 {
			rows, units = append(rows, s.hotRows[rank]-1), append(units, sum)
		}
	}
	s.undoUnits(rows, units, oldRows, oldTouched)
}

func beyondHotSet(h Harvest, rank, rows, dim int) error {
	return fmt.Errorf("ps: harvest %d contains a sum of rank %d, the hot set contains %d rows of dimension %d", h.Number,
		rank, rows, dim)
}

// knowHot prepares hotRows for a hot set. Rows with weights move only when additions are undone
// that placed some; otherwise what is known of a hot set stays true.
func (s *Store) knowHot(hot []uint64) {
	first := unsafe.SliceData(hot)
	if s.hotOf == first && len(s.hotRows) == len(hot) && !s.moved {
		return
	}
	s.hotRows = append(s.hotRows[:0], make([]int, len(hot))...)
	s.hotOf, s.moved = first, false
}

// findHot returns the row of the key with a rank, or -1. It tries the last known row first; without
// an optimiser, that may have become another key's.
func (s *Store) findHot(rank int, key uint64) int {
	if r := s.hotRows[rank] - 1; r >= 0 && r < s.rows.n && s.rows.keyOf(r) == key {
		return r
	}
	return s.searchHot(rank, key)
}

// searchHot is findHot for a row that is not known. It is a separate function so that the
// compiler can inline findHot.
func (s *Store) searchHot(rank int, key uint64) int {
	r := s.index.findRow(key)
	s.hotRows[rank] = r + 1
	return r
}
