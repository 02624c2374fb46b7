// SPDX-License-Identifier: Apache-2.0

package link

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// reservePort binds a kernel socket to a link's address and port, without sharing it, and never
// uses it. The frames of an AF_XDP link bypass the kernel; without this socket every process of the
// host could bind the port and send from it, and a receiver would take its frames for the link's.
func reservePort(local netip.AddrPort, index int) (fd int, err error) {
	domain := unix.AF_INET
	var to unix.Sockaddr = &unix.SockaddrInet4{Addr: as4(local.Addr()), Port: int(local.Port())}
	if local.Addr().Is6() {
		domain = unix.AF_INET6
		to = &unix.SockaddrInet6{Addr: local.Addr().As16(), Port: int(local.Port()),
			ZoneId: linkLocalZone(local.Addr(), uint32(index))}
	}
	if fd, err = unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	// Frames that reach it through another interface are never read.
	err = os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 0))
	if err == nil {
		err = os.NewSyscallError("bind", unix.Bind(fd, to))
	}
	if err == nil {
		return fd, nil
	}
	unix.Close(fd)
	if errors.Is(err, unix.EADDRINUSE) {
		return 0, fmt.Errorf("%w: UDP port %d of %v is taken by a socket of this host, which could send frames in the link's name: end its process (ss -ulpn 'sport = %d' names it) or configure another port",
			ErrConfig, local.Port(), local.Addr(), local.Port())
	}
	return 0, fmt.Errorf("reserving UDP port %v: %w", local, err)
}

// linkLocalZone returns the index of the interface if the address needs it.
func linkLocalZone(a netip.Addr, index uint32) uint32 {
	if a.IsLinkLocalUnicast() {
		return index
	}
	return 0
}

func as4(a netip.Addr) [4]byte {
	if a.Is4() {
		return a.As4()
	}
	return [4]byte{}
}
