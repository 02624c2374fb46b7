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
	// Awaited is the time since the first arrival at the end of the open step, if the worker has not
	// arrived there.
	Awaited time.Duration
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
	first, last := a.firstAndLast()
	for w, t := range a.at {
		of := a.workerArrivals(w)
		of.Steps++
		of.After += t.Sub(a.at[first])
	}
	if a.at[last].After(a.at[first]) {
		a.workerArrivals(last).Last++
	}
}

// firstAndLast returns who has arrived first and who last.
func (a *arrivals) firstAndLast() (first, last uint16) {
	for w, t := range a.at {
		if at, ok := a.at[first]; !ok || t.Before(at) {
			first = w
		}
		if at, ok := a.at[last]; !ok || t.After(at) {
			last = w
		}
	}
	return first, last
}

// workerArrivals returns what is counted of a worker.
func (a *arrivals) workerArrivals(worker uint16) *Arrivals {
	if a.total[worker] == nil {
		a.total[worker] = &Arrivals{Worker: worker}
	}
	return a.total[worker]
}

// Arrivals returns when the workers have arrived at the ends of steps, ordered by worker; none
// before the first arrival. It does not wait for any of them.
func (s *ParameterServer) Arrivals() (all []Arrivals) {
	b := s.barrier
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.times.at == nil {
		return nil
	}
	var awaited time.Duration
	if first, _ := b.times.firstAndLast(); len(b.times.at) > 0 && !b.round.commits {
		awaited = time.Since(b.times.at[first])
	}
	for w := range b.running {
		b.times.workerArrivals(w)
	}
	for w, of := range b.times.total {
		a := *of
		if _, arrived := b.times.at[w]; b.running[w] && !arrived {
			a.Awaited = awaited
		}
		all = append(all, a)
	}
	slices.SortFunc(all, func(a, b Arrivals) int { return cmp.Compare(a.Worker, b.Worker) })
	return all
}
