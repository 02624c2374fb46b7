// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"sync/atomic"
	"time"

	"github.com/libra-ina/libra/telemetry"
)

// load measures a [telemetry.Load]. The goroutine reads the clock when it begins to wait, and while
// it waits: a turn that has work needs no reading. What a reader gets runs backwards by the time of
// a turn without work at most.
type load struct {
	begun   time.Time
	version atomic.Uint32 // odd while the fields below change together
	since   atomic.Int64  // when the loop began to wait; none while it works
	turned  atomic.Int64  // when the current turn began, which may have work; none if the loop sleeps or works
	calling atomic.Int64  // when the current calls began; none
	waiting atomic.Int64  // until since
	calls   atomic.Int64  // that have returned
	summing atomic.Int64  // when the current sums of a harvest began; none
	sums    atomic.Int64  // that are added; of calls, or of the current one
}

// none is no time.
const none = -1

func (l *load) initLoad() {
	l.begun = time.Now()
	l.since.Store(none)
	l.turned.Store(none)
	l.calling.Store(none)
	l.summing.Store(none)
}

func (l *load) now() time.Duration { return time.Since(l.begun) }

// change changes several fields at once.
func (l *load) change(fn func()) {
	l.version.Add(1)
	fn()
	l.version.Add(1)
}

// beginCalls and endCalls are called around posted functions.
func (l *load) beginCalls() { l.calling.Store(int64(l.now())) }

func (l *load) endCalls() {
	l.change(func() {
		l.calls.Add(int64(l.now()) - l.calling.Load())
		l.calling.Store(none)
	})
}

// AddSums runs a function that adds the sums of a harvest, within a posted one, and counts its time
// as such.
func (l *Loop) AddSums(fn func()) {
	d := &l.load
	d.summing.Store(int64(d.now()))
	fn()
	d.change(func() {
		d.sums.Add(int64(d.now()) - d.summing.Load())
		d.summing.Store(none)
	})
}

// BeginTurn is called when a turn has received its packets, before it does anything with them.
func (l *Loop) BeginTurn() {
	if l.load.since.Load() != none {
		l.load.turned.Store(int64(l.load.now()))
	}
}

// EndTurn is called when a turn has done its work, and says whether there was any.
func (l *Loop) EndTurn(worked bool) {
	d := &l.load
	since := d.since.Load()
	switch {
	case worked && since != none:
		d.change(func() {
			d.waiting.Add(d.turned.Load() - since)
			d.since.Store(none)
			d.turned.Store(none)
		})
	case !worked && since == none:
		d.since.Store(int64(d.now()))
	case !worked:
		d.turned.Store(none)
	}
}

// Load returns how the loop has spent its time. Any goroutine may call it, and the loop does not
// wait.
func (l *Loop) Load() telemetry.Load {
	d := &l.load
	for {
		version := d.version.Load()
		since, turned, calling, summing := d.since.Load(), d.turned.Load(), d.calling.Load(), d.summing.Load()
		waiting, calls, sums := d.waiting.Load(), d.calls.Load(), d.sums.Load()
		now := int64(d.now())
		if version%2 != 0 || d.version.Load() != version {
			continue // the loop has gone on meanwhile
		}
		switch {
		case since == none:
		case turned != none:
			waiting += turned - since
		default:
			waiting += now - since
		}
		if calling != none {
			calls += now - calling
		}
		if summing != none {
			sums += now - summing
		}
		return telemetry.Load{Total: time.Duration(now), Waiting: time.Duration(waiting), Calls: time.Duration(calls),
			Sums: time.Duration(sums)}
	}
}
