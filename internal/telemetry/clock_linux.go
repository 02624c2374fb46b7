// SPDX-License-Identifier: Apache-2.0

package telemetry

import (
	"time"

	"golang.org/x/sys/unix"
)

// kernelClock reads CLOCK_MONOTONIC, by which the kernel stamps packets.
func kernelClock() (time.Duration, bool) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0, false
	}
	return time.Duration(ts.Nano()), true
}
