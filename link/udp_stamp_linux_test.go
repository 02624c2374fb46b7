// SPDX-License-Identifier: Apache-2.0

package link

import (
	"testing"
	"testing/synctest"
	"time"
)

// A thread that is put off while it compares the clocks, before or after it has read the kernel's,
// does not move the times of arrival; if it is each time, by half of the least time at most.
func TestClocksAreComparedWithoutDelays(t *testing.T) {
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		before, after []time.Duration // of each comparison
		wrong         time.Duration
	}{
		"never":            {wrong: 0},
		"before":           {before: []time.Duration{3 * ms}},
		"after":            {after: []time.Duration{3 * ms, 7 * ms}},
		"before and after": {before: []time.Duration{3 * ms}, after: []time.Duration{0, 5 * ms}},
		"each time": {before: []time.Duration{9 * ms, 8 * ms, 7 * ms, 9 * ms}, after: []time.Duration{0, 0, 2 * ms, 0},
			wrong: 4 * ms},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				started, n := time.Now(), 0
				put := func(off []time.Duration) {
					if n < len(off) {
						time.Sleep(off[n])
					}
				}
				between, ok := wallToKernel(func() (time.Duration, bool) {
					put(c.before)
					now := time.Since(started)
					put(c.after)
					n++
					return now, true
				})
				wrong := between + time.Duration(started.UnixNano())
				if !ok || wrong.Abs() != c.wrong {
					t.Errorf("wrong by %v, want %v; %v", wrong, c.wrong, ok)
				}
			})
		})
	}
	if _, ok := wallToKernel(func() (time.Duration, bool) { return 0, false }); ok {
		t.Error("compared with no clock")
	}
}
