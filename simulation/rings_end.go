// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"errors"
	"slices"
	"time"

	"github.com/libra-ina/libra/simulation/world"
	ringpkg "github.com/libra-ina/libra/transport/ring"
)

// RingsResult is the summary of lives of rings.
type RingsResult struct {
	Lives      int           `json:"lives"`
	Steps      int64         `json:"steps"`
	Virtual    time.Duration `json:"virtual_ns"`
	Digest     uint64        `json:"digest,string"` // of the trace
	Workers    int           `json:"workers"`
	Crashes    int           `json:"crashes"`
	Pauses     int           `json:"pauses"`
	Short      int           `json:"short"`   // calls of links that did less than they could
	Results    int           `json:"results"` // vectors that were compared
	Repeats    int           `json:"repeats"` // of frames
	Duplicates int           `json:"duplicates"`
	Named      int           `json:"named"` // errors that name a dead worker
	Traffic    Traffic       `json:"traffic"`
}

// Add adds the summary of another life.
func (r *RingsResult) Add(o RingsResult) {
	r.Lives += o.Lives
	r.Steps += o.Steps
	r.Virtual += o.Virtual
	r.Digest ^= o.Digest
	r.Workers += o.Workers
	r.Crashes += o.Crashes
	r.Pauses += o.Pauses
	r.Short += o.Short
	r.Results += o.Results
	r.Repeats += o.Repeats
	r.Duplicates += o.Duplicates
	r.Named += o.Named
	r.Traffic.Add(o.Traffic)
}

// planTrouble plans the trouble, and its end. In one life in four with crashes, a worker dies.
func (s *ringLife) planTrouble() {
	p, rng := &s.plan, s.options.random(streamTrouble)
	span := int64(p.trouble)
	for n := range 2 + rng.IntN(most-2) {
		// As in the network, the number of draws is always the same.
		at, lasts := time.Duration(rng.Int64N(span)), time.Duration(rng.Int64N(span/4))
		a, b := s.workers[rng.IntN(len(s.workers))], s.workers[rng.IntN(len(s.workers))]
		kind := [...]Kinds{Partition, Pause, Partition, Pause, Partition, Pause, Partition, Crash}[rng.IntN(8)]
		if p.kinds&kind == 0 || slices.Contains(s.options.Cut.Without, n) {
			continue
		}
		s.After(at, func() {
			if s.Healed() {
				return
			}
			s.Tell("%v of workers %d and %d\n", kind, a.place, b.place)
			switch kind {
			case Partition:
				s.Net.Partition(a.host, b.host)
				s.After(lasts, func() { s.Net.Rejoin(a.host, b.host) })
			case Pause:
				s.result.Pauses++
				a.host.Pause()
				s.After(lasts, a.host.Resume)
			case Crash:
				if !a.ended {
					s.result.Crashes++
					a.link.Crash()
				}
			}
		})
	}
	s.After(p.trouble, s.Heal)
}

// checkEnd checks what has come of the workers: without a death all have all results.
func (s *ringLife) checkEnd() {
	if s.Failed() {
		return
	}
	died := slices.ContainsFunc(s.workers, isDead)
	for _, w := range s.workers {
		var missing *ringpkg.MissingError
		switch {
		case w.failed == nil || isDead(w):
		case !errors.As(w.failed, &missing) || !died:
			s.Fail("worker %d: %v", w.place, w.failed)
		default:
			s.checkNames(w, missing)
		}
	}
}

func isDead(w *ringed) bool { return errors.Is(w.failed, world.ErrGone) }

// checkNames checks that an error names only workers that are dead, or have failed themselves.
func (s *ringLife) checkNames(w *ringed, e *ringpkg.MissingError) {
	for _, named := range slices.Concat(e.Absent, e.Silent) {
		other := s.workers[named.Place]
		if other == w || other.failed == nil {
			s.Fail("worker %d: %v; but worker %d has not failed", w.place, e, named.Place)
		}
		if isDead(other) {
			s.result.Named++
		}
	}
}
