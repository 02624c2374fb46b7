// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"errors"
	"net"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/sys"
)

// pollSet is the state of waiting for a set of sockets.
type pollSet struct {
	socks []*Socket
	found []Ready       // of each socket
	fds   []unix.PollFd // for each socket: itself, its eventfd; last, the watched descriptor
	ts    unix.Timespec // here, because it would escape from the stack of waitFor
	which side          // halves that the caller of waitFor is in

	spinMax, spin time.Duration // longest and current time to spin
	busy          time.Duration // time to poll the drivers, see BusyPoll
	checked       time.Time     // when the interfaces were last checked
	reported      time.Time     // when a Poller last reported one that does not work

	parker  *sys.Parker // nil: sleep in ppoll
	parked  []uint32    // of each socket, the descriptors that the parker has
	watched bool        // the parker has the watched descriptor
}

func (p *pollSet) initSockets(socks ...*Socket) {
	p.socks = socks
	p.fds = make([]unix.PollFd, 2*len(socks)+1)
	p.fds[2*len(socks)] = unix.PollFd{Fd: -1, Events: unix.POLLIN}
	p.found = make([]Ready, len(socks))
	for i, s := range socks {
		p.found[i].Socket = s
		p.spinMax = max(p.spinMax, s.cfg.Spin)
		p.busy = max(p.busy, s.cfg.BusyPoll.duration())
	}
	p.spin, p.checked = p.spinMax, time.Now()
}

// waitFor leaves its results in p.found. It returns only errors of waiting itself.
func (p *pollSet) waitFor(which side, want Events, timeout time.Duration) error {
	p.which = which
	for i := range p.found {
		p.found[i].Events, p.found[i].Err = 0, nil
	}
	if p.lookAtRings(want) || timeout == 0 {
		return nil
	}
	start := time.Now()
	if p.pollDrivers(want, start, timeout) || p.spinFor(want, start, timeout) {
		return nil
	}
	for nap := completionMin; ; nap = min(2*nap, completionMax) {
		left := linkCheck
		if timeout >= 0 {
			left = min(left, timeout-time.Since(start))
		}
		if left <= 0 {
			return nil
		}
		if want&EventCompletion != 0 || slices.ContainsFunc(p.socks, (*Socket).sleepsBlind) {
			left = min(left, nap)
		}
		if some, err := p.sleepFor(want, left); some || err != nil {
			return err
		}
		if p.checkLinks() {
			return nil
		}
	}
}

// lookAtRings checks the rings, and reports whether there is something for the caller.
func (p *pollSet) lookAtRings(want Events) bool {
	some := false
	for i, s := range p.socks {
		f := &p.found[i]
		f.Events |= s.ready(p.which, want)
		some = some || f.Events != 0 || f.Err != nil
	}
	return some
}

// recordError records a socket's error, and reports whether there is one.
func (p *pollSet) recordError(i int, err error) bool {
	if err != nil {
		p.found[i].Err = err
	}
	return err != nil
}

// checkLinks checks the interfaces unless it did so recently, possibly in an earlier call: callers
// may use timeouts that are shorter than linkCheck. It reports whether one does not work.
func (p *pollSet) checkLinks() bool {
	now := time.Now()
	if now.Sub(p.checked) < linkCheck {
		return false
	}
	p.checked = now
	failed := false
	for i, s := range p.socks {
		failed = p.recordError(i, s.linkState()) || failed
	}
	if failed {
		p.checked = time.Time{} // the next call must repeat the report without delay
	}
	return failed
}

// idleSockets does for all sockets the work of a Receive that finds nothing, and reports whether
// one has an error, unless a Poller reported one recently.
func (p *pollSet) idleSockets() bool {
	failed := false
	for i, s := range p.socks {
		err := s.idleHalf(s.half(p.which))
		if err != nil && time.Since(p.reported) < linkCheck {
			continue
		}
		failed = p.recordError(i, err) || failed
	}
	return failed
}

// pollDrivers does the drivers' work, at least once, until there is something.
func (p *pollSet) pollDrivers(want Events, start time.Time, timeout time.Duration) bool {
	if p.busy == 0 {
		return false
	}
	limit := p.busy
	if timeout >= 0 {
		limit = min(limit, timeout)
	}
	for {
		if p.idleSockets() {
			return true
		}
		if some := p.lookAtRings(want); some || time.Since(start) >= limit || p.isClosing() {
			return some
		}
	}
}

// spinFor polls the rings for a bounded time. If it finds something the bound doubles, up to
// Config.Spin; if not it halves, down to an eighth: so a busy socket never sleeps and an idle one
// hardly spins.
func (p *pollSet) spinFor(want Events, start time.Time, timeout time.Duration) bool {
	if p.spinMax == 0 || p.fds[2*len(p.socks)].Fd >= 0 {
		return false
	}
	limit := p.spin
	if timeout >= 0 {
		limit = min(limit, timeout)
	}
	for time.Since(start) < limit {
		for range 16 {
			if p.lookAtRings(want) {
				p.spin = min(2*p.spin, p.spinMax)
				return true
			}
		}
		if p.isClosing() {
			return false // sleep reports it
		}
		if p.idleSockets() {
			return true
		}
	}
	p.spin = max(p.spin/2, p.spinMax/8)
	return false
}

// isClosing reports whether a socket is being closed.
func (p *pollSet) isClosing() bool {
	closing := false
	for i, s := range p.socks {
		if s.half(p.which).gate.isClosing() {
			closing = p.recordError(i, net.ErrClosed)
		}
	}
	return closing
}

// countOverslept counts a sleep that the kernel did not end although packets arrived.
func (p *pollSet) countOverslept(want Events) {
	if want&EventRx == 0 {
		return
	}
	for _, s := range p.socks {
		if n, _ := s.rx.availableEntries(1); n > 0 {
			s.in.count.Overslept++
		}
	}
}

// sleepFor sleeps for at most d, and reports whether there is something.
func (p *pollSet) sleepFor(want Events, d time.Duration) (bool, error) {
	for _, s := range p.socks {
		if p.which&receiving != 0 {
			s.in.publishCounters()
		}
		if p.which&sending != 0 {
			s.out.publishCounters()
		}
		if s.tx.waitingEntries() > 0 && s.tx.needWakeup() {
			d = min(d, backlogRetry)
			if s.sleepsBlind() {
				_ = s.calls.sendCall() // as poll(2) does; Kick reports errors
			}
		}
	}
	if p.parker != nil && want == EventRx && d >= sys.MinPark {
		return p.parkFor(d)
	}
	return p.blockFor(want, d)
}

// blockFor blocks in ppoll for at most d, and reports whether there is something.
func (p *pollSet) blockFor(want Events, d time.Duration) (bool, error) {
	events := int16(0)
	if want&EventRx != 0 {
		events = unix.POLLIN
	}
	for i, s := range p.socks {
		h := s.half(p.which)
		h.wake.Sleep()
		p.fds[2*i] = unix.PollFd{Fd: int32(s.pollFD()), Events: events}
		p.fds[2*i+1] = unix.PollFd{Fd: int32(h.wake.FD()), Events: unix.POLLIN}
	}
	watched := &p.fds[2*len(p.socks)]
	watched.Revents = 0
	// After Sleep: see sys.Waker.
	some := p.lookAtRings(want)
	var err error
	if !some && !p.isClosing() {
		var woken int
		p.ts = unix.NsecToTimespec(int64(d))
		if woken, err = unix.Ppoll(p.fds, &p.ts, nil); woken == 0 && err == nil {
			p.countOverslept(want)
		}
	}
	for i, s := range p.socks {
		s.half(p.which).wake.Awake(p.fds[2*i+1].Revents != 0)
	}
	if p.isClosing() {
		return true, nil
	}
	if err != nil && !errors.Is(err, unix.EINTR) {
		return false, os.NewSyscallError("ppoll", err)
	}
	return p.lookAtRings(want) || watched.Revents != 0, nil
}
