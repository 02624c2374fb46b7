// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Usage is CPU time in nanoseconds.
type Usage struct {
	User, Kernel uint64
}

// Since returns the usage since an earlier one.
func (u Usage) Since(before Usage) Usage {
	return Usage{User: u.User - before.User, Kernel: u.Kernel - before.Kernel}
}

// OwnUsage returns the CPU time of the calling process.
func OwnUsage() (Usage, error) {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		return Usage{}, os.NewSyscallError("getrusage", err)
	}
	return Usage{User: uint64(r.Utime.Nano()), Kernel: uint64(r.Stime.Nano())}, nil
}

// TaskTime returns the CPU time of a task in nanoseconds.
func TaskTime(pid int) (uint64, error) {
	return schedTime(fmt.Sprintf("/proc/%d/schedstat", pid))
}

func schedTime(path string) (uint64, error) {
	line, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("read CPU time: %w", err)
	}
	first, _, _ := strings.Cut(string(line), " ")
	ns, err := strconv.ParseUint(first, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read CPU time: %s: %w", path, err)
	}
	return ns, nil
}

// SoftirqTime returns the CPU time of the ksoftirqd threads in nanoseconds.
func SoftirqTime() (total uint64, err error) { return softirqTime("/proc") }

func softirqTime(proc string) (total uint64, err error) {
	names, _ := filepath.Glob(proc + "/[0-9]*/comm") // fails only for bad patterns
	for _, name := range names {
		comm, err := os.ReadFile(name)
		if err != nil || !strings.HasPrefix(string(comm), "ksoftirqd/") {
			continue // another thread, or an ended one
		}
		ns, err := schedTime(filepath.Join(filepath.Dir(name), "schedstat"))
		if err != nil {
			return 0, err
		}
		total += ns
	}
	return total, nil
}

// tick is the unit of CPU times in /proc/<pid>/stat, USER_HZ, which is 100 on
// every architecture that Go runs on.
const tick = uint64(10 * time.Millisecond)

// ProcessUsage returns the CPU time of another process, in steps of 10 ms.
func ProcessUsage(pid int) (Usage, error) {
	return statUsage(fmt.Sprintf("/proc/%d/stat", pid))
}

func statUsage(path string) (Usage, error) {
	const utime, stime = 14 - 3, 15 - 3 // field numbers of proc(5)
	fields, err := StatFields(path)
	if err != nil {
		return Usage{}, fmt.Errorf("read CPU time: %w", err)
	}
	if len(fields) <= stime {
		return Usage{}, fmt.Errorf("read CPU time: %s has %d fields", path, len(fields))
	}
	user, err1 := strconv.ParseUint(fields[utime], 10, 64)
	kernel, err2 := strconv.ParseUint(fields[stime], 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		return Usage{}, fmt.Errorf("read CPU time: %s: %w", path, err)
	}
	return Usage{User: user * tick, Kernel: kernel * tick}, nil
}

// StatFields returns the fields of a stat file of proc(5) from the third, the state, on. The second
// is a name in parentheses, which may contain blanks and parentheses.
func StatFields(path string) ([]string, error) {
	text, err := os.ReadFile(path)
	return strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:])), err
}
