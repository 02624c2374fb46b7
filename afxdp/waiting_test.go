//go:build linux

package afxdp

import (
	"errors"
	"net"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// Poll tells all that is there of what was asked for.
func TestReady(t *testing.T) {
	s, k := newSim(t, simConfig{frames: 8, ring: 8})
	if _, err := s.Refill(4); err != nil {
		t.Fatal(err)
	}
	f, _ := s.Pool().Alloc()
	if n, err := s.Send([]Desc{{Frame: f, Off: 256, Len: 60}}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	poll := func(want, got Events) {
		t.Helper()
		if ev, err := s.Poll(want, 0); ev != got || err != nil {
			t.Errorf("events %b of %b, want %b, %v", ev, want, got, err)
		}
	}
	poll(EventRx|EventCompletion, 0)
	d, _ := k.transmit()
	k.complete(d.Addr)
	poll(EventRx, 0)
	poll(EventRx|EventCompletion, EventCompletion)
	k.deliver(1, 0)
	poll(EventRx, EventRx)
	poll(EventCompletion, EventCompletion)
	if err := s.wake.Open(); err != nil {
		t.Fatal(err)
	}
	defer s.wake.Close()
	s.Wake()
	poll(EventRx|EventCompletion, EventRx|EventCompletion|EventWake)
	poll(EventRx|EventCompletion, EventRx|EventCompletion)
	// Those of several sockets come together.
	other, _ := newSim(t, simConfig{frames: 8, ring: 8})
	for _, socks := range [][]*Socket{{s, other}, {other, s}} {
		if ev, err := NewPoller(socks...).Poll(EventRx, 0); ev != EventRx || err != nil {
			t.Errorf("events %b, %v", ev, err)
		}
	}
}

// A Poller needs all of its sockets, and leaves those alone that it cannot have.
func TestPollerLeavesItsSockets(t *testing.T) {
	a, _ := newSim(t, simConfig{frames: 8, ring: 8})
	b, _ := newSim(t, simConfig{frames: 8, ring: 8})
	p := NewPoller(a, b)
	for _, c := range []struct {
		enter func()
		want  error
	}{
		{func() {}, nil},
		{func() { _ = b.gate.enter() }, ErrConcurrentUse},
		{func() { b.gate.leave(); b.gate.close(func() {}) }, net.ErrClosed},
	} {
		c.enter()
		if _, err := p.Poll(EventRx, 0); !errors.Is(err, c.want) {
			t.Errorf("error %v, want %v", err, c.want)
		}
		if _, err := a.Poll(EventRx, 0); err != nil {
			t.Errorf("after %v the other socket is %v", c.want, err)
		}
	}
}

// How long Poll sleeps, and what for.
func TestSleep(t *testing.T) {
	s, k := newSim(t, simConfig{frames: 8, ring: 8})
	if err := s.wake.Open(); err != nil {
		t.Fatal(err)
	}
	defer s.wake.Close()
	p := &s.polls
	// sleep returns what was left of an hour when it was woken at once.
	sleep := func(want Events) time.Duration {
		t.Helper()
		if _, err := unix.Write(s.wake.FD(), []byte{1, 0, 0, 0, 0, 0, 0, 0}); err != nil {
			t.Fatal(err)
		}
		if ev, err := p.sleep(want, time.Hour); ev != 0 || err != nil {
			t.Fatalf("events %b, %v", ev, err)
		}
		events := map[bool]int16{true: unix.POLLIN}[want&EventRx != 0]
		if diff := cmp.Diff([]unix.PollFd{{Fd: -1, Events: events}, {Fd: int32(s.wake.FD()), Events: unix.POLLIN, Revents: unix.POLLIN}}, p.fds); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if s.wake.Sleeping() {
			t.Error("is still asleep")
		}
		return time.Duration(p.ts.Nano())
	}
	for _, want := range []Events{EventRx, EventCompletion, EventRx | EventCompletion, 0} {
		if left := sleep(want); left < time.Minute {
			t.Errorf("sleeps for %v", left)
		}
	}
	// Packets that the kernel did not take are offered again soon, unless it is awake.
	f, _ := s.Pool().Alloc()
	if n, err := s.Send([]Desc{{Frame: f, Off: 256, Len: 60}}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if left := sleep(EventRx); left > 200*time.Microsecond {
		t.Errorf("sleeps for %v with a backlog", left)
	}
	s.tx.flags.Store(0)
	if left := sleep(EventRx); left < time.Minute {
		t.Errorf("sleeps for %v with a backlog that the kernel looks at", left)
	}
	// Frames complete without a word.
	if ev, err := s.Poll(EventCompletion, 20*time.Millisecond); ev != 0 || err != nil {
		t.Errorf("events %b, %v", ev, err)
	}
	go func() {
		for !s.wake.Sleeping() {
			time.Sleep(time.Millisecond)
		}
		d, _ := k.transmit()
		k.complete(d.Addr)
	}()
	if ev, err := s.Poll(EventCompletion, -1); ev != EventCompletion || err != nil {
		t.Errorf("events %b, %v", ev, err)
	}
	if s.count.Overslept != 0 {
		t.Errorf("overslept %d times", s.count.Overslept)
	}
}

// Without BusyPoll nothing but sleeping wakes the driver, also if it asks for that.
func TestPollLeavesTheDriverAlone(t *testing.T) {
	s, k := newSim(t, simConfig{frames: 8, ring: 8})
	if err := s.wake.Open(); err != nil {
		t.Fatal(err)
	}
	defer s.wake.Close()
	s.fill.flags.Store(ringNeedWakeup)
	k.onRecv = func() unix.Errno { t.Error("is woken"); return 0 }
	s.polls.checked = time.Now().Add(time.Hour)
	if ev, err := s.Poll(EventRx, time.Millisecond); ev != 0 || err != nil {
		t.Errorf("events %b, %v", ev, err)
	}
	if s.count.RxWakeups != 0 {
		t.Errorf("%d wake-ups", s.count.RxWakeups)
	}
}

// Packets that come unasked are not overslept.
func TestOversleptIsForReceivers(t *testing.T) {
	s, k := newSim(t, simConfig{frames: 8, ring: 8})
	if _, err := s.Refill(4); err != nil {
		t.Fatal(err)
	}
	k.deliver(1, 0)
	s.polls.countOverslept(EventCompletion)
	if s.count.Overslept != 0 {
		t.Errorf("overslept %d times", s.count.Overslept)
	}
	s.polls.countOverslept(EventCompletion | EventRx)
	if s.count.Overslept != 1 {
		t.Errorf("overslept %d times", s.count.Overslept)
	}
}

// The interfaces are looked at every 200ms, and each time while one is gone.
func TestLinkIsChecked(t *testing.T) {
	s, k := newSim(t, simConfig{frames: 8, ring: 8})
	calls, answer := 0, unix.Errno(0)
	k.onRecv = func() unix.Errno { calls++; return answer }
	poll := func(want error, n int) {
		t.Helper()
		if err := s.polls.checkLinks(); !errors.Is(err, want) || calls != n {
			t.Errorf("%v, %d calls; want %v, %d", err, calls, want, n)
		}
	}
	s.polls.checked = time.Now().Add(time.Hour)
	poll(nil, 0)
	s.polls.checked = time.Now().Add(-linkCheck)
	poll(nil, 1)
	if since := time.Since(s.polls.checked); since > time.Minute {
		t.Errorf("checked %v ago", since)
	}
	answer = unix.ENETDOWN
	s.polls.checked = time.Now().Add(-linkCheck)
	s.info.Store(&Info{})
	poll(ErrLinkDown, 2)
	poll(ErrLinkDown, 3)
	answer = unix.ENXIO
	poll(ErrInterfaceGone, 4)
	answer = unix.EINTR // passes by itself
	poll(nil, 5)
	if linkCheck != 200*time.Millisecond {
		t.Errorf("every %v", linkCheck)
	}
	// In zero-copy mode it may be a program that lacks.
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	s.info.Store(&Info{ZeroCopy: true, Ifindex: lo.Index})
	answer = unix.ENETDOWN
	s.polls.checked = time.Time{}
	poll(ErrNoProgram, 6)
}

// What a driver answers when it is polled, or looked at while spinning, ends Poll.
func TestPollReportsErrorsWhileBusy(t *testing.T) {
	for name, prepare := range map[string]func(*Socket){
		"polling the driver": func(s *Socket) { s.cfg.BusyPoll = &BusyPoll{Time: time.Hour}; s.polls.init(s) },
		"spinning": func(s *Socket) {
			s.fill.flags.Store(ringNeedWakeup)
			s.cfg.Spin = time.Hour
			s.polls.init(s)
		},
	} {
		s, k := newSim(t, simConfig{frames: 8, ring: 8})
		prepare(s)
		s.info.Store(&Info{})
		calls := 0
		k.onRecv = func() unix.Errno {
			if calls++; calls == 3 {
				return unix.ENXIO
			}
			return 0
		}
		if ev, err := s.Poll(EventRx, time.Hour); ev != 0 || !errors.Is(err, ErrInterfaceGone) || calls != 3 {
			t.Errorf("%s: events %b, %v after %d calls", name, ev, err, calls)
		}
		// What it finds ends Poll, too.
		if _, err := s.Refill(1); err != nil && !errors.Is(err, ErrInterfaceGone) {
			t.Fatal(err)
		}
		k.onRecv = func() unix.Errno { k.deliver(1, 0); return 0 }
		if ev, err := s.Poll(EventRx, time.Hour); ev != EventRx || err != nil {
			t.Errorf("%s: events %b, %v", name, ev, err)
		}
		// And so does Close.
		if _, err := s.Receive(make([]Desc, 8)); err != nil {
			t.Fatal(err)
		}
		if err := s.wake.Open(); err != nil {
			t.Fatal(err)
		}
		closed := make(chan bool)
		k.onRecv = func() unix.Errno {
			if !s.gate.closing() {
				go func() { closed <- s.gate.close(s.wake.Interrupt) }()
				for !s.gate.closing() {
					time.Sleep(time.Microsecond)
				}
			}
			return 0
		}
		if ev, err := s.Poll(EventRx, time.Hour); ev != 0 || !errors.Is(err, net.ErrClosed) || !<-closed {
			t.Errorf("%s: events %b, %v", name, ev, err)
		}
		if err := s.wake.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Poll spins for as long as is left, and for longer after it paid.
func TestSpinAdapts(t *testing.T) {
	s, k := newSim(t, simConfig{frames: 8, ring: 8})
	s.cfg.Spin = 800 * time.Microsecond
	s.polls.init(s)
	p := &s.polls
	if p.spin != s.cfg.Spin || p.spinMax != s.cfg.Spin {
		t.Fatalf("spins %v of %v", p.spin, p.spinMax)
	}
	if _, err := s.Refill(8); err != nil {
		t.Fatal(err)
	}
	for _, want := range []time.Duration{400, 200, 100, 100} {
		if ev, err := p.spinFor(EventRx, time.Now(), -1); ev != 0 || err != nil || p.spin != want*time.Microsecond {
			t.Errorf("in vain: events %b, %v; spins %v, want %v", ev, err, p.spin, want*time.Microsecond)
		}
	}
	s.fill.flags.Store(ringNeedWakeup)
	k.onRecv = func() unix.Errno { k.deliver(1, 0); return 0 }
	for _, want := range []time.Duration{200, 400, 800, 800} {
		p.spin = max(p.spin, want*time.Microsecond/2) // however slow this machine is
		if ev, err := p.spinFor(EventRx, time.Now().Add(time.Hour), -1); ev != EventRx || err != nil || p.spin != want*time.Microsecond {
			t.Errorf("with success: events %b, %v; spins %v, want %v", ev, err, p.spin, want*time.Microsecond)
		}
		if n, err := s.Receive(make([]Desc, 8)); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	// No longer than the timeout.
	p.spin = time.Hour
	k.onRecv = nil
	if ev, err := p.spinFor(EventRx, time.Now(), time.Microsecond); ev != 0 || err != nil {
		t.Errorf("events %b, %v", ev, err)
	}
	s.cfg.BusyPoll = &BusyPoll{Time: time.Hour}
	p.init(s)
	if ev, err := p.pollDrivers(EventRx, time.Now(), time.Microsecond); ev != 0 || err != nil {
		t.Errorf("events %b, %v", ev, err)
	}
}
