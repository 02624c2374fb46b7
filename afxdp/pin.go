//go:build linux

package afxdp

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// PinThread locks the calling goroutine to its thread and, unless cpu is
// negative, the thread to that CPU. The returned function undoes both and must
// be called from the same goroutine.
//
// A thread on the CPU that handles the queue's interrupts saves cache traffic in
// copy mode; a thread on another CPU of the same socket gives more throughput in
// zero-copy mode.
func PinThread(cpu int) (unpin func() error, err error) {
	runtime.LockOSThread()
	if cpu < 0 {
		return func() error { runtime.UnlockOSThread(); return nil }, nil
	}
	var before, want unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		runtime.UnlockOSThread()
		return nil, os.NewSyscallError("sched_getaffinity", err)
	}
	want.Set(cpu)
	if err := unix.SchedSetaffinity(0, &want); err != nil {
		runtime.UnlockOSThread()
		if errors.Is(err, unix.EINVAL) {
			return nil, fmt.Errorf("%w: CPU %d is not among those that the process may use", ErrConfig, cpu)
		}
		return nil, os.NewSyscallError("sched_setaffinity", err)
	}
	return func() error {
		if err := unix.SchedSetaffinity(0, &before); err != nil {
			// Still locked: the thread ends with the goroutine instead of
			// running others on the wrong CPU.
			return os.NewSyscallError("sched_setaffinity", err)
		}
		runtime.UnlockOSThread()
		return nil
	}, nil
}
