// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"slices"
	"time"
)

// Arrivals says when a worker has arrived at the ends of steps.
type Arrivals struct {
	Worker uint16
	Steps  uint64        // at whose end it has arrived with others
	Last   uint64        // of these, where it was the last
	After  time.Duration // sum of the times from each step's first arrival to its own
}

// arrivals collects the [Arrivals] of a job's workers. The barrier's lock guards it.
type arrivals struct {
	at    map[uint16]time.Time // in this step
	total map[uint16]*Arrivals
}

func (a *arrivals) noteArrival(worker uint16, now time.Time) {
	if a.at == nil {
		a.at, a.total = map[uint16]time.Time{}, map[uint16]*Arrivals{}
	}
	a.at[worker] = now
}

// forgetWorker takes back the arrival of a worker.
func (a *arrivals) forgetWorker(worker uint16) { delete(a.at, worker) }

// countMet counts a step at whose end all have arrived.
func (a *arrivals) countMet() {
	if len(a.at) < 2 { // nobody waits
		return
	}
	var first, last uint16
	for w, t := range a.at {
		if at, ok := a.at[first]; !ok || t.Before(at) {
			first = w
		}
		if at, ok := a.at[last]; !ok || t.After(at) {
			last = w
		}
	}
	for w, t := range a.at {
		if a.total[w] == nil {
			a.total[w] = &Arrivals{Worker: w}
		}
		a.total[w].Steps++
		a.total[w].After += t.Sub(a.at[first])
	}
	if a.at[last].After(a.at[first]) {
		a.total[last].Last++
	}
}

// Arrivals returns when the workers have arrived at the ends of steps, ordered by worker. It does not
// wait for any of them.
func (s *ParameterServer) Arrivals() (all []Arrivals) {
	s.barrier.mu.Lock()
	defer s.barrier.mu.Unlock()
	for _, a := range s.barrier.times.total {
		all = append(all, *a)
	}
	slices.SortFunc(all, func(a, b Arrivals) int { return cmp.Compare(a.Worker, b.Worker) })
	return all
}
