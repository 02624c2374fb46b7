// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package refuse makes system calls fail, so that tests meet the errors of the
// kernel where they happen. It uses the kernel's own filter of system calls
// (https://docs.kernel.org/userspace-api/seccomp_filter.html): what runs under it is
// the real program, and the answer is the kernel's.
package refuse

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/sys"
)

// A Call is a system call that fails.
type Call struct {
	Number uintptr        // unix.SYS_...
	Args   map[int]uint32 // what the low halves of arguments are; others are any
	Err    unix.Errno     // how it fails
}

// Run runs fn on a thread of its own, which is in the caller's network namespace, and
// to which the kernel refuses the calls. The thread ends with fn.
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

// Where things are in struct seccomp_data, on a little-endian machine.
const (
	numberAt = 0
	argsAt   = 16
	argSize  = 8
)

// compile writes the filter: the first call whose number and arguments are those of
// the system call decides.
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
