// SPDX-License-Identifier: Apache-2.0

package sys

import "golang.org/x/sys/unix"

// yield leaves the processor to others. The scheduler of Go need not know, as the call comes back with the processor.
func yield() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
