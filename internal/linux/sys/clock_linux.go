// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"time"

	"golang.org/x/sys/unix"
)

// KernelClock reads CLOCK_MONOTONIC, by which BPF programs take times, or returns false if it
// cannot.
func KernelClock() (time.Duration, bool) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0, false
	}
	return time.Duration(ts.Nano()), true
}
