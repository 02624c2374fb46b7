// SPDX-License-Identifier: Apache-2.0

package link

import (
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/sys"
)

// With the capability, a socket has the requested buffer, beyond the system's limit; the kernel
// counts it twice.
func TestUDPBufferBeyondTheLimit(t *testing.T) {
	text, err := os.ReadFile("/proc/sys/net/core/rmem_max")
	if err != nil {
		t.Skip(err)
	}
	limit, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	missing, err := sys.MissingCapabilities(sys.CapNetAdmin)
	if err != nil {
		t.Fatal(err)
	}
	if len(missing) > 0 {
		t.Skipf("%v is missing", missing)
	}
	want := limit + 1<<16
	s, got, err := openUDPSocket(netip.MustParseAddrPort("127.0.0.1:0"), 0, want)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.closeSocket() }()
	if got != 2*want {
		t.Errorf("a buffer of %d bytes, want twice %d", got, want)
	}
}

// Both kinds of socket request buffers in both directions: if far less than the default is
// requested, they have less, and the kernel counts it twice.
func TestUDPBuffersOfBothDirections(t *testing.T) {
	const ask = 1 << 16
	local := netip.MustParseAddrPort("127.0.0.1:0")
	check := func(name string, fd int) {
		for option, direction := range map[int]string{unix.SO_RCVBUF: "receive", unix.SO_SNDBUF: "send"} {
			if got, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, option); got != 2*ask || err != nil {
				t.Errorf("%s: a %s buffer of %d bytes, %v; want twice %d", name, direction, got, err, ask)
			}
		}
	}
	s, _, err := openUDPSocket(local, 0, ask)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.closeSocket() }()
	check("mmsg", s.(*mmsgSocket).fd)
	if s, _, err = openNetSocket(local, 0, ask); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.closeSocket() }()
	raw, err := s.(*netSocket).conn.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { check("net", int(fd)) })
	}
	if err != nil {
		t.Error(err)
	}
}
