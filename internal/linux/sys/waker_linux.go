// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Waker interrupts a goroutine, its owner, that sleeps in poll(2) or in a [Parker]. The eventfd is
// written only while the owner sleeps, so that waking a busy loop costs no system call. The zero
// Waker has no eventfd: FD is -1, and Close does nothing.
//
// The owner calls Sleep, checks for work and Pending again, polls FD if there is neither, and calls
// Awake; or it calls Park, sleeps in that Parker, and calls Awake. Either Wake sees that the owner
// sleeps, or the owner sees that Wake was called: both variables are sequentially consistent.
type Waker struct {
	pending  atomic.Bool
	sleeping atomic.Pointer[Parker] // nil while the owner is awake, inPoll if it sleeps without a Parker

	mu   sync.Mutex // keeps the descriptor open while it is written
	file int        // the descriptor plus one, so that the zero Waker has none
}

// inPoll stands for the Parker of an owner that sleeps in poll(2).
var inPoll = new(Parker)

// Open creates the eventfd.
func (w *Waker) Open() error {
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	w.file = fd + 1
	return os.NewSyscallError("eventfd", err)
}

// FD returns the descriptor to poll for POLLIN. Only the owner may call it.
func (w *Waker) FD() int { return w.file - 1 }

// Wake ends the owner's current or next sleep, and makes Take report it. It may be called from any
// goroutine, also after Close. Calls that Take has not reported yet count as one.
func (w *Waker) Wake() {
	if w.pending.Swap(true) {
		return
	}
	// Loaded once: the eventfd must not be written for an owner that has woken in the meantime.
	if in := w.sleeping.Load(); in != nil {
		w.endSleep(in)
	}
}

// Interrupt ends the current or next sleep without being reported by Take. An owner that is about
// to sleep in a Parker checks for the reason by itself.
func (w *Waker) Interrupt() { w.endSleep(w.sleeping.Load()) }

// endSleep ends a sleep in a Parker, or in poll(2).
func (w *Waker) endSleep(in *Parker) {
	if in != nil && in != inPoll {
		in.Interrupt()
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	one := [8]byte{0: 1, 7: 1} // not zero in either byte order
	// The counter cannot overflow before the owner reads it. Writing to descriptor -1 does nothing.
	_, _ = unix.Write(w.FD(), one[:])
}

// Sleep announces a sleep in poll(2).
func (w *Waker) Sleep() { w.sleeping.Store(inPoll) }

// Park announces a sleep in a Parker whose limit is set.
func (w *Waker) Park(in *Parker) { w.sleeping.Store(in) }

// Sleeping reports whether the owner is between Sleep or Park and Awake.
func (w *Waker) Sleeping() bool { return w.sleeping.Load() != nil }

// Awake ends a sleep. readable reports whether poll found FD readable. A Wake or an Interrupt that
// saw the owner sleep may still be about to write; then the next sleep ends at once and finds FD
// readable.
func (w *Waker) Awake(readable bool) {
	w.sleeping.Store(nil)
	if readable {
		var b [8]byte
		_, _ = unix.Read(w.FD(), b[:])
	}
}

// Pending reports whether Wake was called since the last Take.
func (w *Waker) Pending() bool { return w.pending.Load() }

// Take reports whether Wake was called since the last Take. Only one caller gets true.
func (w *Waker) Take() bool { return w.pending.Load() && w.pending.CompareAndSwap(true, false) }

// Close closes the eventfd. It may be called more than once.
func (w *Waker) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.file == 0 {
		return nil
	}
	fd := w.FD()
	w.file = 0
	return os.NewSyscallError("close", unix.Close(fd))
}
