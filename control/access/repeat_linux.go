// SPDX-License-Identifier: Apache-2.0

package access

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// tcpRTOMax is TCP_RTO_MAX_MS of linux/tcp.h, since Linux 6.15.
const tcpRTOMax = 44

// repeatSoon makes the kernel repeat what is not acknowledged at least once in longestRepeat. Older
// kernels do not know the option: then a connection comes back later, or is replaced.
func repeatSoon(conn net.Conn) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, tcpRTOMax, int(longestRepeat/time.Millisecond))
	})
}
