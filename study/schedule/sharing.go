// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"cmp"
	"slices"

	"github.com/libra-ina/libra/sched"
)

// sharing is aggregation in memory that fragments share, as ATP and ESA have it. A programmable
// switch has a number of units, each with room for one fragment; fragment i of a gradient goes to
// unit i modulo their number. A fragment that reaches a switch is treated by these rules:
//
//   - If its unit is free, it takes it. What comes later of the same fragment is added.
//   - The unit is released when the fragments of all workers whose path leads over the switch are
//     in the sum, which then goes on towards the server as one fragment. It is not held until an
//     answer of the server has passed.
//   - If another fragment has the unit, it goes on unchanged, and the next programmable switch on
//     the path may take it. With ESA, a later fragment of the gradient has the higher priority, as
//     it is of the layers that the next forward pass needs first: it takes the unit, and what the
//     unit holds of the earlier one goes on.
//   - Once a copy or a part of a fragment has gone on, the switch cannot complete it: all further
//     copies go on. So no unit waits forever.
//
// These rules give the sequences in Figure 2(b). The time from one node to the next is neglected.
type sharing struct {
	next    []sched.Node
	workers []sched.Node
	server  sched.Node
	units   int
	evict   bool // ESA

	at      []int // for each node its index among the programmable switches, or -1
	fan     []int // for each of those, the workers whose path leads over it
	taken   [][]int
	sum     [][]int  // copies in each unit
	gone    [][]bool // fragments of which something has gone on
	arrived int      // copies in what the server has got
	outcome outcome
}

// free is the fragment of a unit that has none.
const free = -1

func newSharing(p *placement, next []sched.Node, workers, units, fragments int, evict bool) *sharing {
	n := &p.network
	s := &sharing{
		next: next, workers: n.Workers[:workers], server: n.Server, units: units, evict: evict,
		at: slices.Repeat([]int{free}, n.Graph.Nodes()), fan: make([]int, len(n.Switches)),
	}
	for i, node := range n.Switches {
		s.at[node] = i
		s.taken = append(s.taken, slices.Repeat([]int{free}, units))
		s.sum = append(s.sum, make([]int, units))
		s.gone = append(s.gone, make([]bool, fragments))
	}
	for _, w := range s.workers {
		for node := next[w]; node != s.server; node = next[node] {
			if i := s.at[node]; i >= 0 {
				s.fan[i]++
			}
		}
	}
	return s
}

// send has a worker send a fragment, of one MB.
func (s *sharing) send(worker, fragment int) { s.forward(s.workers[worker], fragment, 1) }

// forward moves the sum of some copies of a fragment from a node to the next, and on, until a unit
// has it or the server.
func (s *sharing) forward(from sched.Node, fragment, copies int) {
	for from != s.server {
		from = s.next[from]
		s.outcome.traffic++
		if i := s.at[from]; i >= 0 {
			if copies = s.take(from, i, fragment, copies); copies == 0 {
				return
			}
		}
	}
	s.outcome.server++
	s.arrived += copies
}

// take gives copies of a fragment to a switch, and returns those that go on.
func (s *sharing) take(node sched.Node, i, fragment, copies int) (on int) {
	unit := fragment % s.units
	if s.gone[i][fragment] {
		return copies
	}
	if other := s.taken[i][unit]; other != free && other != fragment {
		if !s.evict || fragment < other {
			s.gone[i][fragment] = true
			return copies
		}
		s.gone[i][other] = true
		s.taken[i][unit] = free
		s.forward(node, other, s.sum[i][unit])
	}
	if s.taken[i][unit] == free {
		s.taken[i][unit], s.sum[i][unit] = fragment, 0
	}
	if s.sum[i][unit] += copies; s.sum[i][unit] < s.fan[i] {
		return 0
	}
	s.taken[i][unit] = free
	return s.fan[i]
}

// arrival is a fragment that a worker sends.
type arrival struct {
	time             float64
	worker, fragment int
}

// arrivals orders what all workers send, each fragment after fragment at its rate.
func arrivals(fragments int, rates []float64) []arrival {
	var all []arrival
	for w, rate := range rates {
		for f := range fragments {
			all = append(all, arrival{float64(f+1) / rate, w, f})
		}
	}
	slices.SortFunc(all, func(a, b arrival) int {
		return cmp.Or(cmp.Compare(a.time, b.time), a.fragment-b.fragment, a.worker-b.worker)
	})
	return all
}
