// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"fmt"
	"time"
)

// Events are the events that Poll waits for and finds.
type Events uint8

const (
	// EventRx means that Receive has packets.
	EventRx Events = 1 << iota
	// EventCompletion means that Completed has frames. The kernel does not signal them, so Poll
	// checks the ring at growing intervals of 20µs to 1ms.
	EventCompletion
	// EventWake means that Wake was called since the last Poll of the goroutine that receives, or
	// of the one that sends. Poll always waits for it.
	EventWake
)

const (
	// linkCheck is how often a sleeping Poll checks that the interface still exists. The kernel
	// does not wake sleepers when it disappears.
	linkCheck = 200 * time.Millisecond
	// backlogRetry is how soon Poll offers the kernel refused packets again. Waiting for POLLOUT
	// instead would spin: it is ready whenever the ring is less than half full.
	backlogRetry  = 200 * time.Microsecond
	completionMin = 20 * time.Microsecond
	completionMax = time.Millisecond
)

// Poll waits until one of the wanted events, or Wake, or the timeout, and returns the present
// events; 0 after the timeout. A negative timeout means none. Poll first spins, see Config.Spin,
// and then sleeps in poll(2), which also makes the kernel process the TX and fill rings.
//
// It returns net.ErrClosed when the socket is closed, and ErrLinkDown or ErrInterfaceGone when it
// finds that no packet can arrive, which it checks every 200ms.
//
// The goroutine that receives may wait for EventRx, and the one that sends for EventCompletion or
// for EventWake alone, at the same time.
func (s *Socket) Poll(want Events, timeout time.Duration) (Events, error) {
	which := sideOf(want)
	if err := s.enterHalves(which); err != nil {
		return 0, err
	}
	p := &s.half(which).polls
	err := p.waitFor(which, want, timeout)
	f := p.found[0]
	s.leaveHalves(which)
	if err == nil {
		err = f.Err
	}
	if err != nil {
		return 0, err
	}
	return f.Events, nil
}

// ready returns the events that the rings have.
func (s *Socket) ready(which side, want Events) (ev Events) {
	if s.takeWake(which) {
		ev = EventWake
	}
	if want&EventRx != 0 {
		// A corrupt ring counts as ready: Receive reports it.
		if n, ok := s.rx.availableEntries(1); n > 0 || !ok {
			ev |= EventRx
		}
	}
	if want&EventCompletion != 0 {
		if n, ok := s.endedFrames(1); n > 0 || !ok || len(s.reclaimed) > 0 {
			ev |= EventCompletion
		}
	}
	return ev
}

// linkState returns an error if the kernel's socket cannot work.
func (s *Socket) linkState() error {
	errno := s.calls.receiveCall()
	if err := linkError(errno); err != nil {
		if s.lacksProgram() {
			err = ErrNoProgram
		}
		return fmt.Errorf("%w: %s: %w", err, s.cfg.Interface, errno)
	}
	return nil
}
