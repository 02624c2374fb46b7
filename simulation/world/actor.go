// SPDX-License-Identifier: Apache-2.0

package world

import (
	"errors"
	"time"
)

// ErrGone is the error of a link, a disk or a dialer whose process has been killed.
var ErrGone = errors.New("simulation: the process is gone")

// Actor is a goroutine that runs only when the schedule wakes it, until it parks again or waits
// inside the product for another one.
type Actor struct {
	w    *World
	name string
	host *Host // whose pauses also suspend the actor; nil: none

	caller bool   // it calls endpoints
	hasty  bool   // it does not park in Wake
	doing  string // its current call

	resume chan struct{}
	parked bool
	gone   bool
	where  string      // it is parked
	ready  func() bool // nil: always
	until  time.Time   // it continues then in any case; zero: never
}

// NewActor makes an actor of the goroutine that will call its methods.
func (w *World) NewActor(name string, h *Host) *Actor {
	a := &Actor{w: w, name: name, host: h, resume: make(chan struct{})}
	w.Mu.Lock()
	defer w.Mu.Unlock()
	w.actors = append(w.actors, a)
	return a
}

// Name returns the actor's name in the trace.
func (a *Actor) Name() string { return a.name }

// Do names the call that the actor makes next.
func (a *Actor) Do(call string) { a.doing = call }

// Doing returns the name of the actor's current or last call.
func (a *Actor) Doing() string { return a.doing }

// Rush makes the actor pass Wake without parking, or no longer.
func (a *Actor) Rush(hasty bool) { a.hasty = hasty }

// Gone reports whether the actor has ended.
func (a *Actor) Gone() bool { return a.gone }

// At reports whether the actor is parked at a place.
func (a *Actor) At(where string) bool { return a.parked && a.where == where }

// Park gives control to the schedule until it chooses this actor, which it does only when ready or,
// unless it is zero, at until.
func (a *Actor) Park(where string, ready func() bool, until time.Time) {
	a.where, a.ready, a.until = where, ready, until
	a.parked = true
	a.w.Kick()
	<-a.resume
}

// Yield parks an actor that can continue at any time.
func (a *Actor) Yield(where string) { a.Park(where, nil, time.Time{}) }

// Sleep parks for a duration.
func (a *Actor) Sleep(where string, d time.Duration) { a.Park(where, Never, time.Now().Add(d)) }

// Settle parks until nothing else can happen now: no event is planned, and all other actors wait
// for a time, for one another or for the product.
func (a *Actor) Settle() {
	a.Park("settles", func() bool { return a.w.isSettled(a) }, time.Time{})
}

// Never is the condition of an actor that waits for a time alone.
func Never() bool { return false }

// runnable reports whether the schedule may choose a parked actor.
func (a *Actor) runnable(now time.Time) bool {
	if a.host != nil && a.host.paused && !a.host.crashed() {
		return false
	}
	return a.ready == nil || !a.until.IsZero() && !now.Before(a.until) || a.ready()
}

// Start runs the goroutine of an actor that calls endpoints.
func (a *Actor) Start(body func()) {
	a.caller = true
	a.parked = true // will be, before anything is chosen
	go func() {
		a.Yield("begin")
		body()
		a.Leave()
	}()
}

// Leave ends an actor. Its goroutine may run out of turn.
func (a *Actor) Leave() {
	a.w.Mu.Lock()
	defer a.w.Mu.Unlock()
	a.gone = true
}
