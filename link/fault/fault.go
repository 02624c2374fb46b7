// SPDX-License-Identifier: Apache-2.0

// Package fault decides, reproducibly, which frames a network loses,
// duplicates or delays past later ones.
//
// A [Line] is one direction of a path. Its decisions come from a seeded
// generator and from the number of frames that passed, never from a clock, so
// the same frames meet the same faults in every run.
//
// It is part of the libra command, not a stable interface: it changes with any release.
package fault

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

const (
	// DefaultDelay is the largest number of later frames that overtake a
	// delayed one, unless Config.Delay says otherwise.
	DefaultDelay = 16
	// DefaultLateDelay is the delay of a very late duplicate, in frames,
	// unless Config.LateDelay says otherwise: more than the 1024 sequence
	// numbers that a duplicate filter remembers.
	DefaultLateDelay = 1500
)

// Config is the frequency of faults. Probabilities are in [0, 1); the zero value lets every frame
// pass.
type Config struct {
	// Drop is the probability that a frame is lost.
	Drop float64
	// Duplicate is the probability that a second copy of a frame follows up
	// to Delay frames later.
	Duplicate float64
	// Reorder is the probability that up to Delay later frames overtake a
	// frame.
	Reorder float64
	// Late is the probability that a second copy of a frame follows LateDelay frames later, when
	// the receiver has forgotten the first.
	Late float64

	// Delay is the most later frames that overtake one; 0 means DefaultDelay.
	Delay int
	// LateDelay is the delay of very late copies; 0 means DefaultLateDelay.
	LateDelay int
	// Seed selects the sequence of decisions.
	Seed uint64
}

// Validate names the first field with an invalid value.
func (c Config) Validate() error {
	for _, p := range []struct {
		name  string
		value float64
	}{{"drop", c.Drop}, {"duplicate", c.Duplicate}, {"reorder", c.Reorder}, {"late", c.Late}} {
		if !(p.value >= 0 && p.value < 1) {
			return fmt.Errorf("fault: probability %s is %g, not in [0, 1)", p.name, p.value)
		}
	}
	if c.Delay < 0 || c.LateDelay < 0 {
		return fmt.Errorf("fault: delays of %d and %d frames: neither may be negative", c.Delay, c.LateDelay)
	}
	return nil
}

// Stats counts what a line did.
type Stats struct {
	Frames     uint64 // frames that entered
	Dropped    uint64
	Duplicated uint64 // second copies, including very late ones
	Reordered  uint64
}

// Add adds the counts of o.
func (s *Stats) Add(o Stats) {
	s.Frames += o.Frames
	s.Dropped += o.Dropped
	s.Duplicated += o.Duplicated
	s.Reordered += o.Reordered
}

// Line is one direction of a faulty path for frames of type T. It is not safe
// for concurrent use.
type Line[T any] struct {
	cfg   Config
	clone func(T) T
	rng   *rand.Rand
	held  []held[T] // the earliest first
	stats Stats
}

// NewLine returns a line. direction distinguishes the two directions of a path, so that their
// faults differ. A delayed frame is kept as clone's copy of it.
func NewLine[T any](cfg Config, direction uint64, clone func(T) T) (*Line[T], error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.Delay = cmp.Or(cfg.Delay, DefaultDelay)
	cfg.LateDelay = cmp.Or(cfg.LateDelay, DefaultLateDelay)
	return &Line[T]{cfg: cfg, clone: clone, rng: rand.New(rand.NewPCG(cfg.Seed, direction))}, nil
}

// Pass sends one frame into the line and calls deliver for every frame that leaves it now: x
// itself, unless it is lost or delayed, and earlier frames whose delay ends.
func (l *Line[T]) Pass(x T, deliver func(T)) {
	l.stats.Frames++
	// Always the same number of draws, so that one probability does not affect the frames of other
	// faults.
	drop := l.rng.Float64() < l.cfg.Drop
	duplicate := l.rng.Float64() < l.cfg.Duplicate
	reorder := l.rng.Float64() < l.cfg.Reorder
	late := l.rng.Float64() < l.cfg.Late
	delay := uint64(1 + l.rng.IntN(l.cfg.Delay))
	switch {
	case drop:
		l.stats.Dropped++
	case reorder:
		l.stats.Reordered++
		l.delayCopy(x, delay)
	default:
		deliver(x)
	}
	if duplicate && !drop {
		l.stats.Duplicated++
		l.delayCopy(x, delay+uint64(l.rng.IntN(l.cfg.Delay)))
	}
	if late && !drop {
		l.stats.Duplicated++
		l.delayCopy(x, uint64(l.cfg.LateDelay))
	}
	l.release(l.stats.Frames, deliver)
}

// Flush delivers all delayed frames.
func (l *Line[T]) Flush(deliver func(T)) { l.release(math.MaxUint64, deliver) }

// Stats returns the line's counts so far.
func (l *Line[T]) Stats() Stats { return l.stats }

type held[T any] struct {
	frame T
	due   uint64 // counted in frames that entered the line
}

// delayCopy keeps a copy of a frame, after those that are due at the same time.
func (l *Line[T]) delayCopy(x T, delay uint64) {
	due := l.stats.Frames + delay
	at, _ := slices.BinarySearchFunc(l.held, due+1, func(h held[T], due uint64) int { return cmp.Compare(h.due, due) })
	l.held = slices.Insert(l.held, at, held[T]{l.clone(x), due})
}

// release delivers the frames due by a time.
func (l *Line[T]) release(until uint64, deliver func(T)) {
	n := 0
	for ; n < len(l.held) && l.held[n].due <= until; n++ {
		deliver(l.held[n].frame)
	}
	l.held = slices.Delete(l.held, 0, n)
}
