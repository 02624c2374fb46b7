// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// threadTime is the CPU time of the calling thread by the kernel's thread clock.
func threadTime(t *testing.T) uint64 {
	t.Helper()
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		t.Fatal(err)
	}
	return uint64(ts.Nano())
}

// work makes the calling thread compute for some CPU time, hardly any of it in the kernel.
func work(t *testing.T, d time.Duration) {
	t.Helper()
	x := uint32(1)
	for start := threadTime(t); threadTime(t)-start < uint64(d); {
		for range 1_000_000 {
			x = x*1664525 + 1013904223
		}
	}
	if x == 0 {
		t.Log("the numbers came to zero")
	}
}

// The kernel's different clocks for CPU time agree with each other.
func TestCPUTime(t *testing.T) {
	err := OwnThread(func() error {
		work(t, 200*time.Millisecond)
		before, err := OwnUsage()
		if err != nil {
			return err
		}
		process, err := ProcessUsage(os.Getpid())
		if err != nil {
			return err
		}
		after, err := OwnUsage()
		if err != nil {
			return err
		}
		if process.User+tick < before.User || process.User > after.User || process.Kernel+tick < before.Kernel || process.Kernel > after.Kernel {
			t.Errorf("the process used %+v, and by its own clock %+v before and %+v after", process, before, after)
		}
		if process.User < uint64(100*time.Millisecond) {
			t.Errorf("200 ms of work are %+v", process)
		}
		first := threadTime(t)
		task, err := TaskTime(unix.Gettid())
		// The scheduler's account may be a few ticks old.
		if task < first/2 || task > threadTime(t) {
			t.Errorf("the thread used %d ns, and by its own clock %d", task, first)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := TaskTime(1 << 30); err == nil || !strings.HasPrefix(err.Error(), "read CPU time: open /proc/1073741824/schedstat: ") {
		t.Errorf("a task that is not there: %v", err)
	}
	if _, err := ProcessUsage(1 << 30); err == nil || !strings.HasPrefix(err.Error(), "read CPU time: open /proc/1073741824/stat: ") {
		t.Errorf("a process that is not there: %v", err)
	}
}

func TestUsageSince(t *testing.T) {
	if got, want := (Usage{User: 50, Kernel: 7}).Since(Usage{User: 20, Kernel: 3}), (Usage{User: 30, Kernel: 4}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// All threads of that name count, and no others.
func TestSoftirqTime(t *testing.T) {
	sum := func() (total uint64) {
		stats, err := filepath.Glob("/proc/[0-9]*/stat")
		if err != nil {
			t.Fatal(err)
		}
		for _, stat := range stats {
			text, err := os.ReadFile(stat)
			if err != nil || !strings.Contains(string(text), " (ksoftirqd/") {
				continue
			}
			var ns uint64
			text, err = os.ReadFile(filepath.Join(filepath.Dir(stat), "schedstat"))
			if err == nil {
				_, err = fmt.Sscan(string(text), &ns)
			}
			if err != nil {
				t.Fatal(err)
			}
			total += ns
		}
		return total
	}
	before := sum()
	got, err := SoftirqTime()
	if after := sum(); got < before || got > after || err != nil {
		t.Errorf("%d ns, %v; the threads have used %d before and %d after", got, err, before, after)
	}
}

// A thread that ends in between is an error: the sum would decrease.
func TestSoftirqTimeOfThreads(t *testing.T) {
	proc := t.TempDir()
	put := func(pid, name, text string) {
		t.Helper()
		dir := filepath.Join(proc, pid)
		if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range []struct{ pid, comm, times string }{
		{"14", "ksoftirqd/0\n", "1000 7 7\n"}, {"22", "ksoftirqd/1\n", "200 7 7\n"}, {"15", "rcu_sched\n", "30 7 7\n"}, {"self", "ksoftirqd/0\n", "4 7 7\n"},
	} {
		put(p.pid, "comm", p.comm)
		put(p.pid, "schedstat", p.times)
	}
	if err := os.MkdirAll(filepath.Join(proc, "16", "comm"), 0o700); err != nil { // cannot be read
		t.Fatal(err)
	}
	if got, err := softirqTime(proc); got != 1200 || err != nil {
		t.Errorf("%d ns, %v, want 1200", got, err)
	}
	put("23", "comm", "ksoftirqd/2\n")
	if got, err := softirqTime(proc); got != 0 || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("one has no times: %d ns, %v", got, err)
	}
}

func TestStatFiles(t *testing.T) {
	file := func(text string) string {
		path := filepath.Join(t.TempDir(), "stat")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	if got, err := StatFields(file("12 (a b) S) R 1 2\n")); err != nil || !slices.Equal(got, []string{"R", "1", "2"}) {
		t.Errorf("fields %q, %v", got, err)
	}
	const ten = "12 (a) S 1 1 1 1 1 1 1 1 1 1" // fields 3 to 13
	if got, err := statUsage(file(ten + " 5 7")); err != nil || got != (Usage{User: 50e6, Kernel: 70e6}) {
		t.Errorf("5 and 7 ticks are %+v, %v", got, err)
	}
	for text, words := range map[string]string{
		ten + " 5":         " has 12 fields",
		"":                 " has 0 fields",
		ten + " five 7":    "\"five\"",
		ten + " 5 seven":   "\"seven\"",
		ten + " five -7 1": "\"-7\"",
	} {
		if got, err := statUsage(file(text)); err == nil || !strings.HasPrefix(err.Error(), "read CPU time: ") || !strings.Contains(err.Error(), words) || got != (Usage{}) {
			t.Errorf("%q: %+v, %v, want %q", text, got, err, words)
		}
	}
	if got, err := schedTime(file("123456789 5 6\n")); got != 123456789 || err != nil {
		t.Errorf("%d ns, %v", got, err)
	}
	path := file("none 5 6\n")
	if got, err := schedTime(path); got != 0 || err == nil || !strings.HasPrefix(err.Error(), "read CPU time: "+path+": ") {
		t.Errorf("%d ns, %v", got, err)
	}
}
