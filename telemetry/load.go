// SPDX-License-Identifier: Apache-2.0

package telemetry

import "time"

// Load is how an endpoint's loop has spent its time since it was made. The rest of Total are
// frames.
type Load struct {
	Total   time.Duration
	Waiting time.Duration // for work, polling included
	Calls   time.Duration // functions that others have it run
	Sums    time.Duration // of Calls: adding the sums of harvests
}

// Frames returns the time that was spent on frames.
func (l Load) Frames() time.Duration { return max(0, l.Total-l.Waiting-l.Calls) }

// Loop is an endpoint's loop, which measures how it spends its time. Any goroutine may call Load;
// AddSums runs a function of a call that the loop is in.
type Loop interface {
	Load() Load
	AddSums(fn func())
}

// SetLoop gives a recorder the loop of its endpoint, before others have the recorder.
func (r *Recorder) SetLoop(loop Loop) {
	if r != nil {
		r.loop = loop
	}
}

// AddSums runs a function that adds the sums of a harvest, in a call of the endpoint's loop, and
// counts its time as such, if that is measured.
func (r *Recorder) AddSums(fn func()) {
	if r == nil || r.loop == nil {
		fn()
		return
	}
	r.loop.AddSums(fn)
}

// Load returns how the endpoint's loop has spent its time, and whether that is measured. No part is
// ever less than it was.
func (r *Recorder) Load() (l Load, ok bool) {
	if r == nil || r.loop == nil {
		return l, false
	}
	r.shown.Lock()
	defer r.shown.Unlock()
	r.shown.Load = r.loop.Load().after(r.shown.Load)
	return r.shown.Load, true
}

// after returns l with no part less than in an earlier load: a counter that runs backwards, by a
// nanosecond, counts from zero again for Prometheus, and the whole time since the start once more.
func (l Load) after(earlier Load) Load {
	others, frames := max(l.Calls-l.Sums, earlier.Calls-earlier.Sums), max(l.Frames(), earlier.Frames())
	l.Waiting, l.Sums = max(l.Waiting, earlier.Waiting), max(l.Sums, earlier.Sums)
	l.Calls = others + l.Sums
	l.Total = l.Waiting + l.Calls + frames
	return l
}
