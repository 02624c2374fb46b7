// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"errors"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/testbed"
)

// openWakers lets a simulated socket sleep, until the end of the test.
func openWakers(t *testing.T, s *Socket) {
	t.Helper()
	if err := s.openWakers(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.closeWakers(); err != nil {
			t.Error(err)
		}
	})
}

// Poll returns all events among the requested ones.
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
	openWakers(t, s)
	s.Wake()
	poll(EventRx|EventCompletion, EventRx|EventCompletion|EventWake)
	poll(EventRx|EventCompletion, EventRx|EventCompletion)
	// The receiving goroutine is notified, and the sending one.
	s.Wake()
	poll(EventRx, EventRx|EventWake)
	poll(EventRx, EventRx)
	poll(0, EventWake)
	poll(0, 0)
	// Of several sockets, those that have events are returned.
	other, _ := newSim(t, simConfig{frames: 8, ring: 8})
	for _, socks := range [][]*Socket{{s, other}, {other, s}} {
		if ready, err := NewPoller(socks...).Poll(EventRx, 0); !slices.Equal(ready, []Ready{{s, EventRx, nil}}) || err != nil {
			t.Errorf("%v, %v", ready, err)
		}
	}
}

// A Poller needs all of its sockets that are not closed, and does not use those that it cannot
// have.
func TestPollerLeavesItsSockets(t *testing.T) {
	a, _ := newSim(t, simConfig{frames: 8, ring: 8})
	b, _ := newSim(t, simConfig{frames: 8, ring: 8})
	p := NewPoller(a, b)
	for _, c := range []struct {
		enter func()
		want  error
	}{
		{func() {}, nil},
		{func() { _ = b.in.gate.enterGate() }, ErrConcurrentUse},
		{func() { b.in.gate.leaveGate(); b.closeGates() }, nil},
	} {
		c.enter()
		if _, err := p.Poll(EventRx, 0); !errors.Is(err, c.want) {
			t.Errorf("error %v, want %v", err, c.want)
		}
		if _, err := a.Poll(EventRx, 0); err != nil {
			t.Errorf("after %v the other socket is %v", c.want, err)
		}
	}
	a.closeGates()
	if ready, err := p.Poll(EventRx, -1); !slices.Equal(ready, []Ready{{a, 0, net.ErrClosed}}) || err != nil {
		t.Errorf("%v, %v", ready, err)
	}
	if ready, err := p.Poll(EventRx, -1); len(ready) != 0 || !errors.Is(err, net.ErrClosed) {
		t.Errorf("of no sockets: %v, %v", ready, err)
	}
}

// A closed socket is left out once, and the one after it stays in its place.
func TestPollerGoesOnBehindAClosedSocket(t *testing.T) {
	a, _ := newSim(t, simConfig{frames: 8, ring: 8})
	b, _ := newSim(t, simConfig{frames: 8, ring: 8})
	p := NewPoller(a, b)
	a.closeGates()
	for _, want := range [][]Ready{{{a, 0, net.ErrClosed}}, {}} {
		ready, err := p.Poll(EventRx, 0)
		if !slices.Equal(ready, want) || err != nil {
			t.Errorf("%v, %v, want %v", ready, err, want)
		}
		select {
		case <-b.in.gate.left:
			t.Fatal("the open socket was left without having been entered")
		default:
		}
	}
}

// A socket whose interface is missing is reported from time to time, along with the others' events.
func TestPollerSurvivesADeadSocket(t *testing.T) {
	a, ka := newSim(t, simConfig{frames: 8, ring: 8})
	b, kb := newSim(t, simConfig{frames: 8, ring: 8})
	for _, s := range []*Socket{a, b} {
		s.info.Store(&Info{})
		openWakers(t, s)
	}
	if _, err := b.Refill(8); err != nil {
		t.Fatal(err)
	}
	p := NewPoller(a, b)
	ka.onRecv = func() unix.Errno { return unix.ENETDOWN }
	for range 2 {
		p.set.checked = time.Now().Add(-linkCheck)
		ready, err := p.Poll(EventRx, -1)
		if len(ready) != 1 || ready[0].Socket != a || ready[0].Events != 0 || !errors.Is(ready[0].Err, ErrLinkDown) || err != nil {
			t.Fatalf("%v, %v", ready, err)
		}
		kb.deliver(1, 0)
		if ready, err := p.Poll(EventRx, -1); !slices.Equal(ready, []Ready{{b, EventRx, nil}}) || err != nil {
			t.Fatalf("%v, %v", ready, err)
		}
		if n, err := b.Receive(make([]Desc, 8)); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	ka.onRecv = nil
	p.set.checked = time.Now().Add(-linkCheck)
	if ready, err := p.Poll(EventRx, 2*time.Millisecond); len(ready) != 0 || err != nil {
		t.Errorf("works again: %v, %v", ready, err)
	}
}

// Poll's sleeps, and their reasons.
func TestSleep(t *testing.T) {
	s, k := newSim(t, simConfig{frames: 8, ring: 8})
	openWakers(t, s)
	// sleep returns the rest of an hour when it was woken at once.
	sleep := func(want Events) time.Duration {
		t.Helper()
		h := s.half(sideOf(want))
		p := &h.polls
		p.which = sideOf(want)
		if _, err := unix.Write(h.wake.FD(), []byte{1, 0, 0, 0, 0, 0, 0, 0}); err != nil {
			t.Fatal(err)
		}
		if some, err := p.sleepFor(want, time.Hour); some || err != nil {
			t.Fatalf("%+v, %v", p.found, err)
		}
		events := map[bool]int16{true: unix.POLLIN}[want&EventRx != 0]
		if diff := cmp.Diff([]unix.PollFd{{Fd: -1, Events: events}, {Fd: int32(h.wake.FD()), Events: unix.POLLIN, Revents: unix.POLLIN}, {Fd: -1, Events: unix.POLLIN}}, p.fds); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if h.wake.Sleeping() {
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
	// Frames complete without a notification.
	if ev, err := s.Poll(EventCompletion, 20*time.Millisecond); ev != 0 || err != nil {
		t.Errorf("events %b, %v", ev, err)
	}
	go func() {
		for !s.out.wake.Sleeping() {
			time.Sleep(time.Millisecond)
		}
		d, _ := k.transmit()
		k.complete(d.Addr)
	}()
	if ev, err := s.Poll(EventCompletion, -1); ev != EventCompletion || err != nil {
		t.Errorf("events %b, %v", ev, err)
	}
	if s.in.count.Overslept != 0 {
		t.Errorf("overslept %d times", s.in.count.Overslept)
	}
}

// Without BusyPoll only sleeping wakes the driver, even if it requests that.
func TestPollLeavesTheDriverAlone(t *testing.T) {
	s, k := newSim(t, simConfig{frames: 8, ring: 8})
	openWakers(t, s)
	s.fill.flags.Store(ringNeedWakeup)
	k.onRecv = func() unix.Errno { t.Error("is woken"); return 0 }
	s.in.polls.checked = time.Now().Add(time.Hour)
	if ev, err := s.Poll(EventRx, time.Millisecond); ev != 0 || err != nil {
		t.Errorf("events %b, %v", ev, err)
	}
	if s.in.count.RxWakeups != 0 {
		t.Errorf("%d wake-ups", s.in.count.RxWakeups)
	}
}

// Packets that arrive without a request are not missed while sleeping.
func TestOversleptIsForReceivers(t *testing.T) {
	s, k := newSim(t, simConfig{frames: 8, ring: 8})
	if _, err := s.Refill(4); err != nil {
		t.Fatal(err)
	}
	k.deliver(1, 0)
	s.in.polls.countOverslept(EventCompletion)
	if s.in.count.Overslept != 0 {
		t.Errorf("overslept %d times", s.in.count.Overslept)
	}
	s.in.polls.countOverslept(EventCompletion | EventRx)
	if s.in.count.Overslept != 1 {
		t.Errorf("overslept %d times", s.in.count.Overslept)
	}
}

// The interfaces are checked every 200ms, and each time while one is missing.
func TestLinkIsChecked(t *testing.T) {
	s, k := newSim(t, simConfig{frames: 8, ring: 8})
	calls, answer := 0, unix.Errno(0)
	k.onRecv = func() unix.Errno { calls++; return answer }
	poll := func(want error, n int) {
		t.Helper()
		p := &s.in.polls
		p.found[0].Err = nil
		if failed, err := p.checkLinks(), p.found[0].Err; !errors.Is(err, want) || failed != (err != nil) || calls != n {
			t.Errorf("%v, %d calls; want %v, %d", err, calls, want, n)
		}
	}
	s.in.polls.checked = time.Now().Add(time.Hour)
	poll(nil, 0)
	s.in.polls.checked = time.Now().Add(-linkCheck)
	poll(nil, 1)
	if since := time.Since(s.in.polls.checked); since > time.Minute {
		t.Errorf("checked %v ago", since)
	}
	answer = unix.ENETDOWN
	s.in.polls.checked = time.Now().Add(-linkCheck)
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
	// In zero-copy mode a program may be missing.
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	s.info.Store(&Info{ZeroCopy: true, Ifindex: lo.Index})
	answer = unix.ENETDOWN
	s.in.polls.checked = time.Time{}
	poll(ErrNoProgram, 6)
}

// A driver's error when it is polled, or checked while spinning, ends Poll.
func TestPollReportsErrorsWhileBusy(t *testing.T) {
	for name, prepare := range map[string]func(*Socket){
		"polling the driver": func(s *Socket) { s.cfg.BusyPoll = &BusyPoll{Time: time.Hour}; s.in.polls.initSockets(s) },
		"spinning": func(s *Socket) {
			s.fill.flags.Store(ringNeedWakeup)
			s.cfg.Spin = time.Hour
			s.in.polls.initSockets(s)
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
		// Its events also end Poll.
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
		if err := s.openWakers(); err != nil {
			t.Fatal(err)
		}
		closed := make(chan bool)
		k.onRecv = func() unix.Errno {
			if !s.closing() {
				go func() { closed <- s.closeGates() }()
				for !s.closing() {
					time.Sleep(time.Microsecond)
				}
			}
			return 0
		}
		if ev, err := s.Poll(EventRx, time.Hour); ev != 0 || !errors.Is(err, net.ErrClosed) || !<-closed {
			t.Errorf("%s: events %b, %v", name, ev, err)
		}
		if err := s.closeWakers(); err != nil {
			t.Error(err)
		}
	}
}

// Poll spins for the remaining budget, and for longer after it paid off.
func TestSpinAdapts(t *testing.T) {
	s, k := newSim(t, simConfig{frames: 8, ring: 8})
	s.cfg.Spin = 800 * time.Microsecond
	s.in.polls.initSockets(s)
	p := &s.in.polls
	p.which = receiving
	if p.spin != s.cfg.Spin || p.spinMax != s.cfg.Spin {
		t.Fatalf("spins %v of %v", p.spin, p.spinMax)
	}
	if _, err := s.Refill(8); err != nil {
		t.Fatal(err)
	}
	for _, want := range []time.Duration{400, 200, 100, 100} {
		if some := p.spinFor(EventRx, time.Now(), -1); some || p.spin != want*time.Microsecond {
			t.Errorf("in vain: %+v; spins %v, want %v", p.found, p.spin, want*time.Microsecond)
		}
	}
	s.fill.flags.Store(ringNeedWakeup)
	k.onRecv = func() unix.Errno { k.deliver(1, 0); return 0 }
	for _, want := range []time.Duration{200, 400, 800, 800} {
		p.spin = max(p.spin, want*time.Microsecond/2) // however slow this machine is
		p.found[0].Events = 0
		if some := p.spinFor(EventRx, time.Now().Add(time.Hour), -1); !some || p.found[0].Events != EventRx || p.spin != want*time.Microsecond {
			t.Errorf("with success: %+v; spins %v, want %v", p.found, p.spin, want*time.Microsecond)
		}
		if n, err := s.Receive(make([]Desc, 8)); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	// No longer than the timeout.
	p.spin = time.Hour
	k.onRecv = nil
	p.found[0].Events = 0
	if p.spinFor(EventRx, time.Now(), time.Microsecond) {
		t.Errorf("%+v", p.found)
	}
	s.cfg.BusyPoll = &BusyPoll{Time: time.Hour}
	p.initSockets(s)
	if p.pollDrivers(EventRx, time.Now(), time.Microsecond) {
		t.Errorf("%+v", p.found)
	}
}

// A watched descriptor ends a sleep while it is readable.
func TestWatch(t *testing.T) {
	for name, parked := range map[string]bool{"ppoll": false, "parked": true} {
		t.Run(name, func(t *testing.T) { testWatch(t, parked) })
	}
}

func testWatch(t *testing.T, parked bool) {
	s, _ := newSim(t, simConfig{frames: 8, ring: 8})
	if err := s.openWakers(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.closeWakers() }()
	fd, err := unix.Eventfd(1, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	p := newPoller(t, parked, s)
	p.Watch(fd)
	if some, err := p.set.sleepFor(EventRx, time.Hour); !some || err != nil {
		t.Errorf("%v, %v", some, err)
	}
	p.set.spinMax, p.set.spin = time.Hour, time.Hour // unused: it is not the descriptor that Poll would check
	if ready, err := p.Poll(EventRx, time.Hour); len(ready) != 0 || err != nil {
		t.Errorf("%v, %v", ready, err)
	}
	if _, err := unix.Read(fd, make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(5*time.Millisecond, func() { _, _ = unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 1}) })
	if some, err := p.set.sleepFor(EventRx, time.Hour); !some || err != nil {
		t.Errorf("%v, %v when it becomes readable", some, err)
	}
	p.Watch(-1)
	if some, err := p.set.sleepFor(EventRx, 5*time.Millisecond); some || err != nil {
		t.Errorf("%v, %v without it", some, err)
	}
}

// A Poller reports a link that is down five times a second, also while it sleeps for less because
// packets or completions wait, and when each of its polls of the driver fails.
func TestPollerTellsFiveTimesASecond(t *testing.T) {
	for name, cfg := range map[string]Config{"interrupts": {}, "busy polling": {BusyPoll: &BusyPoll{}}} {
		t.Run(name, func(t *testing.T) { testPollerTells(t, cfg) })
	}
}

func testPollerTells(t *testing.T, cfg Config) {
	ns := newNet(t, testbed.VethConfig{})
	cfg.Interface = "a"
	s := open(t, ns, newPool(t, newUMEM(t, UMEMConfig{}), 0), cfg)
	if err := ns.SetUp("a", false); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Send(newPackets(t, s, 1, 1, 100)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []Events{EventRx, EventRx | EventCompletion} {
		p := newPoller(t, false, s)
		start, told := time.Now(), 0
		for time.Since(start) < time.Second || told == 0 && time.Since(start) < eventLimit {
			ready, err := p.Poll(want, time.Second)
			if err != nil {
				t.Fatal(err)
			}
			told += len(ready)
		}
		if most := int(time.Since(start)/linkCheck) + 1; told == 0 || told > most {
			t.Errorf("for events %d it told %d times, want 1 to %d", want, told, most)
		}
	}
}
