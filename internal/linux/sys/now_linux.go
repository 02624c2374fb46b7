// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// System calls that bypass the runtime. All but PollAlone do not wait. After a sleep, the first
// system call known to the runtime wakes its monitor thread, which then checks every 20 µs, as long
// as the process is busy, whether the call has ended.

// PollNow is poll(2) with a timeout of zero. It returns the number of descriptors with events.
func PollNow(fds []unix.PollFd) (int, error) { return PollAlone(fds, 0) }

// PollAlone is poll(2) in a process that has nothing else to do meanwhile, like one in C. The
// runtime is not told, so no thread takes the processor over, to give it back after the call: other
// goroutines wait for it, up to 10 ms, when the monitor thread interrupts the call (EINTR).
func PollAlone(fds []unix.PollFd, limit time.Duration) (int, error) {
	timeout := unix.NsecToTimespec(int64(limit))
	n, _, errno := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(unsafe.SliceData(fds))), uintptr(len(fds)),
		uintptr(unsafe.Pointer(&timeout)), 0, 0, 0)
	return result(n, errno)
}

// EpollNow is epoll_wait(2) with a timeout of zero. It returns the number of events.
func EpollNow(epoll int, events []unix.EpollEvent) (int, error) {
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(epoll),
		uintptr(unsafe.Pointer(unsafe.SliceData(events))), uintptr(len(events)), 0, 0, 0)
	return result(n, errno)
}

// SendNow is send(2) with MSG_DONTWAIT and MSG_NOSIGNAL.
func SendNow(socket int, b []byte) error {
	_, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(socket), uintptr(unsafe.Pointer(unsafe.SliceData(b))),
		uintptr(len(b)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// ReceiveNow is recv(2) with MSG_DONTWAIT. It returns 0 at the end.
func ReceiveNow(socket int, b []byte) (int, error) {
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(socket), uintptr(unsafe.Pointer(unsafe.SliceData(b))),
		uintptr(len(b)), unix.MSG_DONTWAIT, 0, 0)
	return result(n, errno)
}

func result(n uintptr, errno unix.Errno) (int, error) {
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
