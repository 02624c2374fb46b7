// SPDX-License-Identifier: Apache-2.0

package neigh

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// bindTo ties a socket to an interface, which the routing table alone would
// not do where two interfaces lead to the same network. Unprivileged since
// Linux 5.7.
func bindTo(link string) func(network, address string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var err error
		if e := c.Control(func(fd uintptr) { err = unix.BindToDevice(int(fd), link) }); e != nil {
			return e
		}
		return os.NewSyscallError("setsockopt SO_BINDTODEVICE", err)
	}
}
