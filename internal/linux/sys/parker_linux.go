// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"errors"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// parkerLag is how much later than requested the runtime may end a wait: its epoll_wait(2) counts
// in milliseconds.
const parkerLag = time.Millisecond

// MinPark is the shortest limit of a [Parker], which is less exact than ppoll(2).
const MinPark = 2 * parkerLag

// A Parker lets one goroutine, its owner, wait for descriptors in the runtime's network poller, as
// a goroutine waits for a network connection. A goroutine that sleeps in ppoll(2) keeps its thread:
// the scheduler has to wake another one for other goroutines, needs a processor again when the call
// returns, and keeps its monitor thread awake. A goroutine that is locked to its thread is better
// off in ppoll: otherwise its thread would sleep, too, and another one would have to poll.
//
// Descriptors are in a separate epoll set, which the network poller watches for events, not for
// readiness: the owner has to look for work before it sleeps.
type Parker struct {
	file *os.File // the epoll set
	conn syscall.RawConn
	try  func(uintptr) bool // looks for work; a field, so that Park does not allocate
}

// NewParker returns a Parker with no descriptors, whose owner looks for work with ready. An unused
// Parker is closed by the garbage collector.
func NewParker(ready func() bool) (*Parker, error) {
	set, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(set, true); err != nil { // otherwise the file would not use the network poller
		return nil, errors.Join(os.NewSyscallError("fcntl", err), unix.Close(set))
	}
	p := &Parker{file: os.NewFile(uintptr(set), "epoll"), try: func(uintptr) bool { return ready() }}
	if p.conn, err = p.file.SyscallConn(); err != nil {
		return nil, errors.Join(err, p.file.Close())
	}
	return p, nil
}

// Add makes Park look for work at each event of a descriptor. Closing the descriptor removes it.
func (p *Parker) Add(fd int) error {
	return p.controlEpoll(unix.EPOLL_CTL_ADD, fd)
}

// Remove removes an open descriptor.
func (p *Parker) Remove(fd int) error {
	return p.controlEpoll(unix.EPOLL_CTL_DEL, fd)
}

func (p *Parker) controlEpoll(op, fd int) error {
	var err error
	if e := p.conn.Control(func(set uintptr) {
		err = unix.EpollCtl(int(set), op, fd, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(fd)})
	}); e != nil {
		return e
	}
	return os.NewSyscallError("epoll_ctl", err)
}

// Limit sets the limit of the next Park, which is at least MinPark; Park may end up to two
// milliseconds earlier. It overrides an Interrupt, so the owner calls it before it uses its
// [Waker].
func (p *Parker) Limit(limit time.Duration) error {
	return p.file.SetReadDeadline(time.Now().Add(limit - parkerLag))
}

// Park sleeps until ready, which it calls first and after each event, returns true; then it returns
// true. It returns false if it was interrupted or the limit has passed.
func (p *Parker) Park() (bool, error) {
	err := p.conn.Read(p.try)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return false, nil
	}
	return err == nil, err
}

// Interrupt ends the current Park, or that of the current Limit. It may be called from any
// goroutine, also after Close.
func (p *Parker) Interrupt() {
	_ = p.file.SetReadDeadline(time.Unix(1, 0)) // an error means that it is closed, so Park has ended
}

// Close ends a current Park, and closes the epoll set.
func (p *Parker) Close() error { return p.file.Close() }
