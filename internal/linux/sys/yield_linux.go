// SPDX-License-Identifier: Apache-2.0

package sys

import "golang.org/x/sys/unix"

// yield leaves the processor to others. Go's scheduler need not know, because the call returns as
// soon as it has a processor again.
func yield() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
