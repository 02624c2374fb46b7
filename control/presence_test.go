// SPDX-License-Identifier: Apache-2.0

package control

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// countedLock counts how often it was taken.
type countedLock struct {
	chanMutex
	taken int
}

func (l *countedLock) Lock() {
	l.chanMutex.Lock()
	l.taken++
}

// A peer that returns while the end of its grace period waits for the lock has returned in time,
// even if its next grace period has begun before that gets the lock.
func TestPeerComesBackAtTheEndOfItsGracePeriod(t *testing.T) {
	const grace = 3 * time.Second
	for name, again := range map[string]bool{"and stays": false, "and is gone again": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lock, gone := make(chanMutex, 1), 0
				p := newPresence(lock, grace, func() { gone++ })
				lock.Lock()
				p.connectionBroke(p.beginConnection(nil))
				time.Sleep(grace)
				synctest.Wait() // the end waits for the lock
				c := p.beginConnection(nil)
				if again {
					p.connectionBroke(c)
				}
				lock.Unlock()
				synctest.Wait()
				wants := func(when string, want int) {
					t.Helper()
					lock.Lock()
					defer lock.Unlock()
					if gone != want || p.isConnected() == again {
						t.Errorf("%s: it is gone %d times, want %d; connected: %v", when, gone, want, p.isConnected())
					}
				}
				wants("at once", 0)
				time.Sleep(grace - 1)
				synctest.Wait()
				wants("before the end of the next grace period", 0)
				time.Sleep(time.Hour)
				synctest.Wait()
				wants("in the end", map[bool]int{true: 1}[again])
			})
		})
	}
}

// A deadline's function is called once, at its time, unless it is stopped; its time may start
// again.
func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lock, over := &countedLock{chanMutex: make(chanMutex, 1)}, 0
		d := deadline{lock: lock}
		locked := func(f func()) {
			lock.Lock()
			defer lock.Unlock()
			f()
		}
		start := func() {
			locked(func() {
				d.startTimer(time.Second, func() {
					if len(lock.chanMutex) == 0 {
						t.Error("called without the lock")
					}
					over++
				})
			})
		}
		stop := func() (ran bool) {
			locked(func() { ran = d.stopTimer() })
			return ran
		}
		after := func(wait time.Duration, want int) {
			t.Helper()
			time.Sleep(wait)
			synctest.Wait()
			locked(func() {
				if over != want {
					t.Errorf("called %d times, want %d", over, want)
				}
			})
		}
		if stop() {
			t.Error("it runs before it was started")
		}
		start()
		after(time.Second-1, 0)
		start() // again
		after(time.Second-1, 0)
		after(1, 1)
		if stop() {
			t.Error("it runs after its end")
		}
		start()
		if !stop() || stop() {
			t.Error("it does not run, or still does")
		}
		taken := lock.taken
		after(time.Hour, 1)
		if lock.taken != taken+1 { // by after
			t.Error("its timer runs on")
		}
	})
}

// A replaced connection does not start its successor's grace period.
func TestReplacedConnectionEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		replaced := errors.New("replaced")
		p := newPresence(make(chanMutex, 1), time.Second, func() { t.Error("gone") })
		first := p.beginConnection(nil)
		second := p.beginConnection(replaced)
		select {
		case <-first.over:
		default:
			t.Fatal("the first connection goes on")
		}
		if !errors.Is(first.why, replaced) {
			t.Errorf("it ends because %v", first.why)
		}
		p.connectionBroke(first)
		if p.conn != second {
			t.Error("the end of the first connection ends the second")
		}
		time.Sleep(time.Hour)
		synctest.Wait()
	})
}
