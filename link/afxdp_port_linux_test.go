// SPDX-License-Identifier: Apache-2.0

package link

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/internal/test/bedtest"
	"github.com/libra-ina/libra/wire"
)

// TestAFXDPReservesItsPort checks that no other process of the host can send from
// a link's port while the link is open, and that a link does not open while one
// could.
func TestAFXDPReservesItsPort(t *testing.T) {
	bed := bedtest.New(t, testbed.Config{Hosts: 1})
	h := bed.Host(0)
	at := netip.AddrPortFrom(h.IP, wire.DefaultPort)
	onThreadOf(t, h, nil, func() {
		listen := func(at netip.AddrPort) (*net.UDPConn, error) {
			return net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at))
		}
		open := func() (Link, error) { return OpenAFXDP(AFXDPConfig{Interface: h.Interface, Local: at}) }
		everywhere := netip.AddrPortFrom(netip.IPv4Unspecified(), at.Port())

		l, err := open()
		if err != nil {
			t.Error(err)
			return
		}
		for _, a := range []netip.AddrPort{at, everywhere} {
			if c, err := listen(a); !errors.Is(err, syscall.EADDRINUSE) {
				t.Errorf("binding %v beside the link: %v, %v", a, c, err)
			}
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}

		for _, a := range []netip.AddrPort{at, everywhere} {
			c, err := listen(a)
			if err != nil {
				t.Errorf("binding %v after the link's end: %v", a, err)
				continue
			}
			l, err := open()
			if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "port 19522 of "+h.IP.String()+" is taken") {
				t.Errorf("opened beside a socket at %v: %v, %v", a, l, err)
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
		if l, err = open(); err != nil {
			t.Error(err)
			return
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
}

// The reservation is of the address's family.
func TestReservesIPv6Port(t *testing.T) {
	var at netip.AddrPort
	fd := -1
	for range 20 { // another process may take the port in between
		free, err := net.ListenUDP("udp6", &net.UDPAddr{IP: net.IPv6loopback})
		if err != nil {
			t.Skip(err)
		}
		at = free.LocalAddr().(*net.UDPAddr).AddrPort()
		if err := free.Close(); err != nil {
			t.Fatal(err)
		}
		if fd, err = reservePort(at, 1); err == nil {
			break
		} else if !errors.Is(err, ErrConfig) {
			t.Fatal(err)
		}
	}
	defer syscall.Close(fd)
	if c, err := net.ListenUDP("udp6", net.UDPAddrFromAddrPort(at)); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("binding %v beside its reservation: %v, %v", at, c, err)
	}
}
