// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"errors"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
}

func newNamespace(t *testing.T) *Namespace {
	t.Helper()
	needRoot(t)
	n, err := NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	return n
}

func here(t *testing.T) NamespaceID {
	t.Helper()
	id, err := ThreadNamespaceID()
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// TestDoComesBack nests namespaces, and leaves them by an error, a panic and
// runtime.Goexit.
func TestDoComesBack(t *testing.T) {
	one, two := newNamespace(t), newNamespace(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home := here(t)
	if one.ID() == two.ID() || one.ID() == home {
		t.Fatalf("namespaces %v, %v; home %v", one.ID(), two.ID(), home)
	}
	failure := errors.New("failure")
	err := one.Do(func() error {
		if got := here(t); got != one.ID() {
			t.Errorf("in %v, want %v", got, one.ID())
		}
		if links, err := net.Interfaces(); err != nil || len(links) != 1 {
			t.Errorf("interfaces of a new namespace: %v, %v", links, err)
		}
		err := two.Do(func() error {
			if got := here(t); got != two.ID() {
				t.Errorf("in %v, want %v", got, two.ID())
			}
			return failure
		})
		if got := here(t); got != one.ID() {
			t.Errorf("back in %v, want %v", got, one.ID())
		}
		return err
	})
	if !errors.Is(err, failure) || here(t) != home {
		t.Errorf("error %v; in %v, home is %v", err, here(t), home)
	}
	func() {
		defer func() { _ = recover() }()
		_ = one.Do(func() error { panic("in another namespace") })
	}()
	if here(t) != home {
		t.Error("a panic does not come back")
	}
	ended := make(chan NamespaceID)
	go func() {
		runtime.LockOSThread()
		defer func() { ended <- here(t) }()
		_ = one.Do(func() error { runtime.Goexit(); return nil })
	}()
	if got := <-ended; got != home {
		t.Error("Goexit does not come back")
	}
	if got, err := OpenNamespace("/proc/self/task/" + strconv.Itoa(unix.Gettid())); err != nil || got.ID() != home || got.Close() != nil {
		t.Errorf("own namespace: %v, %v", got, err)
	}
	if _, err := OpenNamespace("/proc/none"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no such process: %v", err)
	}
}

// dropCapabilities makes the calling thread, which must not be used again, a thread of an ordinary
// user.
func dropCapabilities(t *testing.T) {
	t.Helper()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if err := unix.Capset(&header, &none[0]); err != nil {
		t.Error(err)
	}
}

// eventLimit bounds the wait for an event that a test expects, on a machine that is busy with
// other programs, too.
const eventLimit = 2 * time.Minute

// waitThreadGone waits until a thread has ended.
func waitThreadGone(t *testing.T, tid int) {
	t.Helper()
	for deadline := time.Now().Add(eventLimit); ; time.Sleep(time.Millisecond) {
		if _, err := os.Stat("/proc/self/task/" + strconv.Itoa(tid)); errors.Is(err, os.ErrNotExist) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("thread %d has not ended", tid)
		}
	}
}

// A thread that cannot return from a namespace ends with its goroutine.
func TestThreadThatCannotReturnEnds(t *testing.T) {
	n := newNamespace(t)
	var tid int
	var err error
	failure := errors.New("failure")
	_ = OwnThread(func() error {
		err = n.Do(func() error { tid = unix.Gettid(); dropCapabilities(t); return failure })
		runtime.UnlockOSThread() // OwnThread's lock: Do's remains
		return nil
	})
	if !errors.Is(err, unix.EPERM) || !errors.Is(err, failure) {
		t.Errorf("error %v, want fn's and EPERM", err)
	}
	waitThreadGone(t, tid)
}

// Without the capability, Do does not call fn, unless the thread is already in the namespace, and
// the thread stays usable.
func TestDoWithoutPrivileges(t *testing.T) {
	n := newNamespace(t)
	own, err := ThreadNamespace()
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	_ = OwnThread(func() error {
		home := here(t)
		dropCapabilities(t)
		if err := n.Do(func() error { t.Error("called"); return nil }); !errors.Is(err, unix.EPERM) {
			t.Errorf("Do: %v", err)
		}
		called := false
		if err := own.Do(func() error { called = true; return nil }); err != nil || !called {
			t.Errorf("in the own namespace: called %v, %v", called, err)
		}
		if _, err := NewNamespace(); !errors.Is(err, unix.EPERM) {
			t.Errorf("NewNamespace: %v", err)
		}
		if here(t) != home {
			t.Error("in another namespace")
		}
		return nil
	})
}

// TestRunEndsTheThread uses more threads at once than the process has, so that its first one would
// be among them. That one cannot end, and would show its namespace as that of the process.
func TestRunEndsTheThread(t *testing.T) {
	n := newNamespace(t)
	failure := errors.New("failure")
	var tids [100]int
	var there, ended sync.WaitGroup
	there.Add(len(tids))
	for i := range tids {
		ended.Go(func() {
			err := n.Run(func() error {
				tids[i] = unix.Gettid()
				if here(t) != n.ID() {
					t.Errorf("in %v, want %v", here(t), n.ID())
				}
				there.Done()
				there.Wait()
				return failure
			})
			if !errors.Is(err, failure) {
				t.Error(err)
			}
		})
	}
	ended.Wait()
	for _, tid := range tids {
		waitThreadGone(t, tid)
	}
}

func affinity(t *testing.T) (set unix.CPUSet) {
	t.Helper()
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		t.Fatal(err)
	}
	return set
}

func TestPinThread(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := affinity(t)
	cpu := 0
	for !before.IsSet(cpu) {
		cpu++
	}
	for _, c := range []int{cpu, -1} {
		unpin, err := PinThread(c)
		if err != nil {
			t.Fatal(err)
		}
		if got := affinity(t); c >= 0 && (got.Count() != 1 || !got.IsSet(c)) || c < 0 && got != before {
			t.Errorf("PinThread(%d): affinity %v", c, got)
		}
		if err := unpin(); err != nil || affinity(t) != before {
			t.Errorf("unpin: %v, %v", affinity(t), err)
		}
	}
	if _, err := PinThread(1000); !errors.Is(err, unix.EINVAL) || affinity(t) != before {
		t.Errorf("a CPU that is not there: %v", err)
	}
}

// threads calls each with the threads of this process.
func threads(t *testing.T, each func(tid int) error) (seen int) {
	t.Helper()
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		tid, err := strconv.Atoi(task.Name())
		if err == nil {
			err = each(tid)
		}
		if err == nil {
			seen++
		} else if !errors.Is(err, unix.ESRCH) {
			t.Fatal(err)
		}
	}
	return seen
}

// BatchProcess changes the policy of running threads, and keeps any other than the default one.
func TestBatchProcess(t *testing.T) {
	policies := func(from, to uint32) func(tid int) error {
		return func(tid int) error {
			attr, err := unix.SchedGetAttr(tid, 0)
			if err != nil || attr.Policy != from {
				return err
			}
			attr.Policy = to
			return unix.SchedSetAttr(tid, attr, 0)
		}
	}
	defer func() {
		for range 2 { // again, for threads that were started in the meantime
			threads(t, policies(unix.SCHED_BATCH, unix.SCHED_NORMAL))
		}
	}()
	found, end := make(chan int), make(chan struct{})
	defer close(end)
	go func() {
		runtime.LockOSThread() // a thread that stays idle without privileges ends with the goroutine
		found <- unix.Gettid()
		<-end
		if policies(unix.SCHED_IDLE, unix.SCHED_NORMAL)(0) == nil {
			runtime.UnlockOSThread()
		}
	}()
	idle := <-found
	if err := policies(unix.SCHED_NORMAL, unix.SCHED_IDLE)(idle); err != nil {
		t.Fatal(err)
	}
	if err := BatchProcess(); err != nil {
		t.Fatal(err)
	}
	seen := threads(t, func(tid int) error {
		attr, err := unix.SchedGetAttr(tid, 0)
		if err == nil && (attr.Policy == unix.SCHED_NORMAL || tid == idle && attr.Policy != unix.SCHED_IDLE) {
			t.Errorf("thread %d has policy %d, idle was thread %d", tid, attr.Policy, idle)
		}
		return err
	})
	if seen < 2 {
		t.Errorf("%d threads were looked at", seen)
	}
}

// PinProcess moves running threads.
func TestPinProcess(t *testing.T) {
	before := affinity(t)
	defer func() {
		for range 2 { // again, for threads that were started in the meantime
			threads(t, func(tid int) error { return unix.SchedSetaffinity(tid, &before) })
		}
	}()
	last := -1
	for cpu := range 1024 {
		if before.IsSet(cpu) {
			last = cpu
		}
	}
	if err := PinProcess(-1); err != nil || affinity(t) != before {
		t.Errorf("PinProcess(-1): %v, %v", affinity(t), err)
	}
	if err := PinProcess(1000); !errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), "pin to CPU 1000: ") {
		t.Errorf("a CPU that is not there: %v", err)
	}
	if err := PinProcess(last); err != nil {
		t.Fatal(err)
	}
	seen := threads(t, func(tid int) error {
		var set unix.CPUSet
		err := unix.SchedGetaffinity(tid, &set)
		if err == nil && (set.Count() != 1 || !set.IsSet(last)) {
			t.Errorf("thread %d may run on %d CPUs", tid, set.Count())
		}
		return err
	})
	if seen < 2 {
		t.Errorf("%d threads were looked at", seen)
	}
}

// TestOwnThreadTakesOneGoroutine uses more threads at once than the process has, so that its first
// one is among those found. The goroutine that found it must end: otherwise a count of goroutines
// would grow each time.
func TestOwnThreadTakesOneGoroutine(t *testing.T) {
	const threads = 100
	before := runtime.NumGoroutine()
	var there, ended sync.WaitGroup
	there.Add(threads)
	leave := make(chan struct{})
	for range threads {
		ended.Go(func() {
			_ = OwnThread(func() error { there.Done(); <-leave; return nil })
		})
	}
	there.Wait()
	want := before + 2*threads // a caller and its thread's goroutine
	for deadline := time.Now().Add(eventLimit); runtime.NumGoroutine() > want; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Errorf("%d goroutines, want %d", runtime.NumGoroutine(), want)
			break
		}
	}
	close(leave)
	ended.Wait()
}

func TestMissingCapabilities(t *testing.T) {
	needRoot(t)
	want := []Capability{CapBPF, CapNetAdmin, CapPerfmon, CapSysAdmin}
	_ = OwnThread(func() error {
		if got, err := MissingCapabilities(want...); len(got) != 0 || err != nil {
			t.Errorf("root lacks %v, %v", got, err)
		}
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var some [2]unix.CapUserData
		some[1].Permitted, some[1].Effective = 1<<(CapBPF%32), 1<<(CapBPF%32)
		if err := unix.Capset(&header, &some[0]); err != nil {
			t.Error(err)
		}
		got, err := MissingCapabilities(want...)
		if err != nil || len(got) != 3 || got[0] != "CAP_NET_ADMIN" || got[1] != "CAP_PERFMON" || got[2] != "CAP_SYS_ADMIN" {
			t.Errorf("missing %v, %v", got, err)
		}
		return nil
	})
}
