// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import "github.com/libra-ina/libra/internal/sys"

// half is what one goroutine has of a socket for itself: the one that receives, or the
// one that sends. What both would write is there twice.
type half struct {
	gate      gate
	wake      sys.Waker
	polls     pollSet
	count     Counters
	published publishedCounters
}

// side tells which halves of a socket a call needs.
type side uint8

const (
	receiving side = 1 << iota
	sending
	both = receiving | sending
)

// sideOf is whose a Poll for these events is. One for nothing but Wake is the sender's,
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

// enter lets the caller into the halves, or into none.
func (s *Socket) enter(which side) error {
	if which&receiving != 0 {
		if err := s.in.gate.enter(); err != nil {
			return err
		}
	}
	if which&sending != 0 {
		if err := s.out.gate.enter(); err != nil {
			s.leave(which & receiving)
			return err
		}
	}
	return nil
}

func (s *Socket) leave(which side) {
	if which&receiving != 0 {
		s.in.gate.leave()
	}
	if which&sending != 0 {
		s.out.gate.leave()
	}
}

// half is the one by which a caller in these halves sleeps and counts.
func (s *Socket) half(which side) *half {
	if which&receiving != 0 {
		return &s.in
	}
	return &s.out
}

// takeWake reports whether Wake was called since one of these halves was told.
func (s *Socket) takeWake(which side) bool {
	woken := which&receiving != 0 && s.in.wake.Take()
	return which&sending != 0 && s.out.wake.Take() || woken
}

// closing reports whether Close has begun.
func (s *Socket) closing() bool { return s.in.gate.closing() }

// shut closes the gates of both halves, when the goroutines inside have left. It
// returns false if that was done before, or is being done.
func (s *Socket) shut() bool {
	if !s.in.gate.close(s.in.wake.Interrupt) {
		return false
	}
	s.out.gate.close(s.out.wake.Interrupt)
	return true
}

// Wake makes a current or the next Poll return with EventWake: one of the goroutine that
// receives, and one of the goroutine that sends. It may be called from any goroutine,
// also after Close.
func (s *Socket) Wake() {
	s.in.wake.Wake()
	s.out.wake.Wake()
}
