package harness

import (
	"context"
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

// Since returns the usage after an earlier one.
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
	path := fmt.Sprintf("/proc/%d/schedstat", pid)
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
func SoftirqTime() (total uint64, err error) {
	names, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		comm, err := os.ReadFile(name)
		if err != nil || !strings.HasPrefix(string(comm), "ksoftirqd/") {
			continue // another thread, or one that has ended
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if err != nil {
			return 0, err
		}
		ns, err := TaskTime(pid)
		if err != nil {
			return 0, err
		}
		total += ns
	}
	return total, nil
}

// stallLimit is how much longer than asked for a measurement takes if nothing
// moves: on a busy machine, a program may not even have run.
const stallLimit = 5 * time.Second

// Window reads counters at the beginning and at the end of a measurement of at
// least d, which lasts until something has moved.
func Window[R any](ctx context.Context, d time.Duration, read func() (R, error), moved func(before, after R) bool) (before, after R, err error) {
	start := time.Now()
	if before, err = read(); err != nil {
		return before, after, err
	}
	for {
		if err = Sleep(ctx, d); err != nil {
			return before, after, err
		}
		if after, err = read(); err != nil || moved(before, after) {
			return before, after, err
		}
		if took := time.Since(start); took > d+stallLimit {
			return before, after, fmt.Errorf("nothing moved within %v", took.Round(time.Millisecond))
		}
	}
}
