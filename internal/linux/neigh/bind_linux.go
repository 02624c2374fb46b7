// SPDX-License-Identifier: Apache-2.0

package neigh

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// bindTo binds a socket to an interface, because the routing table might choose another interface
// to the same network. Unprivileged since Linux 5.7.
func bindTo(link string) func(network, address string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var err error
		if e := c.Control(func(fd uintptr) { err = unix.BindToDevice(int(fd), link) }); e != nil {
			return e
		}
		return os.NewSyscallError("setsockopt SO_BINDTODEVICE", err)
	}
}
