// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// superviseMain is a parent for the test that kills it: it starts two children,
// prints their process ids and waits.
func superviseMain() int {
	g := NewGroup(context.Background(), Config{})
	for _, role := range []string{"serve", "stubborn"} {
		c, err := g.Start(Spec{Name: role, Cmd: self(role)})
		if err != nil {
			return 1
		}
		if err := c.Ready(context.Background(), nil); err != nil {
			return 1
		}
		fmt.Println(c.Pid())
	}
	_ = g.Wait()
	return 0
}

func TestKilledParentLeavesNoChild(t *testing.T) {
	parent := self("supervise")
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	scan := bufio.NewScanner(out)
	var children []int // pidfds: process ids could be reused
	for range 2 {
		if !scan.Scan() {
			t.Fatalf("the parent ended early: %v", parent.Wait())
		}
		pid, err := strconv.Atoi(scan.Text())
		if err != nil {
			t.Fatal(err)
		}
		pgid, err := unix.Getpgid(pid)
		if err != nil || pgid != pid {
			t.Errorf("child %d is in process group %d (%v), want its own", pid, pgid, err)
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		children = append(children, fd)
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait()
	for _, fd := range children {
		waitGone(t, fd)
	}
}

// waitGone waits until the process of a pidfd has ended.
func waitGone(t *testing.T, pidfd int) {
	t.Helper()
	for {
		fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, 20_000)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			t.Fatalf("process still runs (poll: %d, %v)", n, err)
		}
		return
	}
}

// The descendants of a child end with it, however it ends.
func TestDeadChildLeavesNothing(t *testing.T) {
	g := NewGroup(t.Context(), Config{})
	c := mustStart(t, g, Spec{Name: "c", Cmd: self("orphan maker")})
	if err := c.Ready(t.Context(), nil); err != nil { // the orphan's
		t.Fatal(err)
	}
	var orphans string
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", c.Pid()))
	for _, thread := range threads {
		text, e := os.ReadFile(thread)
		orphans, err = orphans+string(text), errors.Join(err, e)
	}
	orphan, e := strconv.Atoi(strings.TrimSpace(orphans))
	if err := errors.Join(err, e); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.PidfdOpen(orphan, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	defer func() { _ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) }()
	if err := unix.Kill(c.Pid(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitGone(t, fd)
	var exit *ExitError
	if err := g.Wait(); !errors.As(err, &exit) || exit.Signal != "killed" {
		t.Errorf("got %v, want an ExitError of a killed child", err)
	}
}

// A child of a Thread survives the goroutine and the thread that requested its start, but not the
// Thread.
func TestThreadCarriesTheParentDeathSignal(t *testing.T) {
	thread := NewThread()
	defer thread.Close()
	cmd := self("stubborn")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	DieWithParent(cmd)
	asked := make(chan error)
	go func() {
		runtime.LockOSThread() // ends the thread with the goroutine
		asked <- thread.Run(cmd.Start)
	}()
	if err := <-asked; err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || !strings.Contains(line, "ready") {
		t.Fatalf("first line %q, %v", line, err)
	}
	fd, err := unix.PidfdOpen(cmd.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	alive := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	if n, _ := unix.Poll(alive, 50); n != 0 {
		t.Fatal("the child ended with the goroutine that asked for it")
	}
	thread.Close()
	waitGone(t, fd)
	_ = cmd.Wait()
	if err := thread.Run(func() error { return nil }); !errors.Is(err, ErrThreadClosed) {
		t.Errorf("run after close: %v, want ErrThreadClosed", err)
	}
}

// Threads end with Close: none remains locked, even if the process's first thread was among them.
func TestThreadsEnd(t *testing.T) {
	seen := map[int]bool{}
	for range 20 {
		thread := NewThread()
		_ = thread.Run(func() error { seen[unix.Gettid()] = true; return nil })
		thread.Close()
	}
	if seen[os.Getpid()] {
		t.Error("a Thread ran on the process's first thread")
	}
	deadline := time.Now().Add(2 * time.Minute)
	for tid := range seen {
		for unix.Tgkill(os.Getpid(), tid, 0) == nil {
			if time.Now().After(deadline) {
				t.Fatalf("thread %d still runs", tid)
			}
			time.Sleep(time.Millisecond)
		}
	}
}
