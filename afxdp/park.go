// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"slices"
	"time"

	"github.com/libra-ina/libra/internal/linux/sys"
)

// Park makes later calls of Poll for EventRx sleep in Go's network poller, as a goroutine that
// waits for a network connection does, instead of ppoll(2). That is right for a goroutine that is
// not locked to its thread, in particular if others pass work to it: they run on the thread that
// ppoll would block, and no other thread must be woken. It is wrong for a locked goroutine. The
// last two milliseconds of a timeout are slept in ppoll, which is exact. The Poller then has a
// descriptor, which Close closes.
func (p *Poller) Park() error { return p.set.openParker() }

// Close closes the descriptor of Park. The sockets stay open; Poll must not be called again.
func (p *Poller) Close() error {
	if p.set.parker == nil {
		return nil
	}
	return p.set.parker.Close()
}

func (p *pollSet) openParker() (err error) {
	p.parked = make([]uint32, len(p.socks))
	p.parker, err = sys.NewParker(p.hasReason)
	return err
}

// hasReason reports whether there is a reason to end a sleep.
func (p *pollSet) hasReason() bool {
	return p.lookAtRings(EventRx) || p.isClosing() || p.isReadable()
}

// isReadable reports whether the watched descriptor is readable.
func (p *pollSet) isReadable() bool {
	fds := p.fds[2*len(p.socks):]
	if fds[0].Fd < 0 {
		return false
	}
	n, err := sys.PollNow(fds)
	return n > 0 || err != nil
}

// addToParker adds the descriptors that are new since the last sleep to the parker.
func (p *pollSet) addToParker() error {
	for i, s := range p.socks {
		if p.parked[i] != s.opened {
			if err := p.parker.Add(s.fd); err != nil {
				return err
			}
			p.parked[i] = s.opened
		}
	}
	if fd := p.fds[2*len(p.socks)].Fd; fd >= 0 && !p.watched {
		if err := p.parker.Add(int(fd)); err != nil {
			return err
		}
		p.watched = true
	}
	return nil
}

// parkFor sleeps in the parker for at most d, and reports whether there is something.
func (p *pollSet) parkFor(d time.Duration) (bool, error) {
	if err := p.addToParker(); err != nil {
		return false, err
	}
	if err := p.parker.Limit(d); err != nil {
		return false, err
	}
	for _, s := range p.socks {
		s.half(p.which).wake.Park(p.parker)
	}
	some, err := p.parker.Park()
	for _, s := range p.socks {
		s.half(p.which).wake.Awake(false)
	}
	if some || err != nil {
		return some, err
	}
	some = p.hasReason()
	if !slices.ContainsFunc(p.found, func(f Ready) bool { return f.Events&EventWake != 0 || f.Err != nil }) {
		p.countOverslept(EventRx)
	}
	return some, nil
}
