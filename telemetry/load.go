// SPDX-License-Identifier: Apache-2.0

package telemetry

import "time"

// Load is how an endpoint's loop has spent its time since it was made. The rest of Total are frames.
type Load struct {
	Total   time.Duration
	Waiting time.Duration // for work, polling included
	Calls   time.Duration // functions that others have it run
	Sums    time.Duration // of Calls: adding the sums of harvests
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
	l = r.load()
	l.Sums = min(time.Duration(r.sums.Load()), l.Calls) // a call that still runs is not in Calls at each moment
	return l, true
}

// CountSums counts time that a call of the endpoint's loop has spent on adding the sums of a harvest.
func (r *Recorder) CountSums(d time.Duration) {
	if r != nil {
		r.sums.Add(int64(d))
	}
}
