// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"errors"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Calls that do not wait return what is available, that nothing is, and that the other end is
// closed.
func TestCallsThatDoNotWait(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	one, other := fds[0], fds[1]
	defer unix.Close(one)
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(epoll)
	if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, one, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(one)}); err != nil {
		t.Fatal(err)
	}
	polled, events, b := []unix.PollFd{{Fd: int32(one), Events: unix.POLLIN}}, make([]unix.EpollEvent, 3), make([]byte, 4)
	check := func(when string, ready, received int, want error) {
		t.Helper()
		if n, err := PollNow(polled); n != ready || err != nil || ready > 0 && polled[0].Revents&unix.POLLIN == 0 {
			t.Errorf("%s: poll %d, %v", when, n, err)
		}
		if n, err := EpollNow(epoll, events); n != ready || err != nil || ready > 0 && events[0].Fd != int32(one) {
			t.Errorf("%s: epoll %d, %v", when, n, err)
		}
		if n, err := ReceiveNow(one, b); n != received || !errors.Is(err, want) {
			t.Errorf("%s: received %d, %v", when, n, err)
		}
	}
	check("nothing", 0, 0, unix.EAGAIN)
	if err := SendNow(other, []byte{5, 6, 7}); err != nil {
		t.Error(err)
	}
	check("something", 1, 3, nil)
	if string(b) != "\x05\x06\x07\x00" {
		t.Errorf("received % x", b)
	}
	for err == nil { // until there is no room
		err = SendNow(one, make([]byte, 1<<12))
	}
	if !errors.Is(err, unix.EAGAIN) {
		t.Error(err)
	}
	unix.Close(other)
	check("the end", 1, 0, unix.ECONNRESET) // it had not read everything
	check("after it", 1, 0, nil)
	if err := SendNow(one, b); !errors.Is(err, unix.EPIPE) { // and no signal
		t.Error(err)
	}
	if _, err := PollNow(nil); err != nil {
		t.Error(err)
	}
	for what, err := range map[string]error{
		"poll": second(PollNow(make([]unix.PollFd, 1<<20))), "epoll": second(EpollNow(-1, events)), "send": SendNow(-1, b), "receive": second(ReceiveNow(-1, b)),
	} {
		if !errors.Is(err, unix.EBADF) && !(what == "poll" && errors.Is(err, unix.EINVAL)) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func second(_ int, err error) error { return err }

// A call that the runtime does not know of does not keep other goroutines from a processor for
// long.
func TestPollAloneIsInterrupted(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for range 10 {
		ran := make(chan struct{})
		go close(ran)
		if _, err := PollAlone(nil, time.Minute); !errors.Is(err, unix.EINTR) {
			t.Fatal(err)
		}
		<-ran
	}
}

func TestPollAloneEnds(t *testing.T) {
	const limit = 20 * time.Millisecond
	for begin := time.Now(); ; begin = time.Now() {
		n, err := PollAlone(nil, limit)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if took := time.Since(begin); n != 0 || err != nil || took < limit {
			t.Errorf("%d, %v after %v", n, err, took)
		}
		return
	}
}
