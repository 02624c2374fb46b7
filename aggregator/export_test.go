// SPDX-License-Identifier: Apache-2.0

package aggregator

import (
	"maps"
	"slices"
)

// State is a copy of everything that frames can change in a model, except counters.
type State struct {
	banks   [][]int64
	frames  []uint64
	senders []map[uint16]sender
	groups  [][]group
	scales  []negotiation
}

// State returns a copy of the model's state.
func (m *Model) State() State {
	var s State
	for _, j := range m.jobs {
		if j == nil {
			continue
		}
		for _, b := range j.banks {
			s.banks = append(s.banks, slices.Clone(b.slots))
			s.frames = append(s.frames, b.frames, b.pairs)
		}
		senders := make(map[uint16]sender)
		for id, p := range maps.All(j.senders) {
			c := *p
			c.counters = SenderCounters{}
			senders[id] = c
		}
		s.senders = append(s.senders, senders)
		s.groups = append(s.groups, slices.Clone(j.groups))
		s.scales = append(s.scales, j.scale)
	}
	return s
}

// Equal reports whether two states of one model are the same.
func (s State) Equal(t State) bool {
	return slices.EqualFunc(s.banks, t.banks, slices.Equal[[]int64]) &&
		slices.Equal(s.frames, t.frames) &&
		slices.EqualFunc(s.senders, t.senders, maps.Equal[map[uint16]sender, map[uint16]sender]) &&
		slices.EqualFunc(s.groups, t.groups, slices.Equal[[]group]) &&
		slices.Equal(s.scales, t.scales)
}

// EqualSums reports whether two states of one model differ in nothing but which numbers were
// refused.
func (s State) EqualSums(t State) bool {
	s.senders, t.senders = nil, nil
	return s.Equal(t)
}

// Groups returns the number of slot groups of a job.
func Groups(c JobConfig) int { return len(newGroups(c)) }
