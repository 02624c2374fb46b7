// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import "github.com/libra-ina/libra/internal/linux/sys"

// half is the part of a socket that belongs to one goroutine: the one that receives, or the one
// that sends. Fields that both would write exist twice.
type half struct {
	gate      gate
	wake      sys.Waker
	polls     pollSet
	count     Counters
	published publishedCounters
}

// side selects the halves of a socket that a call needs.
type side uint8

const (
	receiving side = 1 << iota
	sending
	both = receiving | sending
)

// sideOf returns the side of a Poll for these events. One for nothing but Wake is the sender's,
// which waits for a time to send.
func sideOf(want Events) side {
	switch want & (EventRx | EventCompletion) {
	case EventRx:
		return receiving
	case EventRx | EventCompletion:
		return both
	}
	return sending
}

// enterHalves lets the caller into the halves, or into none.
func (s *Socket) enterHalves(which side) error {
	if which&receiving != 0 {
		if err := s.in.gate.enterGate(); err != nil {
			return err
		}
	}
	if which&sending != 0 {
		if err := s.out.gate.enterGate(); err != nil {
			s.leaveHalves(which & receiving)
			return err
		}
	}
	return nil
}

func (s *Socket) leaveHalves(which side) {
	if which&receiving != 0 {
		s.in.gate.leaveGate()
	}
	if which&sending != 0 {
		s.out.gate.leaveGate()
	}
}

// half returns the half with which a caller in these halves sleeps and counts.
func (s *Socket) half(which side) *half {
	if which&receiving != 0 {
		return &s.in
	}
	return &s.out
}

// takeWake reports whether Wake was called since the last report to one of these halves.
func (s *Socket) takeWake(which side) bool {
	woken := which&receiving != 0 && s.in.wake.Take()
	return which&sending != 0 && s.out.wake.Take() || woken
}

// closing reports whether Close has begun.
func (s *Socket) closing() bool { return s.in.gate.isClosing() }

// closeGates closes the gates of both halves, after the goroutines inside have left. It returns
// false if that was done before, or is in progress.
func (s *Socket) closeGates() bool {
	if !s.in.gate.closeGate(s.in.wake.Interrupt) {
		return false
	}
	s.out.gate.closeGate(s.out.wake.Interrupt)
	return true
}

// Wake makes a current or the next Poll return with EventWake: one Poll of the goroutine that
// receives, and one of the goroutine that sends. It may be called from any goroutine, even after
// Close.
func (s *Socket) Wake() {
	s.in.wake.Wake()
	s.out.wake.Wake()
}
