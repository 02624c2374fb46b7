// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The clock is that of bpf_ktime_get_ns, with which times of programs are compared.
func TestKernelClock(t *testing.T) {
	monotonic := func() time.Duration {
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
			t.Fatal(err)
		}
		return time.Duration(ts.Sec)*time.Second + time.Duration(ts.Nsec)
	}
	before := monotonic()
	got, ok := KernelClock()
	if after := monotonic(); !ok || got < before || got > after {
		t.Errorf("%v, %v; want a time from %v to %v", got, ok, before, after)
	}
}
