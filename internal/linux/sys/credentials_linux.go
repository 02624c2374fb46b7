// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Credentials returns user, group and process of the other end at the time of the connection; for a
// listener, of the process that started listening.
func Credentials(conn *net.UnixConn) (*unix.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) {
		cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return nil, err
	}
	return cred, os.NewSyscallError("getsockopt SO_PEERCRED", failed)
}
