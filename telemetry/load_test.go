// SPDX-License-Identifier: Apache-2.0

package telemetry

import (
	"testing"
	"time"
)

// No part of a loop's time that a recorder shows is less than before, even if the loop takes a turn
// without work for one with work, and takes that back; and the parts are the total.
func TestLoadNeverRunsBackwards(t *testing.T) {
	const s, ns = time.Second, time.Nanosecond
	loads := []Load{
		{Total: 10 * s, Waiting: 6 * s, Calls: 3 * s, Sums: s},
		{Total: 10*s + 9*ns, Waiting: 6*s + 12*ns, Calls: 3 * s, Sums: s},     // frames
		{Total: 10*s + 20*ns, Waiting: 6*s + 11*ns, Calls: 3*s + ns, Sums: s}, // waiting
		{Total: 11 * s, Waiting: 6*s + 12*ns, Calls: 4 * s, Sums: s - ns},     // sums
		{Total: 12 * s, Waiting: 6*s + 12*ns, Calls: 4 * s, Sums: 2 * s},      // other calls
		{Total: 13 * s, Waiting: 7 * s, Calls: 4*s + 2*ns, Sums: s + 2*ns},
	}
	r := NewRecorder(1, nil, nil)
	next := 0
	r.SetLoop(loopWith(func() Load { next++; return loads[next-1] }))
	var before Load
	for i := range loads {
		now, ok := r.Load()
		if !ok || now.Waiting < before.Waiting || now.Sums < before.Sums || now.Calls-now.Sums < before.Calls-before.Sums ||
			now.Frames() < before.Frames() || now.Total != now.Waiting+now.Calls+now.Frames() {
			t.Errorf("%d: %+v after %+v", i, now, before)
		}
		before = now
	}
	if before.Waiting != 7*s || before.Sums != 2*s {
		t.Errorf("at the end %+v, want 7 s of waiting and 2 s of sums", before)
	}
}

// loopWith is a loop whose load a function returns.
type loopWith func() Load

func (l loopWith) Load() Load        { return l() }
func (l loopWith) AddSums(fn func()) { fn() }
