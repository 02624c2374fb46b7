// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"errors"
	"time"
)

// errGone is a link's error for a process that has crashed.
var errGone = errors.New("simulation: the process is gone")

// actor is a goroutine that runs only when the scheduler wakes it, until it parks again or waits
// inside the product for another one.
type actor struct {
	s    *sim
	name string
	host *host

	caller bool   // it calls endpoints
	hasty  bool   // it does not park in Wake
	doing  string // its current call

	resume chan struct{}
	parked bool
	gone   bool
	where  string
	ready  func() bool // nil: always
	until  time.Time   // or at this time; zero: never
}

func (s *sim) newActor(name string, h *host) *actor {
	a := &actor{s: s, name: name, host: h, resume: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.actors = append(s.actors, a)
	return a
}

// park gives control to the scheduler until it chooses this actor, which it does only when ready
// or, unless it is zero, at until.
func (a *actor) park(where string, ready func() bool, until time.Time) {
	a.where, a.ready, a.until = where, ready, until
	a.parked = true
	a.s.kick()
	<-a.resume
}

// yield parks an actor that can continue at any time.
func (a *actor) yield(where string) { a.park(where, nil, time.Time{}) }

// sleep parks for a duration.
func (a *actor) sleep(where string, d time.Duration) { a.park(where, never, time.Now().Add(d)) }

func never() bool { return false }

// runnable reports whether the scheduler may choose a parked actor.
func (a *actor) runnable(now time.Time) bool {
	if a.host != nil && a.host.paused && !a.host.gone() {
		return false
	}
	return a.ready == nil || !a.until.IsZero() && !now.Before(a.until) || a.ready()
}

// start runs the goroutine of an actor that calls endpoints.
func (a *actor) start(body func()) {
	a.caller = true
	a.parked = true // will be, before anything is chosen
	go func() {
		a.yield("begin")
		body()
		a.leave()
	}()
}

// leave ends an actor. Its goroutine may run out of turn.
func (a *actor) leave() {
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	a.gone = true
}
