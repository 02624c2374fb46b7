// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/wire"
)

// udp is a connected UDP socket that moves a batch of datagrams in each system
// call (sendmmsg, recvmmsg). Its datagrams have no checksum, as the frames of
// the AF_XDP programs have none.
type udp struct {
	cfg     *programConfig
	fd      int // -1 before open
	out, in []mmsghdr
}

// mmsghdr is struct mmsghdr of recvmmsg(2).
type mmsghdr struct {
	hdr unix.Msghdr
	len uint32
	_   [4]byte
}

// socketBuffer is the size of the socket's send and receive buffers in bytes;
// it holds several windows of the largest frame.
const socketBuffer = 8 << 20

// openProgram opens a socket that is bound and connected to the two ends of the cable.
// Receiving on it gives up after the time idle.
func (p *udp) openProgram() (err error) {
	payload := p.cfg.frame[wire.EnvelopeLen:]
	p.out, p.in = make([]mmsghdr, batch), make([]mmsghdr, batch)
	if p.cfg.Test == RequestResponse {
		p.in = p.in[:1] // looking for more than the answer would take time
	}
	for i := range p.out {
		p.out[i].pointTo(payload)
	}
	for i := range p.in {
		p.in[i].pointTo(make([]byte, len(payload)))
	}
	if p.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return os.NewSyscallError("socket", err)
	}
	timeout := unix.NsecToTimeval(int64(idle))
	return cmp.Or(
		os.NewSyscallError("setsockopt SO_NO_CHECK", unix.SetsockoptInt(p.fd, unix.SOL_SOCKET, unix.SO_NO_CHECK, 1)),
		os.NewSyscallError("setsockopt SO_SNDBUFFORCE",
			unix.SetsockoptInt(p.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, socketBuffer)),
		os.NewSyscallError("setsockopt SO_RCVBUFFORCE",
			unix.SetsockoptInt(p.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, socketBuffer)),
		os.NewSyscallError("setsockopt SO_RCVTIMEO",
			unix.SetsockoptTimeval(p.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout)),
		os.NewSyscallError("bind", unix.Bind(p.fd, &unix.SockaddrInet4{Port: testPort, Addr: p.cfg.Self.IP.As4()})),
		os.NewSyscallError("connect", unix.Connect(p.fd,
			&unix.SockaddrInet4{Port: testPort, Addr: p.cfg.Aggregator.IP.As4()})),
	)
}

func (m *mmsghdr) pointTo(buf []byte) {
	iov := &unix.Iovec{Base: &buf[0]}
	iov.SetLen(len(buf))
	m.hdr.Iov = iov
	m.hdr.SetIovlen(1)
}

// mmsg makes a system call on messages and returns how many it moved.
// Conditions that pass by themselves, such as the end of the receive timeout, count as none.
func mmsg(fd int, call uintptr, name string, msgs []mmsghdr, flags int) (int, error) {
	n, _, errno := unix.Syscall6(call, uintptr(fd), uintptr(unsafe.Pointer(&msgs[0])), uintptr(len(msgs)),
		uintptr(flags), 0, 0)
	switch errno {
	case 0:
		return int(n), nil
	case unix.EAGAIN, unix.EINTR, unix.ENOBUFS:
		return 0, nil
	}
	return 0, os.NewSyscallError(name, errno)
}

func (p *udp) transmitFrames(n int) (int, error) {
	return mmsg(p.fd, unix.SYS_SENDMMSG, "sendmmsg", p.out[:n], 0)
}

// receiveFrames blocks until a datagram arrives and takes all that have arrived.
func (p *udp) receiveFrames() (int, error) {
	return mmsg(p.fd, unix.SYS_RECVMMSG, "recvmmsg", p.in, unix.MSG_WAITFORONE)
}

// bounceFrames sends the very bytes back that came in.
func (p *udp) bounceFrames() (int, error) {
	n, err := p.receiveFrames()
	for sent := 0; sent < n && err == nil; {
		var more int
		more, err = mmsg(p.fd, unix.SYS_SENDMMSG, "sendmmsg", p.in[sent:n], 0)
		sent += more
	}
	return n, err
}

// countDrops is empty: what the kernel drops on the way to a UDP socket is in the
// counters of the namespace.
func (p *udp) countDrops() (map[string]uint64, error) { return map[string]uint64{}, nil }

func (p *udp) closeProgram() error {
	if p.fd < 0 {
		return nil
	}
	return os.NewSyscallError("close", unix.Close(p.fd))
}
