// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"errors"
	"net"
	"slices"
	"time"
)

// A Poller waits for several sockets that one goroutine serves, or from which it receives, or on
// which it sends. It is not safe for concurrent use; Wake and Close of any of its sockets, from any
// goroutine, wake it.
type Poller struct {
	set   pollSet
	ready []Ready
}

// Ready is a socket with events or an error.
type Ready struct {
	Socket *Socket
	Events Events // present events; 0 with an error
	// Err is the error that Socket.Poll would return. After an ErrLinkDown or ErrInterfaceGone the
	// Poller continues with the socket as soon as it works again, by itself or by Socket.Recover;
	// until then it repeats the error five times per second. After net.ErrClosed it has removed the
	// socket.
	Err error
}

// NewPoller returns a Poller for the sockets.
func NewPoller(socks ...*Socket) *Poller {
	p := &Poller{ready: make([]Ready, 0, len(socks))}
	p.set.initSockets(slices.Clone(socks)...)
	return p
}

// Watch makes Poll also return when a descriptor is readable. The descriptor replaces the previous
// one; -1 means none. The caller keeps it open. Poll does not spin meanwhile, because spinning
// would not see the descriptor.
func (p *Poller) Watch(fd int) {
	watched := &p.set.fds[2*len(p.set.socks)].Fd
	if p.set.watched {
		_ = p.set.parker.Remove(int(*watched)) // an error means that the caller closed it too early
		p.set.watched = false
	}
	*watched = int32(fd)
}

// Poll waits like [Socket.Poll] until there is something to do for one of the sockets, and returns
// the sockets with something to do; none after the timeout. The slice is valid until the next call.
// A socket with an error does not prevent the others from being served.
//
// The error is net.ErrClosed when all sockets are closed, or ErrConcurrentUse.
func (p *Poller) Poll(want Events, timeout time.Duration) ([]Ready, error) {
	which := sideOf(want)
	p.ready = p.ready[:0]
	if err := p.enterSockets(which); err != nil {
		return nil, err
	}
	if len(p.ready) > 0 {
		timeout = 0 // an error must be reported
	} else if len(p.set.socks) == 0 {
		return nil, net.ErrClosed
	}
	err := p.set.waitFor(which, want, timeout)
	p.leaveSockets(which, len(p.set.socks))
	if err != nil {
		return nil, err
	}
	for i := 0; i < len(p.set.found); i++ {
		f := p.set.found[i]
		if f.Err != nil {
			f.Events = 0
		}
		if f.Events != 0 || f.Err != nil {
			p.ready = append(p.ready, f)
		}
		if errors.Is(f.Err, net.ErrClosed) {
			p.dropSocket(i)
			i--
		} else if f.Err != nil { // it repeats the error after linkCheck, however short it sleeps meanwhile
			p.set.reported = time.Now()
			p.set.checked = p.set.reported
		}
	}
	return p.ready, nil
}

// enterSockets enters all sockets that are not closed, or none.
func (p *Poller) enterSockets(which side) error {
	for i := 0; i < len(p.set.socks); i++ {
		s := p.set.socks[i]
		switch err := s.enterHalves(which); {
		case errors.Is(err, net.ErrClosed):
			p.ready = append(p.ready, Ready{Socket: s, Err: err})
			p.dropSocket(i)
			i--
		case err != nil:
			p.leaveSockets(which, i)
			return err
		}
	}
	return nil
}

// leaveSockets leaves the first n sockets.
func (p *Poller) leaveSockets(which side, n int) {
	for _, s := range p.set.socks[:n] {
		s.leaveHalves(which)
	}
}

// dropSocket removes a socket from the Poller.
func (p *Poller) dropSocket(i int) {
	p.set.socks = slices.Delete(p.set.socks, i, i+1)
	p.set.found = slices.Delete(p.set.found, i, i+1)
	if p.set.parker != nil {
		p.set.parked = slices.Delete(p.set.parked, i, i+1)
	}
	watched := p.set.fds[len(p.set.fds)-1]
	p.set.fds = append(p.set.fds[:2*len(p.set.socks)], watched)
}
