// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package refuse makes system calls fail, so that tests see the kernel's errors where they occur.
// It uses the kernel's filter of system calls
// (https://docs.kernel.org/userspace-api/seccomp_filter.html): the tested program is the real one,
// and the errors are the kernel's.
package refuse

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/sys"
)

// A Call is a system call that fails.
type Call struct {
	Number uintptr        // unix.SYS_...
	Args   map[int]uint32 // low halves of arguments; others may have any value
	Err    unix.Errno     // the error
}

// Run runs fn on its own thread, in the caller's network namespace, for which the kernel refuses
// the calls. The thread ends with fn.
func Run(fn func() error, calls ...Call) error {
	here, err := sys.ThreadNamespace()
	if err != nil {
		return fmt.Errorf("refuse: %w", err)
	}
	defer here.Close()
	return here.Run(func() error {
		if err := install(calls); err != nil {
			return fmt.Errorf("refuse: %w", err)
		}
		return fn()
	})
}

func install(calls []Call) error {
	filter := compile(calls)
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0)
	runtime.KeepAlive(filter)
	return os.NewSyscallError("prctl PR_SET_SECCOMP", err)
}

// Offsets in struct seccomp_data, on a little-endian machine.
const (
	numberAt = 0
	argsAt   = 16
	argSize  = 8
)

// compile returns the filter: the first call that matches the system call's number and arguments
// decides.
func compile(calls []Call) (filter []unix.SockFilter) {
	for _, c := range calls {
		left := 2*len(c.Args) + 1 // instructions of this call after the comparison
		match := func(at, value uint32) {
			filter = append(filter,
				unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at},
				unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: value, Jf: uint8(left)})
			left -= 2
		}
		match(numberAt, uint32(c.Number))
		for i, value := range c.Args {
			match(uint32(argsAt+argSize*i), value)
		}
		filter = append(filter, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(c.Err)})
	}
	return append(filter, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW})
}
