//go:build linux

package afxdp

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Events are what Poll waits for and what it found.
type Events uint8

const (
	// EventRx means that Receive has packets.
	EventRx Events = 1 << iota
	// EventCompletion means that Completed has frames. The kernel does not notify of
	// them, so waiting for it looks at the ring at growing intervals of 20µs
	// to 1ms.
	EventCompletion
	// EventWake means that Wake was called since the last Poll. It is always
	// waited for.
	EventWake
)

const (
	// linkCheck is how often a sleeping Poll looks whether the interface is
	// still there. The kernel does not wake sleepers when it goes.
	linkCheck = 200 * time.Millisecond
	// backlogRetry is how soon Poll offers the kernel packets again that it
	// refused to take. Waiting for POLLOUT instead would spin: it is ready
	// whenever the ring is less than half full.
	backlogRetry  = 200 * time.Microsecond
	completionMin = 20 * time.Microsecond
	completionMax = time.Millisecond
)

// Poll waits until one of the wanted events, or Wake, or the timeout, and
// returns what is there; 0 after the timeout. A negative timeout waits for
// ever. Poll first spins, see Config.Spin, and then sleeps in poll(2), which
// also makes the kernel look at the TX and fill rings.
//
// It returns net.ErrClosed when the socket is closed, and ErrLinkDown or
// ErrInterfaceGone when it finds that nothing can come, which it looks for every
// 200ms.
func (s *Socket) Poll(want Events, timeout time.Duration) (Events, error) {
	if err := s.gate.enter(); err != nil {
		return 0, err
	}
	ev, err := s.polls.wait(want, timeout)
	s.gate.leave()
	return ev, err
}

// ready looks at the rings.
func (s *Socket) ready(want Events) (ev Events) {
	if s.wake.Take() {
		ev = EventWake
	}
	if want&EventRx != 0 {
		// A corrupt ring counts as ready: Receive reports it.
		if n, ok := s.rx.available(1); n > 0 || !ok {
			ev |= EventRx
		}
	}
	if want&EventCompletion != 0 {
		if n, ok := s.completion.available(1); n > 0 || !ok || len(s.reclaimed) > 0 {
			ev |= EventCompletion
		}
	}
	return ev
}

// linkState asks the kernel whether the socket can work.
func (s *Socket) linkState() error {
	errno := s.calls.recv()
	if err := linkError(errno); err != nil {
		if s.lacksProgram() {
			err = ErrNoProgram
		}
		return fmt.Errorf("%w: %s: %w", err, s.cfg.Interface, errno)
	}
	return nil
}

// A Poller waits for several sockets that one goroutine serves. It is not safe
// for concurrent use; Wake and Close of any of its sockets, from any goroutine,
// wake it.
type Poller struct {
	set pollSet
}

// NewPoller returns a Poller for the sockets.
func NewPoller(socks ...*Socket) *Poller {
	p := &Poller{}
	p.set.init(socks...)
	return p
}

// Poll waits like [Socket.Poll] until one of the sockets has one of the wanted
// events, and returns the events of all of them together.
func (p *Poller) Poll(want Events, timeout time.Duration) (Events, error) {
	for i, s := range p.set.socks {
		if err := s.gate.enter(); err != nil {
			for _, s := range p.set.socks[:i] {
				s.gate.leave()
			}
			return 0, err
		}
	}
	ev, err := p.set.wait(want, timeout)
	for _, s := range p.set.socks {
		s.gate.leave()
	}
	return ev, err
}

// pollSet is the state of waiting for a set of sockets.
type pollSet struct {
	socks []*Socket
	fds   []unix.PollFd // for each socket: itself, its eventfd
	ts    unix.Timespec // here, not on the stack of wait, where it would escape

	spinMax, spin time.Duration // longest and current time to spin
	busy          time.Duration // to poll the drivers, see BusyPoll
	checked       time.Time     // when the interfaces were looked at last
}

func (p *pollSet) init(socks ...*Socket) {
	p.socks = socks
	p.fds = make([]unix.PollFd, 2*len(socks))
	for _, s := range socks {
		p.spinMax = max(p.spinMax, s.cfg.Spin)
		p.busy = max(p.busy, s.cfg.BusyPoll.duration())
	}
	p.spin, p.checked = p.spinMax, time.Now()
}

func (p *pollSet) ready(want Events) (ev Events) {
	for _, s := range p.socks {
		ev |= s.ready(want)
	}
	return ev
}

func (p *pollSet) wait(want Events, timeout time.Duration) (Events, error) {
	if ev := p.ready(want); ev != 0 || timeout == 0 {
		return ev, nil
	}
	start := time.Now()
	if ev, err := p.pollDrivers(want, start, timeout); ev != 0 || err != nil {
		return ev, err
	}
	if ev, err := p.spinFor(want, start, timeout); ev != 0 || err != nil {
		return ev, err
	}
	for nap := completionMin; ; nap = min(2*nap, completionMax) {
		left := linkCheck
		if timeout >= 0 {
			left = min(left, timeout-time.Since(start))
		}
		if left <= 0 {
			return 0, nil
		}
		if want&EventCompletion != 0 {
			left = min(left, nap)
		}
		ev, err := p.sleep(want, left)
		if ev != 0 || err != nil {
			return ev, err
		}
		if err := p.checkLinks(); err != nil {
			return 0, err
		}
	}
}

// checkLinks looks at the interfaces unless it did lately, also in a call
// before: callers may use timeouts that are shorter than linkCheck.
func (p *pollSet) checkLinks() error {
	now := time.Now()
	if now.Sub(p.checked) < linkCheck {
		return nil
	}
	p.checked = now
	for _, s := range p.socks {
		if err := s.linkState(); err != nil {
			p.checked = time.Time{} // the next call must not wait to say so again
			return err
		}
	}
	return nil
}

// idle does for all sockets what Receive does that finds nothing.
func (p *pollSet) idle() error {
	for _, s := range p.socks {
		if err := s.idle(); err != nil {
			return err
		}
	}
	return nil
}

// pollDrivers does the drivers' work, at least once, until there is something.
func (p *pollSet) pollDrivers(want Events, start time.Time, timeout time.Duration) (Events, error) {
	if p.busy == 0 {
		return 0, nil
	}
	limit := p.busy
	if timeout >= 0 {
		limit = min(limit, timeout)
	}
	for {
		if err := p.idle(); err != nil {
			return 0, err
		}
		if ev := p.ready(want); ev != 0 || time.Since(start) >= limit || p.closing() {
			return ev, nil
		}
	}
}

// spinFor looks at the rings for a bounded time. If it finds something the
// bound doubles, up to Config.Spin; if not it halves, down to an eighth: so a
// busy socket never sleeps and an idle one hardly spins.
func (p *pollSet) spinFor(want Events, start time.Time, timeout time.Duration) (Events, error) {
	if p.spinMax == 0 {
		return 0, nil
	}
	limit := p.spin
	if timeout >= 0 {
		limit = min(limit, timeout)
	}
	for time.Since(start) < limit {
		for range 16 {
			if ev := p.ready(want); ev != 0 {
				p.spin = min(2*p.spin, p.spinMax)
				return ev, nil
			}
		}
		if p.closing() {
			return 0, nil // sleep reports it
		}
		if err := p.idle(); err != nil {
			return 0, err
		}
	}
	p.spin = max(p.spin/2, p.spinMax/8)
	return 0, nil
}

func (p *pollSet) closing() bool {
	for _, s := range p.socks {
		if s.gate.closing() {
			return true
		}
	}
	return false
}

// countOverslept counts a sleep that the kernel did not end although packets came.
func (p *pollSet) countOverslept(want Events) {
	if want&EventRx == 0 {
		return
	}
	for _, s := range p.socks {
		if n, _ := s.rx.available(1); n > 0 {
			s.count.Overslept++
		}
	}
}

// sleep blocks in ppoll for at most d.
func (p *pollSet) sleep(want Events, d time.Duration) (Events, error) {
	events := int16(0)
	if want&EventRx != 0 {
		events = unix.POLLIN
	}
	for i, s := range p.socks {
		s.publish()
		s.wake.Sleep()
		p.fds[2*i] = unix.PollFd{Fd: int32(s.fd), Events: events}
		p.fds[2*i+1] = unix.PollFd{Fd: int32(s.wake.FD()), Events: unix.POLLIN}
		if n, _ := s.tx.pending(); n > 0 && s.tx.needWakeup() {
			d = min(d, backlogRetry)
		}
	}
	// After Sleep: see sys.Waker.
	ev := p.ready(want)
	var err error
	if ev == 0 && !p.closing() {
		var woken int
		p.ts = unix.NsecToTimespec(int64(d))
		if woken, err = unix.Ppoll(p.fds, &p.ts, nil); woken == 0 && err == nil {
			p.countOverslept(want)
		}
	}
	for i, s := range p.socks {
		s.wake.Awake(p.fds[2*i+1].Revents != 0)
	}
	if p.closing() {
		return 0, net.ErrClosed
	}
	if err != nil && !errors.Is(err, unix.EINTR) {
		return 0, os.NewSyscallError("ppoll", err)
	}
	return ev | p.ready(want), nil
}
