// SPDX-License-Identifier: Apache-2.0

package link

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/sys"
	"github.com/libra-ina/libra/wire"
)

// mmsgSocket is a non-blocking UDP socket that sends and receives many datagrams with one system
// call. net.UDPConn would allocate an address for each received datagram of a batch.
type mmsgSocket struct {
	fd   int
	addr netip.AddrPort
	zone uint32 // for link-local addresses

	rx, tx   messages
	arrivals *arrivals // nil unless they are asked for
	full     bool      // the last send found the socket's send buffer full

	refused []int // messages of the last batch that the kernel refused to send

	fds     [3]unix.PollFd // the socket, the eventfd, the watched descriptor
	timeout unix.Timespec
	wake    sys.Waker
}

// messages is a batch of datagrams in the kernel's format.
type messages struct {
	headers []unix.Mmsghdr
	iovecs  []unix.Iovec
	names   []unix.RawSockaddrInet6 // large enough for IPv4 too
}

func newMessages() messages {
	m := messages{
		headers: make([]unix.Mmsghdr, batchSize),
		iovecs:  make([]unix.Iovec, batchSize),
		names:   make([]unix.RawSockaddrInet6, batchSize),
	}
	for i := range m.headers {
		m.headers[i].Hdr.Iov = &m.iovecs[i]
		m.headers[i].Hdr.SetIovlen(1)
	}
	return m
}

func (m *messages) setMessage(i int, data []byte, name *byte, namelen int) {
	m.iovecs[i].Base = unsafe.SliceData(data)
	m.iovecs[i].SetLen(len(data))
	m.headers[i].Hdr.Name = name
	m.headers[i].Hdr.Namelen = uint32(namelen)
}

// openUDPSocket is the [openSocket] of [OpenUDP].
func openUDPSocket(local netip.AddrPort, zone uint32, buffer int) (_ udpSocket, got int, err error) {
	domain := unix.AF_INET6
	if local.Addr().Is4() {
		domain = unix.AF_INET
	}
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, 0, os.NewSyscallError("socket", err)
	}
	s := &mmsgSocket{fd: fd, zone: zone, rx: newMessages(), tx: newMessages()}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.closeSocket())
		}
	}()
	var addr unix.Sockaddr = &unix.SockaddrInet4{Addr: as4(local.Addr()), Port: int(local.Port())}
	if domain == unix.AF_INET6 {
		addr = &unix.SockaddrInet6{Addr: local.Addr().As16(), Port: int(local.Port()), ZoneId: zone}
	}
	if err := unix.Bind(fd, addr); err != nil {
		return nil, 0, fmt.Errorf("bind to %v: %w", local, os.NewSyscallError("bind", err))
	}
	bound, err := unix.Getsockname(fd)
	if err != nil {
		return nil, 0, os.NewSyscallError("getsockname", err)
	}
	switch a := bound.(type) {
	case *unix.SockaddrInet4:
		s.addr = netip.AddrPortFrom(local.Addr(), uint16(a.Port))
	case *unix.SockaddrInet6:
		s.addr = netip.AddrPortFrom(local.Addr(), uint16(a.Port))
	}
	for _, o := range [][2]int{{unix.SO_RCVBUFFORCE, unix.SO_RCVBUF}, {unix.SO_SNDBUFFORCE, unix.SO_SNDBUF}} {
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, o[0], buffer) == nil {
			continue
		}
		// Without CAP_NET_ADMIN the kernel applies its limits.
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, o[1], buffer); err != nil {
			return nil, 0, os.NewSyscallError("setsockopt", err)
		}
	}
	got, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
	if err != nil {
		return nil, 0, os.NewSyscallError("getsockopt SO_RCVBUF", err)
	}
	if err := s.wake.Open(); err != nil {
		return nil, 0, err
	}
	s.fds = [3]unix.PollFd{{Fd: int32(fd)}, {Fd: int32(s.wake.FD()), Events: unix.POLLIN}, {Fd: -1, Events: unix.POLLIN}}
	return s, got, nil
}

func (s *mmsgSocket) localAddr() netip.AddrPort { return s.addr }

func (s *mmsgSocket) preparePath(to wire.Endpoint) *udpPath {
	if s.addr.Addr().Is4() {
		sa := unix.RawSockaddrInet4{Family: unix.AF_INET, Port: htons(to.Port), Addr: to.IP.As4()}
		return &udpPath{to: to, sockaddr: bytesOf(&sa)}
	}
	sa := unix.RawSockaddrInet6{Family: unix.AF_INET6, Port: htons(to.Port), Addr: to.IP.As16(), Scope_id: s.zone}
	return &udpPath{to: to, sockaddr: bytesOf(&sa)}
}

func bytesOf[T any](v *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v))
}

// htons converts a port to network byte order, on hosts of either order.
func htons(port uint16) (net uint16) {
	b := bytesOf(&net)
	b[0], b[1] = byte(port>>8), byte(port)
	return net
}

func (s *mmsgSocket) receiveBatch(pkts []Packet, room [][]byte) (int, error) {
	n := min(len(pkts), len(room))
	for i := range n {
		s.rx.setMessage(i, room[i], (*byte)(unsafe.Pointer(&s.rx.names[i])), unix.SizeofSockaddrInet6)
	}
	if s.arrivals != nil {
		s.arrivals.makeRoom(&s.rx, n)
	}
	n, errno := s.callMmsg(unix.SYS_RECVMMSG, s.rx.headers[:n])
	switch errno {
	case 0:
	case unix.EAGAIN, unix.EINTR, unix.ECONNREFUSED:
		return 0, nil
	default:
		return 0, os.NewSyscallError("recvmmsg", errno)
	}
	for i := range n {
		pkts[i] = Packet{Handle: uint32(i)}
		pkts[i].Payload = room[i][:s.rx.headers[i].Len]
		pkts[i].Src.IP, pkts[i].Src.Port = s.sourceOf(i)
	}
	if s.arrivals != nil {
		s.arrivals.noteArrivals(&s.rx, pkts[:n])
	}
	return n, nil
}

// sourceOf decodes the source address of datagram i of the receive batch.
func (s *mmsgSocket) sourceOf(i int) (netip.Addr, uint16) {
	name := &s.rx.names[i]
	port := bytesOf(&name.Port)
	p := uint16(port[0])<<8 | uint16(port[1])
	if name.Family == unix.AF_INET {
		return netip.AddrFrom4((*unix.RawSockaddrInet4)(unsafe.Pointer(name)).Addr), p
	}
	return netip.AddrFrom16(name.Addr).Unmap(), p
}

func (s *mmsgSocket) sendFrames(frames []Frame, payloads [][]byte) udpSent {
	for i := range frames {
		f := &frames[i]
		to := f.To.(*udpPath).sockaddr
		s.tx.setMessage(i, payloads[f.Buf][:f.Len], unsafe.SliceData(to), len(to))
	}
	return s.transmitBatch(len(frames))
}

func (s *mmsgSocket) replyBatch(pkts []Packet) (answers int, _ udpSent) {
	for i := range pkts {
		if p := &pkts[i]; p.Reply > 0 {
			h := &s.rx.headers[p.Handle].Hdr
			s.tx.setMessage(answers, p.Payload[:p.Reply], h.Name, int(h.Namelen))
			answers++
		}
	}
	return answers, s.transmitBatch(answers)
}

// transmitBatch sends the first n messages of the transmit batch. It skips a message that the
// kernel refuses, which the peer sees as lost.
func (s *mmsgSocket) transmitBatch(n int) udpSent {
	s.full, s.refused = false, s.refused[:0]
	taken, why := 0, error(nil)
	for taken < n {
		sent, errno := s.callMmsg(unix.SYS_SENDMMSG, s.tx.headers[taken:n])
		switch errno {
		case 0:
			taken += sent
		case unix.EINTR:
		case unix.EAGAIN, unix.ENOBUFS:
			s.full = errno == unix.EAGAIN
			return udpSent{taken, s.refused, why}
		default:
			s.refused = append(s.refused, taken)
			taken++
			why = os.NewSyscallError("sendmmsg", errno)
		}
	}
	return udpSent{taken, s.refused, why}
}

func (s *mmsgSocket) callMmsg(call uintptr, headers []unix.Mmsghdr) (int, unix.Errno) {
	n, _, errno := unix.Syscall6(call, uintptr(s.fd), uintptr(unsafe.Pointer(unsafe.SliceData(headers))),
		uintptr(len(headers)), unix.MSG_DONTWAIT, 0, 0)
	return int(n), errno
}

func (s *mmsgSocket) waitReadable(limit time.Duration) error {
	s.wake.Sleep()
	if !s.wake.Pending() {
		s.fds[0].Events = unix.POLLIN
		if s.full {
			s.fds[0].Events = unix.POLLIN | unix.POLLOUT
		}
		var timeout *unix.Timespec
		if limit >= 0 {
			s.timeout = unix.NsecToTimespec(int64(limit))
			timeout = &s.timeout
		}
		if _, err := unix.Ppoll(s.fds[:], timeout, nil); err != nil && !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("ppoll", err)
		}
		if s.fds[0].Revents&unix.POLLOUT != 0 {
			s.full = false // there is room now; waiting for it again would return at once
		}
	}
	s.wake.Awake(s.fds[1].Revents != 0)
	s.wake.Take()
	return nil
}

// watchDescriptor makes wait also end for a descriptor.
func (s *mmsgSocket) watchDescriptor(fd int) { s.fds[2].Fd = int32(fd) }

func (s *mmsgSocket) wakeUp() { s.wake.Wake() }

func (s *mmsgSocket) closeSocket() error {
	if s.fd < 0 {
		return nil
	}
	err := os.NewSyscallError("close", unix.Close(s.fd))
	s.fd = -1
	return errors.Join(err, s.wake.Close())
}
