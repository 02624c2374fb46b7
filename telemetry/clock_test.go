// SPDX-License-Identifier: Apache-2.0

package telemetry

import (
	"runtime"
	"testing"
	"time"

	"github.com/libra-ina/libra/internal/linux/sys"
)

// The offset comes from the pair of readings with the least time between them, so a pause in one of
// the others does not matter.
func TestOffsetIsThatOfTheClosestPair(t *testing.T) {
	const offset = time.Hour
	now, pairs := time.Duration(0), 0
	own := func() time.Duration { now += 10; return now }
	kernel := func() (time.Duration, bool) {
		pairs++
		read := now + 10 + offset
		if pairs != 5 {
			now += time.Millisecond // the process is interrupted after the reading
		}
		now += 10
		return read, true
	}
	if got := clockOffset(own, kernel); (got-offset).Abs() > 10 || pairs != clockPairs {
		t.Errorf("offset %v of %d pairs, want %v of %d", got, pairs, offset, clockPairs)
	}
	if got := clockOffset(own, func() (time.Duration, bool) { return 0, false }); got != 0 {
		t.Errorf("offset %v from a clock that cannot be read", got)
	}
}

// Go's monotonic clock is the kernel's with another start.
func TestOffsetOfThisKernel(t *testing.T) {
	start := time.Now()
	own := func() time.Duration { return time.Since(start) }
	offset := clockOffset(own, sys.KernelClock)
	if runtime.GOOS != "linux" {
		if offset != 0 {
			t.Errorf("offset %v from no clock", offset)
		}
		return
	}
	before, _ := sys.KernelClock()
	at := own() + offset
	after, _ := sys.KernelClock()
	const slack = 100 * time.Millisecond // of the offset's own readings, on a busy machine
	if at < before-slack || at > after+slack {
		t.Errorf("own clock shows %v, the kernel's %v to %v", at, before, after)
	}
}
