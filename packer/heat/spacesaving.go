// SPDX-License-Identifier: Apache-2.0

package heat

import (
	"fmt"

	"github.com/libra-ina/libra/packer"
)

// SpaceSaving is a [Counter] with a fixed number of counters, for models of
// billions of rows: the stream-summary algorithm of Metwally, Agrawal and El
// Abbadi, "Efficient computation of frequent and top-k elements in data
// streams", ICDT 2005.
//
// A row without a counter takes over the smallest one and inherits its value.
// So with k counters and n updates, no count is too low, none is too high by
// more than the smallest counter, which is at most n/k, and every row with more
// than n/k updates is listed. Add takes constant time; memory is about 60
// bytes for each counter.
type SpaceSaving struct {
	counters []counter
	byKey    map[uint64]int32 // key -> position in counters
	order    []int32          // positions in counters, by descending count
	groups   []group
	free     []int32 // unused groups
	updates  uint64
}

// counter counts one key. Counters with equal counts form a group, a run of
// order: an increment swaps the counter with the first of the run and moves the
// border behind it.
type counter struct {
	key   uint64
	count uint64
	at    int32 // position in order
	group int32
}

type group struct{ first int32 } // position in order of its first counter

// maxCounters is the largest number of counters of a SpaceSaving.
const maxCounters = 1 << 30

// NewSpaceSaving returns a counter with k counters; use several times the number of
// hot rows. It returns [packer.ErrConfig] if k is not in [1, 2^30].
func NewSpaceSaving(k int) (*SpaceSaving, error) {
	if k < 1 || k > maxCounters {
		return nil, fmt.Errorf("%w: %d counters, possible are 1 to %d", packer.ErrConfig, k, maxCounters)
	}
	return &SpaceSaving{
		counters: make([]counter, 0, k),
		byKey:    make(map[uint64]int32, k),
		order:    make([]int32, 0, k),
	}, nil
}

// Add implements [Counter].
func (s *SpaceSaving) Add(key uint64) {
	s.updates++
	if c, ok := s.byKey[key]; ok {
		s.increment(c)
		return
	}
	if n := len(s.counters); n < cap(s.counters) {
		// A counter of 0 in its own group at the end; the increment moves it to its
		// place.
		s.counters = append(s.counters, counter{key: key, at: int32(n), group: s.newGroup(int32(n))})
		s.order = append(s.order, int32(n))
		s.byKey[key] = int32(n)
		s.increment(int32(n))
		return
	}
	least := s.order[len(s.order)-1]
	delete(s.byKey, s.counters[least].key)
	s.counters[least].key = key
	s.byKey[key] = least
	s.increment(least)
}

func (s *SpaceSaving) increment(c int32) {
	own := s.counters[c].group
	first := s.groups[own].first
	s.swap(s.counters[c].at, first)
	s.counters[c].count++

	alone := int(first)+1 == len(s.order) || s.counters[s.order[first+1]].group != own
	joins := first > 0 && s.counters[s.order[first-1]].count == s.counters[c].count
	switch {
	case joins:
		s.counters[c].group = s.counters[s.order[first-1]].group
		if alone {
			s.free = append(s.free, own)
		}
	case !alone:
		s.counters[c].group = s.newGroup(first)
	}
	if !alone {
		s.groups[own].first++
	}
}

func (s *SpaceSaving) swap(a, b int32) {
	s.order[a], s.order[b] = s.order[b], s.order[a]
	s.counters[s.order[a]].at = a
	s.counters[s.order[b]].at = b
}

func (s *SpaceSaving) newGroup(first int32) int32 {
	if n := len(s.free); n > 0 {
		g := s.free[n-1]
		s.free = s.free[:n-1]
		s.groups[g].first = first
		return g
	}
	s.groups = append(s.groups, group{first: first})
	return int32(len(s.groups) - 1)
}

// Ranking implements [Counter]. Its error is the smallest counter, or 0 while there
// are unused ones.
func (s *SpaceSaving) Ranking() Ranking {
	r := Ranking{Updates: s.updates, Counts: make([]Count, len(s.counters))}
	for i, c := range s.order {
		r.Counts[i] = Count{Key: s.counters[c].key, Updates: s.counters[c].count}
	}
	rank(r.Counts) // orders equal counts by key
	if len(s.counters) == cap(s.counters) {
		r.Err = r.Counts[len(r.Counts)-1].Updates
	}
	return r
}
