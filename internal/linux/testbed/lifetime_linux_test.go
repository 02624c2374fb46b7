// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestCloseLeavesNothing(t *testing.T) {
	requirePrivileges(t)
	before := machineLinks(t)
	watcher := newObserver(t)
	bed, err := New(t.Context(), Config{Hosts: 3, Queues: 2, ThreadedNAPI: true, StaticARP: true})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, machineLinks(t)); diff != "" {
		t.Errorf("the bed shows in the machine's own namespace (-before +now):\n%s", diff)
	}
	for _, n := range bed.nodes() {
		watcher.watch(t, n.ns.FD())
	}
	if got := watcher.living(t); got != 4 {
		t.Fatalf("%d namespaces are numbered, want 4", got)
	}
	child := self("sleep")
	startLine(t, child, bed.Host(1).Start)

	if err := bed.Close(); err != nil {
		t.Fatal(err)
	}
	if err := child.Wait(); child.ProcessState == nil || child.ProcessState.Success() {
		t.Errorf("the child ended with %v, want it killed", err)
	}
	watcher.waitNone(t)

	if err := bed.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
	if err := bed.Switch().Do(func() error { return nil }); !errors.Is(err, ErrClosed) {
		t.Errorf("Do after Close: %v, want ErrClosed", err)
	}
	if err := bed.Host(0).Start(self("sleep")); !errors.Is(err, ErrClosed) {
		t.Errorf("Start after Close: %v, want ErrClosed", err)
	}
}

// A killed process that built a bed leaves no namespace (and so no interface) and no child.
func TestKilledBuilderLeavesNothing(t *testing.T) {
	requirePrivileges(t)
	watcher := newObserver(t)
	builder := self("build")
	out, err := builder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	builder.Stderr = os.Stderr
	if err := builder.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	var children []unix.PollFd
	for range 2 {
		pid, err := strconv.Atoi(readLine(t, lines))
		if err != nil {
			t.Fatalf("builder: %v, %v", err, builder.Wait())
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		children = append(children, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
	if got := watchNamespaces(t, watcher, builder.Process.Pid); got != 3 {
		t.Errorf("the builder holds %d namespaces, want 3", got)
	}

	if err := builder.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = builder.Wait()
	for i := range children {
		if n, err := unix.Poll(children[i:i+1], 20_000); n != 1 {
			t.Errorf("child %d still runs (poll: %d, %v)", i, n, err)
		}
	}
	watcher.waitNone(t)
}

// watchNamespaces watches the network namespaces that a process has
// descriptors of, and counts them.
func watchNamespaces(t *testing.T, o *observer, pid int) int {
	t.Helper()
	paths, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, path := range paths {
		target, err := os.Readlink(path)
		if err != nil || !strings.HasPrefix(target, "net:[") {
			continue
		}
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		o.watch(t, int(f.Fd()))
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		count++
	}
	return count
}

func TestStartRunsInTheNamespace(t *testing.T) {
	bed := newBed(t, Config{})
	for _, n := range bed.nodes() {
		var st unix.Stat_t
		if err := unix.Fstat(n.ns.FD(), &st); err != nil {
			t.Fatal(err)
		}
		cmd := self("sleep")
		if got, want := startLine(t, cmd, n.Start), fmt.Sprintf("net:[%d]", st.Ino); got != want {
			t.Errorf("%s: child is in %s, want %s", n.Name, got, want)
		}
	}
	missing := self("sleep")
	missing.Path = "/nonexistent/libra"
	if err := bed.Host(0).Start(missing); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "host0") {
		t.Errorf("got %v, want ErrNotExist that names the host", err)
	}
}

func TestDoComesBack(t *testing.T) {
	bed := newBed(t, Config{})
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	here := func() string {
		ns, err := os.Readlink("/proc/thread-self/ns/net")
		if err != nil {
			t.Fatal(err)
		}
		return ns
	}
	home := here()
	failure := errors.New("failure")
	var outer, inner, back string
	err := bed.Host(0).Do(func() error {
		outer = here()
		err := bed.Host(1).Do(func() error { inner = here(); return failure })
		back = here()
		return err
	})
	if !errors.Is(err, failure) {
		t.Errorf("got %v, want fn's error", err)
	}
	if outer == home || inner == home || outer == inner || back != outer {
		t.Errorf("home %s, host0 %s, host1 %s, host0 again %s", home, outer, inner, back)
	}
	func() {
		defer func() { _ = recover() }()
		_ = bed.Host(0).Do(func() error { panic("in another namespace") })
	}()
	if here() != home {
		t.Errorf("after a panic the thread is in %s, want %s", here(), home)
	}
}

func TestCancelledNew(t *testing.T) {
	requirePrivileges(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if bed, err := New(ctx, Config{}); !errors.Is(err, context.Canceled) || bed != nil {
		t.Errorf("got %v, %v, want context.Canceled", bed, err)
	}
}

func TestMissingCapabilities(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var had [2]unix.CapUserData
	if err := unix.Capget(&header, &had[0]); err != nil {
		t.Fatal(err)
	}
	less := had
	less[0].Effective = 0
	if err := unix.Capset(&header, &less[0]); err != nil {
		t.Fatal(err)
	}
	_, err := New(t.Context(), Config{})
	if err := unix.Capset(&header, &had[0]); err != nil {
		t.Fatal(err)
	}

	var missing *CapabilityError
	if !errors.As(err, &missing) || !errors.Is(err, fs.ErrPermission) {
		t.Fatalf("got %v, want a CapabilityError", err)
	}
	if diff := cmp.Diff([]string{"CAP_SYS_ADMIN", "CAP_NET_ADMIN"}, missing.Missing); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
