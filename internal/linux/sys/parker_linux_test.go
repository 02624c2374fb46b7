// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// openParker returns a Parker with an eventfd, and the eventfd.
func openParker(t *testing.T, ready func(fd int) bool) (*Parker, int) {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	p, err := NewParker(func() bool { return ready(fd) })
	if err == nil {
		err = p.Add(fd)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p, fd
}

func readable(fd int) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	return n == 1 && err == nil
}

func write(t *testing.T, fd int) {
	t.Helper()
	if _, err := unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 1}); err != nil {
		t.Error(err)
	}
}

// park parks for at most limit.
func park(t *testing.T, p *Parker, limit time.Duration) bool {
	t.Helper()
	if err := p.Limit(limit); err != nil {
		t.Fatal(err)
	}
	some, err := p.Park()
	if err != nil {
		t.Fatal(err)
	}
	return some
}

func TestParkEnds(t *testing.T) {
	p, fd := openParker(t, readable)
	start := time.Now()
	if park(t, p, 20*time.Millisecond) {
		t.Error("ends for nothing")
	}
	if took := time.Since(start); took < 18*time.Millisecond {
		t.Errorf("ends after %v of 20ms", took)
	}
	write(t, fd)
	for range 2 {
		if !park(t, p, time.Minute) {
			t.Error("sleeps although there is something")
		}
	}
	drain := make([]byte, 8)
	if _, err := unix.Read(fd, drain); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(5*time.Millisecond, func() { write(t, fd) })
	if !park(t, p, time.Minute) {
		t.Error("does not end for a descriptor")
	}
	if err := p.Remove(fd); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Read(fd, drain); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(time.Millisecond, func() { write(t, fd) })
	if start := time.Now(); park(t, p, 30*time.Millisecond) && time.Since(start) < 20*time.Millisecond {
		t.Error("ends for a descriptor that was removed")
	}
}

// No call of Wake is lost, whatever a parking owner does at that moment, and no descriptor has to
// be read after it.
func TestParkedWakerLosesNothing(t *testing.T) {
	w := openWaker(t)
	p, _ := openParker(t, func(int) bool { return w.Take() })
	losesNothing(t, w, func() bool {
		if err := p.Limit(eventLimit); err != nil {
			t.Fatal(err)
		}
		w.Park(p)
		some, err := p.Park()
		w.Awake(false)
		if err != nil {
			t.Fatal(err)
		}
		return some || w.Take()
	})
	if readable(w.FD()) {
		t.Error("wrote to the eventfd of an owner that was parked")
	}
}

func TestCloseEndsPark(t *testing.T) {
	p, err := NewParker(func() bool { return false })
	if err == nil {
		err = p.Limit(time.Minute)
	}
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(5*time.Millisecond, func() { _ = p.Close() })
	if some, err := p.Park(); some || err == nil {
		t.Errorf("%v, %v", some, err)
	}
	for name, err := range map[string]error{"Limit": p.Limit(time.Second), "Add": p.Add(0), "Remove": p.Remove(0), "Close": p.Close()} {
		if err == nil {
			t.Errorf("%s of a closed Parker succeeds", name)
		}
	}
	p.Interrupt() // does nothing
}

func TestParkAllocatesNothing(t *testing.T) {
	p, fd := openParker(t, readable)
	write(t, fd)
	if n := testing.AllocsPerRun(100, func() { park(t, p, time.Minute) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
