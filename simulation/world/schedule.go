// SPDX-License-Identifier: Apache-2.0

package world

import (
	"cmp"
	"fmt"
	"slices"
	"testing/synctest"
	"time"
)

// maxSteps limits a life: more steps mean that its goroutines keep each other busy.
const maxSteps = 1 << 22

// Kick makes a sleeping schedule check for work.
func (w *World) Kick() {
	if !w.options.Background {
		return // only its own turns create work
	}
	select {
	case w.kicked <- struct{}{}:
	default:
	}
}

// After makes the schedule call fn later.
func (w *World) After(d time.Duration, fn func()) { w.plan(d, event{fn: fn}) }

// quietly is like After, for functions that no goroutine waits for: the schedule need not wait for
// any.
func (w *World) quietly(d time.Duration, fn func()) { w.plan(d, event{fn: fn, quiet: true}) }

func (w *World) plan(d time.Duration, e event) {
	w.order++
	e.at, e.order = time.Now().Add(d).UnixNano(), w.order
	w.events.pushEvent(e)
}

// Idle reports whether no event is planned, such as the arrival of a frame.
func (w *World) Idle() bool { return len(w.events) == 0 }

// Run continues the life until it has ended, something is wrong, or nothing happens any more. ended
// starts no actor: it plans that, so that the actor has parked before one is chosen.
func (w *World) Run(ended func() bool) {
	for w.rest(); w.failure == nil; w.step.Add(1) {
		w.current.Store(nil)
		w.options.Life.Collect()
		now := time.Now()
		if w.step.Load() == maxSteps || w.healed && now.Sub(w.healedAt) > w.options.Bound {
			w.Fail("no end in sight: %s", w.State())
			return
		}
		for w.events.anyDue(now) {
			e := w.events.popFirst()
			if e.fn(); !e.quiet {
				synctest.Wait()
				w.options.Life.Collect()
			}
		}
		if ended() {
			return
		}
		if a := w.choose(now); a != nil {
			w.wake(a)
			continue
		}
		next, ok := w.next()
		if !ok && w.options.Background {
			next, ok = now.Add(time.Second), true // a timer of the product
		}
		if !ok {
			w.Fail("nothing happens any more: %s", w.State())
			return
		}
		w.sleep(next.Sub(now))
		w.rest()
	}
}

// rest returns when no goroutine runs any more: until then time stands still. Timers of the product
// may end at the same moment, and the race detector knows only Wait.
func (w *World) rest() {
	time.Sleep(time.Microsecond)
	synctest.Wait()
}

// sleep lets time pass until there is something to do.
func (w *World) sleep(d time.Duration) {
	if !w.options.Background {
		time.Sleep(d)
		return
	}
	select {
	case <-w.kicked:
	default:
	}
	timer := time.NewTimer(d)
	select {
	case <-w.kicked:
	case <-timer.C:
	}
	timer.Stop()
}

// choose returns the actor that runs next, or nil if none can.
func (w *World) choose(now time.Time) *Actor {
	w.Mu.Lock()
	defer w.Mu.Unlock()
	w.choice = w.choice[:0]
	if w.options.Background { // goroutines that are not actors may become some at the same time
		slices.SortStableFunc(w.actors, func(a, b *Actor) int { return cmp.Compare(a.name, b.name) })
	}
	live := w.actors[:0]
	for _, a := range w.actors {
		if a.gone {
			continue
		}
		live = append(live, a)
		if a.parked && a.runnable(now) {
			w.choice = append(w.choice, a)
		}
	}
	clear(w.actors[len(live):])
	w.actors = live
	if len(w.choice) == 0 {
		return nil
	}
	return w.choice[w.schedule.IntN(len(w.choice))]
}

// isSettled reports whether nothing can happen now, apart from the turn of an actor. Mu is held.
func (w *World) isSettled(apart *Actor) bool {
	now := time.Now()
	return w.Idle() && !slices.ContainsFunc(w.actors, func(a *Actor) bool {
		return a != apart && !a.gone && a.parked && a.runnable(now)
	})
}

// wake runs an actor until it parks or waits. The life compares its accounts before time passes: it
// plans later comparisons.
func (w *World) wake(a *Actor) {
	w.traceTurn(a)
	w.resume(a)
	w.options.Life.Turned(a.host)
	w.rest()
}

func (w *World) resume(a *Actor) {
	w.current.Store(a)
	a.parked = false
	a.resume <- struct{}{}
	synctest.Wait()
}

// next returns the time of the next event, if there is nothing to do now.
func (w *World) next() (at time.Time, ok bool) {
	if len(w.events) > 0 {
		at, ok = time.Unix(0, w.events[0].at), true
	}
	w.Mu.Lock()
	defer w.Mu.Unlock()
	for _, a := range w.actors {
		if a.parked && !a.until.IsZero() && (a.host == nil || !a.host.paused) && (!ok || a.until.Before(at)) {
			at, ok = a.until, true
		}
	}
	return at, ok
}

// End ends every actor of the life.
func (w *World) End() {
	w.Finish()
	for any := true; any; {
		any = false
		synctest.Wait()
		w.Mu.Lock()
		actors := slices.Clone(w.actors)
		w.Mu.Unlock()
		for _, a := range actors {
			if a.parked {
				any = true
				w.resume(a)
			}
		}
	}
}

// EndAll ends every actor, and lets time pass until the goroutines of the processes have ended,
// too. It calls running with Mu held.
func (w *World) EndAll(running func() int) {
	w.Net.Connect()
	for range 10_000 {
		w.End()
		w.Mu.Lock()
		w.conns.Collect()
		left := running()
		w.Mu.Unlock()
		if left == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
		for w.events.anyDue(time.Now()) {
			w.events.popFirst().fn()
			synctest.Wait()
		}
	}
	panic("simulation: processes do not end: " + w.State())
}

// State lists the actors that have not ended.
func (w *World) State() string {
	text := ""
	w.Mu.Lock()
	defer w.Mu.Unlock()
	for _, a := range w.actors {
		switch {
		case a.gone:
		case a.parked:
			text += fmt.Sprintf("%s is at %s; ", a.name, a.where)
		default:
			text += fmt.Sprintf("%s waits in %s; ", a.name, a.doing)
		}
	}
	return text
}
