package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// udpPeer is a connected UDP socket that moves a batch of datagrams in each system
// call (sendmmsg, recvmmsg). Its datagrams have no checksum, as the frames of
// the AF_XDP peers have none.
type udpPeer struct {
	fd      int
	payload []byte
	spins   bool // never sleeps
	out, in []mmsghdr
	buffers [][]byte
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

func openUDP(cfg *peerConfig) (peer, error) { return newUDPPeer(cfg, false) }

func openUDPSpin(cfg *peerConfig) (peer, error) { return newUDPPeer(cfg, true) }

func newUDPPeer(cfg *peerConfig, spins bool) (*udpPeer, error) {
	fd, err := openUDPSocket(cfg)
	if err != nil {
		return nil, err
	}
	p := &udpPeer{fd: fd, payload: cfg.frame[headersLen:], spins: spins}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_NO_CHECK, 1); err != nil {
		return nil, errors.Join(os.NewSyscallError("setsockopt SO_NO_CHECK", err), p.close())
	}
	p.out, p.in = make([]mmsghdr, batch), make([]mmsghdr, batch)
	for i := range batch {
		p.buffers = append(p.buffers, make([]byte, len(p.payload)))
		p.out[i].point(p.payload)
		p.in[i].point(p.buffers[i])
	}
	return p, nil
}

// openUDPSocket opens a socket that is bound and connected to the two ends of the cable.
// Receiving on it gives up after the time idle.
func openUDPSocket(cfg *peerConfig) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	fail := func(what string, err error) (int, error) {
		return -1, errors.Join(os.NewSyscallError(what, err), unix.Close(fd))
	}
	for _, opt := range []int{unix.SO_SNDBUFFORCE, unix.SO_RCVBUFFORCE} {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, opt, socketBuffer); err != nil {
			return fail("setsockopt SO_*BUFFORCE", err)
		}
	}
	timeout := unix.NsecToTimeval(int64(idle))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		return fail("setsockopt SO_RCVTIMEO", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Port: testPort, Addr: cfg.local.As4()}); err != nil {
		return fail("bind", err)
	}
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: testPort, Addr: cfg.remote.As4()}); err != nil {
		return fail("connect", err)
	}
	return fd, nil
}

// point makes the message consist of buf.
func (m *mmsghdr) point(buf []byte) {
	iov := &unix.Iovec{Base: &buf[0]}
	iov.SetLen(len(buf))
	m.hdr.Iov = iov
	m.hdr.SetIovlen(1)
}

// mmsg makes a system call on messages and returns how many it moved.
// Conditions that pass by themselves count as none.
func (p *udpPeer) mmsg(call uintptr, name string, msgs []mmsghdr, flags int) (int, error) {
	n, _, errno := unix.Syscall6(call, uintptr(p.fd), uintptr(unsafe.Pointer(&msgs[0])), uintptr(len(msgs)), uintptr(flags), 0, 0)
	if err := passing(errno); err != nil || errno != 0 {
		return 0, os.NewSyscallError(name, err)
	}
	return int(n), nil
}

// passing returns nil for an errno that says to try again, among them that the
// receive timeout is over.
func passing(errno unix.Errno) error {
	switch errno {
	case 0, unix.EAGAIN, unix.EINTR, unix.ENOBUFS:
		return nil
	}
	return errno
}

func (p *udpPeer) transmit(n int) (int, error) {
	return p.mmsg(unix.SYS_SENDMMSG, "sendmmsg", p.out[:n], 0)
}

func (p *udpPeer) send() error {
	_, err := p.transmit(batch)
	return err
}

// receive blocks until there is a datagram and takes what else is there.
func (p *udpPeer) receive() (int, error) {
	return p.mmsg(unix.SYS_RECVMMSG, "recvmmsg", p.in, unix.MSG_WAITFORONE)
}

func (p *udpPeer) seed(n int) error {
	for n > 0 {
		sent, err := p.transmit(min(n, batch))
		if err != nil {
			return err
		}
		n -= sent
	}
	return nil
}

// bounce sends the very bytes back that came in.
func (p *udpPeer) bounce() (int, error) {
	n, err := p.receive()
	for sent := 0; sent < n && err == nil; {
		var more int
		more, err = p.mmsg(unix.SYS_SENDMMSG, "sendmmsg", p.in[sent:n], 0)
		sent += more
	}
	return n, err
}

func (p *udpPeer) request() (bool, error) {
	if _, err := unix.Write(p.fd, p.payload); err != nil {
		return false, os.NewSyscallError("write", err)
	}
	if !p.spins {
		return p.answer(0)
	}
	for deadline := monotonic() + int64(idle); monotonic() < deadline; {
		if ok, err := p.answer(unix.MSG_DONTWAIT); ok || err != nil {
			return ok, err
		}
	}
	return false, nil
}

// answer receives one datagram.
func (p *udpPeer) answer(flags int) (bool, error) {
	buf := p.buffers[0]
	n, _, errno := unix.Syscall6(unix.SYS_RECVFROM, uintptr(p.fd), uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)), uintptr(flags), 0, 0)
	if err := passing(errno); err != nil {
		return false, os.NewSyscallError("recvfrom", err)
	}
	return errno == 0 && int(n) == len(buf), nil
}

// drops is empty: what the kernel drops on the way to a UDP socket is in the
// counters of the namespace.
func (p *udpPeer) drops() (map[string]uint64, error) { return map[string]uint64{}, nil }

func (p *udpPeer) close() error { return os.NewSyscallError("close", unix.Close(p.fd)) }

// gsoPeer is a UDP socket that hands the kernel up to 64 datagrams as one
// (UDP_SEGMENT), and takes what the kernel's receive offload put together
// (UDP_GRO). The kernel insists on checksums there.
type gsoPeer struct {
	fd      int
	segment int    // payload bytes of a datagram
	out     []byte // a batch of them
	in      []byte
	oob     []byte
}

func openUDPGSO(cfg *peerConfig) (peer, error) {
	fd, err := openUDPSocket(cfg)
	if err != nil {
		return nil, err
	}
	payload := cfg.frame[headersLen:]
	p := &gsoPeer{fd: fd, segment: len(payload), in: make([]byte, maxDatagram), oob: make([]byte, 128)}
	for range min(batch, maxDatagram/len(payload)) {
		p.out = append(p.out, payload...)
	}
	for opt, value := range map[int]int{unix.UDP_SEGMENT: p.segment, unix.UDP_GRO: 1} {
		if err := unix.SetsockoptInt(fd, unix.SOL_UDP, opt, value); err != nil {
			return nil, errors.Join(os.NewSyscallError("setsockopt UDP_SEGMENT and UDP_GRO", err), p.close())
		}
	}
	return p, nil
}

// maxDatagram is the largest payload of a UDP datagram over IPv4, in bytes.
const maxDatagram = 65507

func (p *gsoPeer) transmit(payload []byte) error {
	_, err := unix.Write(p.fd, payload)
	var errno unix.Errno
	if errors.As(err, &errno) {
		err = passing(errno)
	}
	return os.NewSyscallError("write", err)
}

func (p *gsoPeer) send() error { return p.transmit(p.out) }

// take receives what the kernel put together and returns its bytes.
func (p *gsoPeer) take() ([]byte, error) {
	n, oobn, _, _, err := unix.Recvmsg(p.fd, p.in, p.oob, 0)
	var errno unix.Errno
	if errors.As(err, &errno) && passing(errno) == nil {
		return nil, nil
	}
	if err != nil {
		return nil, os.NewSyscallError("recvmsg", err)
	}
	if size := groSize(p.oob[:oobn]); size != 0 && size != p.segment {
		return nil, fmt.Errorf("received datagrams of %d bytes, sent %d", size, p.segment)
	}
	return p.in[:n], nil
}

// groSize returns the size of the datagrams that the kernel put together, 0 if
// there was one only.
func groSize(oob []byte) int {
	for len(oob) >= unix.SizeofCmsghdr {
		hdr, data, rest, err := unix.ParseOneSocketControlMessage(oob)
		if err != nil {
			return 0
		}
		if hdr.Level == unix.SOL_UDP && hdr.Type == unix.UDP_GRO && len(data) >= 4 {
			return int(binary.NativeEndian.Uint32(data))
		}
		oob = rest
	}
	return 0
}

func (p *gsoPeer) receive() (int, error) {
	payload, err := p.take()
	return len(payload) / p.segment, err
}

func (p *gsoPeer) seed(n int) error {
	for n > 0 {
		some := min(n, len(p.out)/p.segment)
		if err := p.transmit(p.out[:some*p.segment]); err != nil {
			return err
		}
		n -= some
	}
	return nil
}

func (p *gsoPeer) bounce() (int, error) {
	payload, err := p.take()
	if err != nil || len(payload) == 0 {
		return 0, err
	}
	return len(payload) / p.segment, p.transmit(payload)
}

func (p *gsoPeer) request() (bool, error) { return false, errNoTest }

func (p *gsoPeer) drops() (map[string]uint64, error) { return map[string]uint64{}, nil }

func (p *gsoPeer) close() error { return os.NewSyscallError("close", unix.Close(p.fd)) }

// monotonic returns the time of the monotonic clock in nanoseconds.
func monotonic() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // cannot fail for this clock
	return ts.Nano()
}
