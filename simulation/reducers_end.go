// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"errors"
	"slices"
	"time"

	"github.com/libra-ina/libra/simulation/world"
	"github.com/libra-ina/libra/transport/reducer"
	"github.com/libra-ina/libra/wire"
)

// ReducersResult is the summary of lives of reducers.
type ReducersResult struct {
	Lives   int           `json:"lives"`
	Steps   int64         `json:"steps"`
	Virtual time.Duration `json:"virtual_ns"`
	Digest  uint64        `json:"digest,string"` // of the trace
	Acked   int           `json:"acked"`         // lives in mode acked
	Workers int           `json:"workers"`
	Crashes int           `json:"crashes"`
	Pauses  int           `json:"pauses"`
	Short   int           `json:"short"`   // calls of links that did less than they could
	Results int           `json:"results"` // that were compared
	Repeats int           `json:"repeats"` // of contributions whose results were late
	Hurried int           `json:"hurried"` // of contributions that others have overtaken
	Bundled int           `json:"bundled"` // operations of a worker that left in the frame of others
	Named   int           `json:"named"`   // errors that name a dead worker
	Stepped int           `json:"stepped"` // errors of workers that have made other calls than others
	Traffic Traffic       `json:"traffic"`
}

// Add adds the summary of another life.
func (r *ReducersResult) Add(o ReducersResult) {
	r.Lives += o.Lives
	r.Steps += o.Steps
	r.Virtual += o.Virtual
	r.Digest ^= o.Digest
	r.Acked += o.Acked
	r.Workers += o.Workers
	r.Crashes += o.Crashes
	r.Pauses += o.Pauses
	r.Short += o.Short
	r.Results += o.Results
	r.Repeats += o.Repeats
	r.Hurried += o.Hurried
	r.Bundled += o.Bundled
	r.Named += o.Named
	r.Stepped += o.Stepped
	r.Traffic.Add(o.Traffic)
}

// planTrouble plans the trouble, and its end. In one life in four with crashes, a worker dies.
func (s *reducersLife) planTrouble() {
	p, rng := &s.plan, s.options.random(streamTrouble)
	hosts := []*world.Host{s.switched}
	for _, w := range s.workers {
		hosts = append(hosts, w.host)
	}
	span := int64(p.trouble)
	for n := range 2 + rng.IntN(most-2) {
		// As in the network, the number of draws is always the same.
		at, lasts := time.Duration(rng.Int64N(span)), time.Duration(rng.Int64N(span/4))
		a, b := hosts[rng.IntN(len(hosts))], hosts[rng.IntN(len(hosts))]
		victim := s.workers[rng.IntN(len(s.workers))]
		kind := [...]Kinds{Partition, Pause, Partition, Pause, Partition, Pause, Partition, Crash}[rng.IntN(8)]
		if p.kinds&kind == 0 || slices.Contains(s.options.Cut.Without, n) {
			continue
		}
		s.After(at, func() {
			if s.Healed() {
				return
			}
			s.Tell("%v of %s and %s, or worker %d\n", kind, a.Name(), b.Name(), victim.id)
			switch kind {
			case Partition:
				s.Net.Partition(a, b)
				s.After(lasts, func() { s.Net.Rejoin(a, b) })
			case Pause:
				s.result.Pauses++
				a.Pause()
				s.After(lasts, a.Resume)
			case Crash:
				if !victim.ended {
					s.result.Crashes++
					victim.link.Crash()
				}
			}
		})
	}
	s.After(p.trouble, s.Heal)
}

// checkEnd compares what has come of the workers, and the aggregator's counts, with what should
// have.
func (s *reducersLife) checkEnd() {
	if s.Failed() {
		return
	}
	s.result.Workers = len(s.workers)
	var dead []uint16
	for _, w := range s.workers {
		if errors.Is(w.failed, world.ErrGone) {
			dead = append(dead, w.id)
		}
	}
	c, err := s.model.JobCounters(7)
	if err != nil {
		s.Fail("%v", err)
		return
	}
	same := s.madeSameFrames()
	for _, w := range s.workers {
		var missing *reducer.MissingError
		var step *reducer.OutOfStepError
		switch {
		case slices.Contains(dead, w.id):
		case !same && errors.As(w.failed, &step):
			s.result.Stepped++
		case !same && len(dead) == 0:
			s.Fail("worker %d: %v; but not all workers have made the same calls", w.id, w.failed)
		case w.failed == nil:
		case !errors.As(w.failed, &missing) || len(dead) == 0:
			s.Fail("worker %d: %v", w.id, w.failed)
		default:
			s.checkNames(w, missing, dead)
		}
	}
	if len(dead) > 0 || !same || s.Failed() {
		return
	}
	frames := len(s.workers[0].frames)
	s.result.Bundled = s.ops - frames
	if c.Rounds != uint64(frames) || c.Applied != uint64(frames*len(s.workers)) || c.Refused[wire.CodeRound] != 0 {
		s.Fail("%d frames of %d workers ended, the aggregator counts %d rounds, %d contributions, %d of them twice in a round",
			frames, len(s.workers), c.Rounds, c.Applied, c.Refused[wire.CodeRound])
	}
}

// madeSameFrames reports whether all workers have put the same operations into frames, as far as
// they have come.
func (s *reducersLife) madeSameFrames() bool {
	first := s.workers[0].frames
	return !slices.ContainsFunc(s.workers[1:], func(w *summing) bool {
		n := min(len(first), len(w.frames))
		return !slices.Equal(first[:n], w.frames[:n])
	})
}

// checkNames checks that an error names the dead workers and no other, unless others have ended or
// failed before: those do not contribute either.
func (s *reducersLife) checkNames(w *summing, e *reducer.MissingError, dead []uint16) {
	for _, id := range e.Missing {
		other := s.workers[slices.IndexFunc(s.workers, func(o *summing) bool { return o.id == id })]
		if other.started > int(e.Op) && !slices.Contains(dead, id) && other.failed == nil {
			s.Fail("worker %d: %v; but worker %d has contributed", w.id, e, id)
		}
		if other == w {
			s.Fail("worker %d names itself: %v", w.id, e)
		}
	}
	if e.Missing != nil {
		// Whoever has failed has not told either that it has a result.
		failed := e.Taken && slices.ContainsFunc(s.workers, func(o *summing) bool {
			return o.failed != nil && slices.Contains(e.Missing, o.id)
		})
		if !failed && !slices.ContainsFunc(dead, func(id uint16) bool { return slices.Contains(e.Missing, id) }) {
			s.Fail("worker %d: %v; but %v are dead", w.id, e, dead)
		}
		s.result.Named++
	}
}
