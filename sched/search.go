// SPDX-License-Identifier: Apache-2.0

package sched

import "math"

// search is a plan in the making, whose memory never exceeds that of the switches, except before
// [search.repair].
type search struct {
	*table
	sets []Set
	free []int // memory that is left of each switch
}

func (t *table) newSearch(sets []Set) *search {
	s := &search{table: t, sets: make([]Set, len(sets)), free: make([]int, len(t.Switches))}
	for i, sw := range t.Switches {
		s.free[i] = sw.Memory
	}
	for g, set := range sets {
		s.put(g, set)
	}
	return s
}

// put gives a part to a set of switches.
func (s *search) put(part int, set Set) {
	size := s.Parts[part].Size
	for i := range (s.sets[part] &^ set).All() {
		s.free[i] += size
	}
	for i := range (set &^ s.sets[part]).All() {
		s.free[i] -= size
	}
	s.sets[part] = set
}

// fits reports whether a part may be given to a set of switches.
func (s *search) fits(part int, set Set) bool {
	for i := range (set &^ s.sets[part]).All() {
		if s.free[i] < s.Parts[part].Size {
			return false
		}
	}
	return true
}

// fitTogether reports whether two parts may be given to two sets at once.
func (s *search) fitTogether(g int, setG Set, h int, setH Set) bool {
	for i := range (setG&^s.sets[g] | setH&^s.sets[h]).All() {
		free := s.free[i] - s.change(g, setG, i) - s.change(h, setH, i)
		if free < 0 {
			return false
		}
	}
	return true
}

// change is the memory that a switch would give to a part if a set of switches got it.
func (s *search) change(part int, set Set, i int) int {
	switch had, has := s.sets[part].Has(i), set.Has(i); {
	case has && !had:
		return s.Parts[part].Size
	case had && !has:
		return -s.Parts[part].Size
	}
	return 0
}

// full is how much of a switch is taken, for ties.
func (s *search) full(i int) float64 {
	if s.Switches[i].Memory == 0 {
		return 1
	}
	return 1 - float64(s.free[i])/float64(s.Switches[i].Memory)
}

// greedy adds a switch to a part, as long as that saves anything: always the one that saves most
// for each unit of memory, and of equals the one at the least loaded switch.
func (s *search) greedy() {
	for {
		bestPart, bestSet, bestSaved, bestFull := -1, Set(0), 0.0, 0.0
		for g, set := range s.sets {
			for i := range s.Switches {
				to := set | s.up[i]
				if to == set || !s.fits(g, to) {
					continue
				}
				saved := s.cost(g, set) - s.cost(g, to)
				saved /= float64(s.Parts[g].Size * (to &^ set).Len())
				if saved > bestSaved || saved == bestSaved && bestPart >= 0 && s.full(i) < bestFull {
					bestPart, bestSet, bestSaved, bestFull = g, to, saved, s.full(i)
				}
			}
		}
		if bestPart < 0 {
			return
		}
		s.put(bestPart, bestSet)
	}
}

// repair takes parts off switches whose memory is exceeded: those that lose least for each unit.
func (s *search) repair() {
	for i := range s.Switches {
		for s.free[i] < 0 {
			worst, loss := -1, math.Inf(1)
			for g, set := range s.sets {
				if set.Has(i) {
					lost := (s.cost(g, set&^s.down[i]) - s.cost(g, set)) / float64(s.Parts[g].Size)
					if worst < 0 || lost < loss {
						worst, loss = g, lost
					}
				}
			}
			s.put(worst, s.sets[worst]&^s.down[i])
		}
	}
}

// improve repeats all moves until none saves anything.
func (s *search) improve() {
	// A move must save this much, so that rounding errors do not repeat it forever.
	least := 1e-12 * (s.total(make([]Set, len(s.sets))) + 1)
	for changed := true; changed; {
		changed = s.changeParts(least)
		changed = s.exchangeParts(least) || changed
	}
}

// changeParts lets each part gain a switch, lose one, or take one in place of another.
func (s *search) changeParts(least float64) (changed bool) {
	for g := range s.sets {
		try := func(to Set) bool {
			if s.cost(g, to) >= s.cost(g, s.sets[g])-least || !s.fits(g, to) {
				return false
			}
			s.put(g, to)
			changed = true
			return true
		}
		for i := range s.Switches {
			if s.sets[g].Has(i) {
				try(s.sets[g] &^ s.down[i])
				continue
			}
			if try(s.sets[g] | s.up[i]) {
				continue
			}
			for j := range s.sets[g].All() {
				if try(s.sets[g]&^s.down[j] | s.up[i]) {
					break
				}
			}
		}
	}
	return changed
}

// exchangeParts lets a part have the place of another at a switch. The other may have a place of
// the first in return, or one that is free.
func (s *search) exchangeParts(least float64) (changed bool) {
	for g := range s.sets {
		for h := range s.sets {
			if g == h {
				continue
			}
			for i := range (s.sets[h] &^ s.sets[g]).All() {
				if s.exchange(g, h, i, least) {
					changed = true
					break
				}
			}
		}
	}
	return changed
}

func (s *search) exchange(g, h, i int, least float64) bool {
	setG, setH := s.sets[g], s.sets[h]
	gains, loses := setG|s.up[i], setH&^s.down[i]
	costG, costH := s.cost(g, setG), s.cost(h, setH)
	bestG, bestH, bestCost := setG, setH, costG+costH-least
	try := func(toG, toH Set) {
		if c := s.cost(g, toG) + s.cost(h, toH); c < bestCost && s.fitTogether(g, toG, h, toH) {
			bestG, bestH, bestCost = toG, toH, c
		}
	}
	try(gains, loses)
	for j := range (setG &^ setH).All() {
		try(setG&^s.down[j]|s.up[i], loses|s.up[j])
		try(setG&^s.down[j]|s.up[i], loses)
	}
	if s.cost(g, gains) < costG { // or no other place for h makes it worth while
		for j := range s.Switches {
			if !setH.Has(j) {
				try(gains, loses|s.up[j])
			}
		}
	}
	if bestG == setG && bestH == setH {
		return false
	}
	s.put(g, bestG)
	s.put(h, bestH)
	return true
}
