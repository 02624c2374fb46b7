// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"errors"
	"net"
	"os"
	"strings"
	"time"
	"unsafe"

	"github.com/asavie/xdp"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/bench/harness"
	"github.com/libra-ina/libra/wire"
)

// asavie is github.com/asavie/xdp, used as in its examples, with the rings
// and batches of the other AF_XDP programs.
type asavie struct {
	cfg     *programConfig
	ifindex int
	prog    *xdp.Program
	sock    *xdp.Socket
}

var _ mover = (*asavie)(nil)

func (p *asavie) open() (err error) {
	device, err := net.InterfaceByName(p.cfg.Interface)
	if err != nil {
		return err
	}
	p.ifindex = device.Index
	opts := &xdp.SocketOptions{
		NumFrames: umemFrames, FrameSize: 2048, FillRingNumDescs: ringSize, CompletionRingNumDescs: ringSize,
		RxRingNumDescs: ringSize, TxRingNumDescs: ringSize,
	}
	for deadline := time.Now().Add(rebind); ; time.Sleep(10 * time.Millisecond) {
		p.sock, err = xdp.NewSocket(p.ifindex, 0, opts)
		// The library does not wrap the kernel's answer.
		if err == nil || !strings.Contains(err.Error(), unix.EBUSY.Error()) || time.Now().After(deadline) {
			break
		}
	}
	if err != nil {
		return err
	}
	for i := range umemFrames {
		d := xdp.Desc{Addr: uint64(i) * 2048, Len: uint32(len(p.cfg.frame))}
		copy(p.sock.GetFrame(d), p.cfg.frame)
	}
	if p.cfg.Test == Transmit {
		return nil
	}
	if p.prog, err = xdp.NewProgram(1); err != nil {
		return err
	}
	if err := errors.Join(p.prog.Attach(p.ifindex), p.prog.Register(0, p.sock.FD())); err != nil {
		return err
	}
	p.sock.Fill(p.sock.GetDescs(ringSize))
	return nil
}

// transmit sends up to n frames and takes back what was sent before.
func (p *asavie) transmit(n int) (int, error) {
	descs := p.sock.GetDescs(n)
	for i := range descs {
		descs[i].Len = uint32(len(p.cfg.frame))
	}
	n = p.sock.Transmit(descs)
	p.complete()
	return n, nil
}

func (p *asavie) complete() {
	if n := p.sock.NumCompleted(); n > 0 {
		p.sock.Complete(n)
	}
}

// await takes a batch of what came in. It looks at the ring for as long as the other programs do
// before it calls the library's Poll, which always makes a system call.
func (p *asavie) await() ([]xdp.Desc, error) {
	n := p.sock.NumReceived()
	for start := time.Now(); n == 0 && time.Since(start) < spin; {
		for i := 0; i < 16 && n == 0; i++ {
			n = p.sock.NumReceived()
		}
	}
	if n == 0 {
		var err error
		if n, _, err = p.sock.Poll(int(idle.Milliseconds())); err != nil {
			return nil, err
		}
	}
	return p.sock.Receive(min(n, batch)), nil
}

func (p *asavie) receive() (int, error) {
	descs, err := p.await()
	p.sock.Fill(descs)
	return len(descs), err
}

func (p *asavie) bounce() (int, error) {
	descs, err := p.await()
	for _, d := range descs {
		turnRound(p.sock.GetFrame(d))
	}
	if len(descs) > 0 {
		p.sock.Transmit(descs)
	}
	p.complete()
	p.sock.Fill(p.sock.GetDescs(min(batch, p.sock.NumFreeFillSlots())))
	return len(descs), err
}

func (p *asavie) drops() (map[string]uint64, error) {
	st, err := p.sock.Stats()
	k := st.KernelStats
	return map[string]uint64{
		"socket: bad descriptor":  k.Rx_invalid_descs + k.Tx_invalid_descs,
		"socket: RX dropped":      k.Rx_dropped,
		"socket: RX ring full":    k.Rx_ring_full,
		"socket: fill ring empty": k.Rx_fill_ring_empty_descs,
	}, err
}

func (p *asavie) close() error {
	var err error
	if p.prog != nil {
		err = p.prog.Detach(p.ifindex)
	}
	return errors.Join(err, harness.Close(p.prog), harness.Close(p.sock))
}

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

// open opens a socket that is bound and connected to the two ends of the cable.
// Receiving on it gives up after the time idle.
func (p *udp) open() (err error) {
	payload := p.cfg.frame[wire.EnvelopeLen:]
	p.out, p.in = make([]mmsghdr, batch), make([]mmsghdr, batch)
	if p.cfg.Test == RequestResponse {
		p.in = p.in[:1] // looking for more than the answer would take time
	}
	for i := range p.out {
		p.out[i].point(payload)
	}
	for i := range p.in {
		p.in[i].point(make([]byte, len(payload)))
	}
	if p.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return os.NewSyscallError("socket", err)
	}
	timeout := unix.NsecToTimeval(int64(idle))
	return cmp.Or(
		os.NewSyscallError("setsockopt SO_NO_CHECK", unix.SetsockoptInt(p.fd, unix.SOL_SOCKET, unix.SO_NO_CHECK, 1)),
		os.NewSyscallError("setsockopt SO_SNDBUFFORCE", unix.SetsockoptInt(p.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, socketBuffer)),
		os.NewSyscallError("setsockopt SO_RCVBUFFORCE", unix.SetsockoptInt(p.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, socketBuffer)),
		os.NewSyscallError("setsockopt SO_RCVTIMEO", unix.SetsockoptTimeval(p.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout)),
		os.NewSyscallError("bind", unix.Bind(p.fd, &unix.SockaddrInet4{Port: testPort, Addr: p.cfg.Self.IP.As4()})),
		os.NewSyscallError("connect", unix.Connect(p.fd, &unix.SockaddrInet4{Port: testPort, Addr: p.cfg.Aggregator.IP.As4()})),
	)
}

func (m *mmsghdr) point(buf []byte) {
	iov := &unix.Iovec{Base: &buf[0]}
	iov.SetLen(len(buf))
	m.hdr.Iov = iov
	m.hdr.SetIovlen(1)
}

// mmsg makes a system call on messages and returns how many it moved.
// Conditions that pass by themselves, such as the end of the receive timeout, count as none.
func mmsg(fd int, call uintptr, name string, msgs []mmsghdr, flags int) (int, error) {
	n, _, errno := unix.Syscall6(call, uintptr(fd), uintptr(unsafe.Pointer(&msgs[0])), uintptr(len(msgs)), uintptr(flags), 0, 0)
	switch errno {
	case 0:
		return int(n), nil
	case unix.EAGAIN, unix.EINTR, unix.ENOBUFS:
		return 0, nil
	}
	return 0, os.NewSyscallError(name, errno)
}

func (p *udp) transmit(n int) (int, error) {
	return mmsg(p.fd, unix.SYS_SENDMMSG, "sendmmsg", p.out[:n], 0)
}

// receive blocks until there is a datagram and takes what else is there.
func (p *udp) receive() (int, error) {
	return mmsg(p.fd, unix.SYS_RECVMMSG, "recvmmsg", p.in, unix.MSG_WAITFORONE)
}

// bounce sends the very bytes back that came in.
func (p *udp) bounce() (int, error) {
	n, err := p.receive()
	for sent := 0; sent < n && err == nil; {
		var more int
		more, err = mmsg(p.fd, unix.SYS_SENDMMSG, "sendmmsg", p.in[sent:n], 0)
		sent += more
	}
	return n, err
}

// drops is empty: what the kernel drops on the way to a UDP socket is in the
// counters of the namespace.
func (p *udp) drops() (map[string]uint64, error) { return map[string]uint64{}, nil }

func (p *udp) close() error {
	if p.fd < 0 {
		return nil
	}
	return os.NewSyscallError("close", unix.Close(p.fd))
}
