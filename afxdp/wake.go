//go:build linux

package afxdp

import (
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// waker interrupts a goroutine that sleeps in Poll. The eventfd is written
// only while somebody sleeps, so that waking a busy loop costs no system call.
type waker struct {
	pending  atomic.Bool // Wake was called and Poll has not reported it
	sleeping atomic.Bool

	mu sync.Mutex // guards fd against being closed while it is written
	fd int
}

func (w *waker) open() (err error) {
	w.fd, err = unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	return os.NewSyscallError("eventfd", err)
}

// force makes a current or the next sleep return.
func (w *waker) force() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fd >= 0 {
		// The counter cannot overflow before the sleeper reads it.
		_, _ = unix.Write(w.fd, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
}

// drain resets the eventfd after a sleep.
func (w *waker) drain() {
	var b [8]byte
	_, _ = unix.Read(w.fd, b[:])
}

func (w *waker) close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	fd := w.fd
	w.fd = -1
	return os.NewSyscallError("close", unix.Close(fd))
}

// Wake makes a current or the next Poll return with EventWake. It may be called
// from any goroutine, also after Close.
//
// Either we see that the owner sleeps and write, or the owner, who sets
// sleeping before it looks at pending, sees pending: both variables are
// sequentially consistent.
func (s *Socket) Wake() {
	s.wake.pending.Store(true)
	if s.wake.sleeping.Load() {
		s.wake.force()
	}
}
