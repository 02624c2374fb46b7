// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Credentials returns user, group and process of the other end, as they were when it
// connected: of a listener, those of the process that began to listen.
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
