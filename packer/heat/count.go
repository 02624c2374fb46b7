// SPDX-License-Identifier: Apache-2.0

package heat

import (
	"cmp"
	"slices"
)

// Count is a row's number of updates.
type Count struct {
	Key     uint64
	Updates uint64
}

// Ranking is the result of counting: rows in descending order of their counts,
// equal counts in ascending order of their keys, so that the same counts give
// the same ranks everywhere.
type Ranking struct {
	Counts  []Count
	Updates uint64 // all updates, T_n of Principle 1, including those of rows not listed
	// Err bounds the error: a count is too high by at most Err and never too
	// low, and a row that is not listed has at most Err updates. It is 0 for
	// exact counts.
	Err uint64
}

func rank(counts []Count) {
	slices.SortFunc(counts, func(a, b Count) int {
		return cmp.Or(cmp.Compare(b.Updates, a.Updates), cmp.Compare(a.Key, b.Key))
	})
}

// Counter counts the updates of rows.
type Counter interface {
	Add(key uint64)
	// Ranking returns the counts so far.
	Ranking() Ranking
}

var (
	_ Counter = (*Exact)(nil)
	_ Counter = (*SpaceSaving)(nil)
)

// Exact is a [Counter] with one counter for each row, about 40 bytes for each
// distinct key. Its zero value is ready for use.
type Exact struct {
	counts  map[uint64]uint64
	updates uint64
}

// Add implements [Counter].
func (e *Exact) Add(key uint64) {
	if e.counts == nil {
		e.counts = make(map[uint64]uint64)
	}
	e.counts[key]++
	e.updates++
}

// Ranking implements [Counter].
func (e *Exact) Ranking() Ranking {
	counts := make([]Count, 0, len(e.counts))
	for key, n := range e.counts {
		counts = append(counts, Count{Key: key, Updates: n})
	}
	rank(counts)
	return Ranking{Counts: counts, Updates: e.updates}
}
