// SPDX-License-Identifier: Apache-2.0

package telemetry

import "time"

// Load is how an endpoint's loop has spent its time since it was made. The rest of Total are frames.
type Load struct {
	Total   time.Duration
	Waiting time.Duration // for work, polling included
	Calls   time.Duration // functions that others have it run
}

// Frames returns the time that was spent on frames.
func (l Load) Frames() time.Duration { return max(0, l.Total-l.Waiting-l.Calls) }

// SetLoad gives a recorder the load of its endpoint, before others have the recorder.
func (r *Recorder) SetLoad(load func() Load) {
	if r != nil {
		r.load = load
	}
}

// Load returns how the endpoint's loop has spent its time, and whether that is measured.
func (r *Recorder) Load() (l Load, ok bool) {
	if r == nil || r.load == nil {
		return l, false
	}
	return r.load(), true
}
