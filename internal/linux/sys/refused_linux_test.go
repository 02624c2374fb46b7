// SPDX-License-Identifier: Apache-2.0

package sys_test

import (
	"errors"
	"os"
	"runtime/debug"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/sys"
	"github.com/libra-ina/libra/internal/test/refuse"
)

// Each system call may fail. Then the error names it, and no descriptor stays open.
func TestCallsMeetErrors(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("refusing system calls needs root")
	}
	other, err := sys.NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	result := func(_ any, err error) error { return err }
	openAttr := func() error { return result(sys.OpenAttr("lo", "mtu", unix.O_RDONLY)) }
	usage := func() error { return result(sys.OwnUsage()) }
	shared := func() error { return result(sys.NewShared("test", 4096)) }
	pin := func() error { return result(sys.PinThread(0)) }
	unpin := func() error {
		unpin, err := sys.PinThread(-1)
		if err != nil {
			return err
		}
		return unpin()
	}
	called := func() error { return errors.New("the function is called") }
	for name, c := range map[string]struct {
		fn     func() error
		number uintptr
		words  string
	}{
		"attribute: fsopen":      {openAttr, unix.SYS_FSOPEN, "sysfs of this network namespace: fsopen: "},
		"attribute: fsconfig":    {openAttr, unix.SYS_FSCONFIG, "sysfs of this network namespace: fsconfig: "},
		"attribute: fsmount":     {openAttr, unix.SYS_FSMOUNT, "sysfs of this network namespace: fsmount: "},
		"attribute: open":        {openAttr, unix.SYS_OPENAT, "open sysfs:class/net/lo/mtu: "},
		"attribute: read":        {func() error { return result(sys.ReadAttr("lo", "mtu")) }, unix.SYS_READ, "read sysfs:class/net/lo/mtu: "},
		"attribute: not read":    {func() error { return result(sys.ReadAttr("lo", "mtu")) }, unix.SYS_FSOPEN, "fsopen: "},
		"attribute: write":       {func() error { return sys.WriteAttr("lo", "mtu", "65536") }, unix.SYS_WRITE, "write sysfs:class/net/lo/mtu: "},
		"attribute: not written": {func() error { return sys.WriteAttr("lo", "mtu", "65536") }, unix.SYS_FSOPEN, "fsopen: "},
		"capabilities":           {func() error { return result(sys.MissingCapabilities(sys.CapBPF)) }, unix.SYS_CAPGET, "capget: "},
		"usage":                  {usage, unix.SYS_GETRUSAGE, "getrusage: "},
		"shared memory":          {shared, unix.SYS_MEMFD_CREATE, "shared memory: memfd_create: "},
		"shared memory: size":    {shared, unix.SYS_FTRUNCATE, "size shared memory: "},
		"namespace: open":        {func() error { return result(sys.ThreadNamespace()) }, unix.SYS_OPENAT, "network namespace: open /proc/thread-self/ns/net: "},
		"namespace: identify":    {func() error { return result(sys.ThreadNamespace()) }, unix.SYS_FSTAT, "network namespace: fstat: "},
		"namespace: make":        {func() error { return result(sys.NewNamespace()) }, unix.SYS_UNSHARE, "make a network namespace: unshare: "},
		"namespace: none":        {func() error { return result(sys.NewNamespace()) }, unix.SYS_OPENAT, "network namespace: open "},
		"namespace: Do":          {func() error { return other.Do(called) }, unix.SYS_SETNS, "enter the network namespace: setns: "},
		"namespace: Do, none":    {func() error { return other.Do(called) }, unix.SYS_OPENAT, "network namespace: open "},
		"pin: before":            {pin, unix.SYS_SCHED_GETAFFINITY, "sched_getaffinity: "},
		"pin":                    {pin, unix.SYS_SCHED_SETAFFINITY, "pin to CPU 0: sched_setaffinity: "},
		"pin to none":            {unpin, unix.SYS_SCHED_SETAFFINITY, ""},
		"pin process":            {func() error { return sys.PinProcess(0) }, unix.SYS_SCHED_SETAFFINITY, "pin to CPU 0: sched_setaffinity: "},
		"pin process: threads":   {func() error { return sys.PinProcess(0) }, unix.SYS_OPENAT, "open /proc/self/task: "},
		"waker":                  {func() error { return new(sys.Waker).Open() }, unix.SYS_EVENTFD2, "eventfd"},
	} {
		before := refuse.CountDescriptors(t)
		err := refuse.Run(c.fn, refuse.Call{Number: c.number, Err: unix.EDOM})
		if errors.Is(err, unix.EDOM) != (c.words != "") || err != nil && !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: error %v, want %q and EDOM", name, err, c.words)
		}
		if now := refuse.CountDescriptors(t); now != before {
			t.Errorf("%s: %d descriptors are open, %d before", name, now, before)
		}
	}
	// A thread that has ended in the meantime is not an error.
	err = refuse.Run(func() error { return sys.PinProcess(0) }, refuse.Call{Number: unix.SYS_SCHED_SETAFFINITY, Err: unix.ESRCH})
	if err != nil {
		t.Errorf("threads that have ended: %v", err)
	}
	mmap := refuse.Call{Number: unix.SYS_MMAP, Args: map[int]uint32{3: unix.MAP_SHARED | unix.MAP_POPULATE}, Err: unix.EDOM}
	before := refuse.CountDescriptors(t)
	if err := refuse.Run(shared, mmap); !errors.Is(err, unix.EDOM) || !strings.Contains(err.Error(), "map shared memory: mmap: ") {
		t.Errorf("memory that cannot be mapped: %v", err)
	}
	if now := refuse.CountDescriptors(t); now != before {
		t.Errorf("%d descriptors are open, %d before", now, before)
	}
	identify := refuse.Call{Number: unix.SYS_NEWFSTATAT, Err: unix.EDOM}
	err = refuse.Run(func() error { return result(sys.ThreadNamespaceID()) }, identify)
	if !errors.Is(err, unix.EDOM) || !strings.Contains(err.Error(), "network namespace: stat /proc/thread-self/ns/net: ") {
		t.Errorf("a namespace that cannot be looked at: %v", err)
	}
}

// isLocked reports whether the calling goroutine is locked to its thread, from its header in a
// trace.
func isLocked() bool {
	header, _, _ := strings.Cut(string(debug.Stack()), "\n")
	return strings.Contains(header, "locked to thread")
}

// A goroutine unlocks its thread, even after an error: otherwise the thread would end with the
// goroutine.
func TestThreadsAreGivenBack(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	other, err := sys.NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		t.Fatal(err)
	}
	cpu := 0
	for !set.IsSet(cpu) {
		cpu++
	}
	for _, c := range []int{cpu, -1, 1000} {
		unpin, err := sys.PinThread(c)
		if err == nil {
			if !isLocked() {
				t.Errorf("pinned to %d, but to no thread", c)
			}
			err = unpin()
		}
		if isLocked() || (err == nil) != (c != 1000) {
			t.Errorf("after PinThread(%d): locked %v, %v", c, isLocked(), err)
		}
	}
	refuse.Exhaust(t, "network namespace: ", func() (func() error, error) {
		made, err := sys.NewNamespace()
		if err == nil {
			err = other.Do(func() error { return nil })
		}
		if isLocked() {
			t.Error("locked after", err)
		}
		if err != nil && made != nil {
			return nil, errors.Join(err, made.Close())
		}
		return made.Close, err
	})
}
