// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/libra-ina/libra/internal/linux/neigh"
	"github.com/libra-ina/libra/internal/linux/testbed"
)

// A packet that cannot be built, as on an interface without an address to send from, takes no
// frame: after a thousand of them, no other packet could be sent.
func TestFailedWritesKeepNoFrames(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	var c *UDPConn
	if err := ns.Do(func() (err error) {
		c, err = ListenUDP("b", netip.MustParseAddrPort("0.0.0.0:7000"))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(eventLimit)); err != nil {
		t.Fatal(err)
	}
	to := net.UDPAddr{IP: net.IPv4(10, 9, 9, 9), Port: 7}
	free := c.free.Available()
	for failed := 0; failed < 3; {
		// The kernel's answer for such an interface; the connection may ask again, and find no route.
		c.hops.putHop(to.AddrPort().Addr().Unmap(), neigh.Hop{MAC: [6]byte{2}})
		_, err := c.WriteTo([]byte("lost"), &to)
		switch {
		case errors.Is(err, ErrDescriptor):
			failed++
		case err == nil, errors.Is(err, net.ErrClosed), errors.Is(err, os.ErrDeadlineExceeded):
			t.Fatalf("a packet without a source: %v", err)
		}
	}
	if now := c.free.Available(); now != free {
		t.Errorf("%d frames are free, of %d before", now, free)
	}
}
