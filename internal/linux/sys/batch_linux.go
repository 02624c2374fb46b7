// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"os"

	"golang.org/x/sys/unix"
)

// BatchProcess gives all threads of this process the policy SCHED_BATCH (sched(7)): woken, they do
// not preempt the thread that runs. Threads that the runtime starts later inherit it. A policy that
// the process was given instead of the default one is kept.
func BatchProcess() error {
	return os.NewSyscallError("sched_setattr", eachThread(func(tid int) error {
		attr, err := unix.SchedGetAttr(tid, 0)
		if err != nil || attr.Policy != unix.SCHED_NORMAL {
			return err
		}
		attr.Policy = unix.SCHED_BATCH
		return unix.SchedSetAttr(tid, attr, 0)
	}))
}
