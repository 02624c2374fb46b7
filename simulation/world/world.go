// SPDX-License-Identifier: Apache-2.0

package world

import (
	"fmt"
	"hash"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// Life is what happens in a world. The world calls it while no actor runs, or, for Leaves, in an
// event.
type Life interface {
	// Collect is called between two turns and after each event that may have woken a goroutine: all
	// goroutines are blocked.
	Collect()
	// Turned is called after the turn of an actor, before time passes. at is the actor's host, nil
	// if it has none.
	Turned(at *Host)
	// Leaves is called when a frame leaves a host, whether it arrives or not. to is nil if nothing
	// is at its destination. copied means that the network may deliver it more than once.
	Leaves(from, to *Host, payload []byte, copied bool)
}

// Options selects a world.
type Options struct {
	// Seed decides everything in the world.
	Seed Seed
	// Trace gets a line for each turn and each frame. Nil: none.
	Trace io.Writer
	// Life stands on the world.
	Life Life
	// Background means that goroutines that are no actors do work of their own, as those of gRPC do.
	Background bool
	// Bound is how long a life may last after the end of its trouble, in virtual time.
	Bound time.Duration
	// Conditions are those of the network and the links until the trouble ends.
	Conditions Conditions
}

// Conditions are the properties of the network and of links. Probabilities are of one frame.
type Conditions struct {
	Loss      float64
	Burst     float64 // that a burst of losses begins, of a window or less
	Duplicate float64
	Reorder   float64 // of an additional delay
	Late      float64 // of a copy that arrives up to seconds later
	Corrupt   float64 // of one flipped bit
	Hostile   float64 // that a stranger answers and replaces it

	Delay   time.Duration // the longest that reordering adds
	Window  int           // frames that a link may have in flight
	Longest int           // frames of a burst at most; 0: a window
	Payload int           // largest of a link, in bytes
	Inbox   int           // frames that wait for a process; more are lost
	// ShortQueues makes links accept fewer frames than they are given, and wait for no reason.
	ShortQueues bool
	// Stranger is another host, whose programs send half of the forged frames. The zero value: none.
	Stranger netip.Addr
}

// World is the surroundings of one life.
type World struct {
	// Mu guards what goroutines that are no actors share with the schedule.
	Mu sync.Mutex
	// Net has the hosts.
	Net *Network
	// Short counts the calls of links that did less than they could.
	Short int

	options  Options
	schedule *rand.Rand // which actor runs next, and how much of a request succeeds

	began   time.Time
	step    atomic.Int64          // turns so far
	actors  []*Actor              // guarded by Mu
	current atomic.Pointer[Actor] // the woken one
	choice  []*Actor              // memory of choose
	events  events
	order   int // of the newest event

	healed   bool // the trouble has ended
	healedAt time.Time
	over     bool // links fail, so that everything ends
	failure  *Failure

	tracing sync.Mutex // guards the trace, its digest and line
	digest  hash.Hash64
	line    []byte        // memory of the trace's newest line
	kicked  chan struct{} // wakes a sleeping schedule
	conns   *Connections  // nil: none
}

// New makes a world. It must be called in the bubble of its life.
func New(o Options) *World {
	w := &World{
		options: o, schedule: o.Seed.Stream(streamSchedule), began: time.Now(),
		digest: fnv.New64a(), kicked: make(chan struct{}, 1),
	}
	w.Net = newNetwork(w)
	return w
}

// Failure is the first wrong state or answer in a world.
type Failure struct {
	Seed Seed
	Step int64         // turns until then
	At   time.Duration // virtual time until then
	What string
}

func (f *Failure) Error() string {
	return fmt.Sprintf("seed %d, step %d, %v: %s", f.Seed, f.Step, f.At, f.What)
}

// Fail records the first violation, which ends the life.
func (w *World) Fail(format string, args ...any) {
	if w.failure == nil {
		w.failure = &Failure{Seed: w.options.Seed, Step: w.step.Load(), At: w.Elapsed(), What: fmt.Sprintf(format, args...)}
		w.Trace("VIOLATION %v\n", w.failure)
	}
}

// Failure returns the first violation, nil if there is none.
func (w *World) Failure() *Failure { return w.failure }

// Failed reports whether there is a violation.
func (w *World) Failed() bool { return w.failure != nil }

// Heal ends the trouble: of the network, of links, and of paused hosts.
func (w *World) Heal() {
	w.healed, w.healedAt = true, time.Now()
	w.Net.Connect()
	for _, h := range w.Net.order {
		h.Resume()
	}
}

// Healed reports whether the trouble has ended.
func (w *World) Healed() bool { return w.healed }

// HealedAt returns when the trouble has ended.
func (w *World) HealedAt() time.Time { return w.healedAt }

// Finish makes all links fail, so that everything ends.
func (w *World) Finish() { w.over = true }

// Over reports whether the world ends.
func (w *World) Over() bool { return w.over }

// Step returns the number of turns so far.
func (w *World) Step() int64 { return w.step.Load() }

// Elapsed returns the virtual time of the life so far.
func (w *World) Elapsed() time.Duration { return time.Since(w.began) }

// Draw returns a number below n that the seed decides. It must be called in a turn or in an event.
func (w *World) Draw(n int) int { return w.schedule.IntN(n) }
