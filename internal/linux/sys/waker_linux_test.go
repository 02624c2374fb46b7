// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func openWaker(t *testing.T) *Waker {
	t.Helper()
	w := &Waker{}
	if err := w.Open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for range 2 {
			if err := w.Close(); err != nil {
				t.Error(err)
			}
		}
		w.Wake() // does nothing, and writes to no other descriptor
		w.Sleep()
		w.Interrupt()
	})
	return w
}

// sleep sleeps as an owner does, for at most d, and reports whether Wake ended it.
func sleep(t *testing.T, w *Waker, d time.Duration) (woken, readable bool) {
	t.Helper()
	w.Sleep()
	if !w.Pending() {
		fds := []unix.PollFd{{Fd: int32(w.FD()), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(d.Milliseconds()))
		if err != nil && err != unix.EINTR {
			t.Error(err)
		}
		readable = n == 1
	}
	w.Awake(readable)
	return w.Take(), readable
}

// A child process does not inherit the eventfd, and an eventfd that poll reports as readable by
// mistake does not block its owner.
func TestWakersDescriptor(t *testing.T) {
	w := openWaker(t)
	flags, err1 := unix.FcntlInt(uintptr(w.FD()), unix.F_GETFD, 0)
	status, err2 := unix.FcntlInt(uintptr(w.FD()), unix.F_GETFL, 0)
	if flags&unix.FD_CLOEXEC == 0 || status&unix.O_NONBLOCK == 0 {
		t.Fatalf("flags %#x, %v; status %#x, %v", flags, err1, status, err2)
	}
	w.Awake(true)
}

func TestZeroWaker(t *testing.T) {
	var w Waker
	w.Sleep()
	w.Wake() // would write to descriptor 0
	if err := w.Close(); err != nil || w.FD() != -1 {
		t.Errorf("descriptor %d, %v", w.FD(), err)
	}
}

func TestWaker(t *testing.T) {
	w := openWaker(t)
	if woken, readable := sleep(t, w, time.Millisecond); woken || readable {
		t.Error("woken by nothing")
	}
	w.Wake()
	w.Wake()
	if woken, readable := sleep(t, w, time.Minute); !woken || readable {
		t.Error("Wake before a sleep is lost, or wrote although the owner was awake")
	}
	if w.Take() {
		t.Error("two calls are reported twice")
	}
	w.Interrupt()
	if woken, readable := sleep(t, w, time.Minute); woken || !readable {
		t.Error("Interrupt before a sleep is lost, or reported as Wake")
	}
	if woken, readable := sleep(t, w, time.Millisecond); woken || readable {
		t.Error("an interrupt ends two sleeps")
	}
}

// Waking an owner that is awake takes no system call.
func TestWakeOfOneThatIsAwake(t *testing.T) {
	w := openWaker(t)
	sleep(t, w, time.Millisecond)
	if w.Sleeping() {
		t.Error("asleep after Awake")
	}
	w.Wake()
	fds := []unix.PollFd{{Fd: int32(w.FD()), Events: unix.POLLIN}}
	if n, err := unix.Poll(fds, 0); n != 0 || err != nil {
		t.Errorf("%d descriptors are readable, %v", n, err)
	}
}

// No call of Wake is lost, whatever the owner does at that moment.
func TestWakerLosesNothing(t *testing.T) {
	w := openWaker(t)
	losesNothing(t, w, func() bool {
		woken, _ := sleep(t, w, eventLimit)
		return woken
	})
}

// losesNothing wakes an owner repeatedly. nap sleeps for some seconds, and reports whether Wake
// ended it.
func losesNothing(t *testing.T, w *Waker, nap func() bool) {
	t.Helper()
	const rounds = 20000
	turn := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		for range rounds {
			w.Wake()
			<-turn
		}
	})
	for range rounds {
		for deadline := time.Now().Add(eventLimit); ; {
			if nap() {
				break
			}
			if time.Now().After(deadline) {
				t.Fatal("not woken")
			}
		}
		turn <- struct{}{}
	}
	all.Wait()
}
