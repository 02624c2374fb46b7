// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// PinThread locks the calling goroutine to its thread and, unless cpu is negative, the thread to
// that CPU. unpin undoes both; call it from the same goroutine. If unpin fails, the goroutine stays
// locked, and its thread ends with it. The error is unix.EINVAL for a CPU that the process may not
// use.
func PinThread(cpu int) (unpin func() error, err error) {
	runtime.LockOSThread()
	if cpu < 0 {
		return func() error { runtime.UnlockOSThread(); return nil }, nil
	}
	var before unix.CPUSet
	err = os.NewSyscallError("sched_getaffinity", unix.SchedGetaffinity(0, &before))
	if err == nil {
		err = PinTask(0, cpu)
	}
	if err != nil {
		runtime.UnlockOSThread()
		return nil, err
	}
	return func() error {
		if err := unix.SchedSetaffinity(0, &before); err != nil {
			return os.NewSyscallError("sched_setaffinity", err)
		}
		runtime.UnlockOSThread()
		return nil
	}, nil
}

// PinProcess moves all threads of this process to a CPU, unless cpu is negative.
// Threads that the runtime starts later inherit it.
func PinProcess(cpu int) error {
	if cpu < 0 {
		return nil
	}
	return eachThread(func(tid int) error { return PinTask(tid, cpu) })
}

// eachThread calls do for each thread of this process, until it fails.
func eachThread(do func(tid int) error) error {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	for _, task := range tasks {
		tid, err := strconv.Atoi(task.Name())
		if err == nil {
			err = do(tid)
		}
		if err != nil && !errors.Is(err, unix.ESRCH) { // the thread has ended
			return err
		}
	}
	return nil
}

// PinTask pins a thread, 0 for the calling one.
func PinTask(tid, cpu int) error {
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(tid, &set); err != nil {
		return fmt.Errorf("pin to CPU %d: %w", cpu, os.NewSyscallError("sched_setaffinity", err))
	}
	return nil
}
