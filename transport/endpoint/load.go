// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"sync/atomic"
	"time"

	"github.com/libra-ina/libra/telemetry"
)

// load measures a [telemetry.Load]. The goroutine reads the clock when it begins to wait, and while it waits:
// a turn that has work needs no reading.
type load struct {
	begun time.Time
	turn  time.Duration // when the current turn began, if the loop is waiting

	since   atomic.Int64 // when the loop began to wait; -1 while it works
	waiting atomic.Int64 // until since
	calls   atomic.Int64
}

func (l *load) initLoad() {
	l.begun = time.Now()
	l.since.Store(-1)
}

func (l *load) now() time.Duration { return time.Since(l.begun) }

// BeginTurn is called when a turn has received its packets, before it does anything with them.
func (l *Loop) BeginTurn() {
	if l.load.since.Load() >= 0 {
		l.load.turn = l.load.now()
	}
}

// EndTurn is called when a turn has done its work, and says whether there was any.
func (l *Loop) EndTurn(worked bool) {
	d := &l.load
	since := d.since.Load()
	switch {
	case worked && since >= 0:
		d.waiting.Add(int64(d.turn) - since)
		d.since.Store(-1)
	case !worked && since < 0:
		d.since.Store(int64(d.now()))
	}
}

// Load returns how the loop has spent its time. Any goroutine may call it, and the loop does not wait.
func (l *Loop) Load() telemetry.Load {
	d := &l.load
	for {
		since := d.since.Load()
		waiting := d.waiting.Load()
		if d.since.Load() != since {
			continue // a wait has ended meanwhile
		}
		total := d.now()
		if since >= 0 {
			waiting += int64(total) - since
		}
		return telemetry.Load{Total: total, Waiting: time.Duration(waiting), Calls: time.Duration(d.calls.Load())}
	}
}
