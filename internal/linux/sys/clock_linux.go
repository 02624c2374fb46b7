// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// KernelClock reads the clock by which BPF programs take times, CLOCK_MONOTONIC of the first time
// namespace, or returns false if it cannot.
func KernelClock() (time.Duration, bool) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0, false
	}
	return time.Duration(ts.Nano()) - namespaceOffset(), true
}

// namespaceOffset returns what the process's time namespace adds to CLOCK_MONOTONIC. A container
// that was moved from another machine has one; before Linux 5.6 nothing does.
var namespaceOffset = sync.OnceValue(func() time.Duration {
	text, err := os.ReadFile("/proc/self/timens_offsets")
	if err != nil {
		return 0
	}
	return offsetIn(string(text))
})

// offsetIn reads the offset of CLOCK_MONOTONIC in a file timens_offsets, 0 if it has none.
func offsetIn(offsets string) time.Duration {
	for line := range strings.Lines(offsets) {
		var s, ns int64
		if n, _ := fmt.Sscanf(line, "monotonic %d %d", &s, &ns); n == 2 {
			return time.Duration(s)*time.Second + time.Duration(ns)
		}
	}
	return 0
}
