// SPDX-License-Identifier: Apache-2.0

package telemetry

import "time"

// clockPairs is how often the two clocks are read at the start. The pair with the least time
// between its readings has the least error.
const clockPairs = 16

// clockOffset returns what has to be added to an endpoint's clock for the kernel's CLOCK_MONOTONIC,
// 0 if that cannot be read. Go's monotonic clock is the same one with another start, so the offset
// lasts.
func clockOffset(own func() time.Duration, kernel func() (time.Duration, bool)) (offset time.Duration) {
	least := time.Duration(1<<63 - 1)
	for range clockPairs {
		before := own()
		k, ok := kernel()
		if !ok {
			return 0
		}
		if d := own() - before; d < least {
			least, offset = d, k-before-d/2
		}
	}
	return offset
}
