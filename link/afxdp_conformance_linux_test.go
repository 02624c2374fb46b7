// SPDX-License-Identifier: Apache-2.0

package link_test

import (
	"fmt"
	"net/netip"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/internal/test/bedtest"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/link/linktest"
	"github.com/libra-ina/libra/wire"
)

// opening opens a link of a host, on a thread in its namespace.
type opening func(*testing.T, *testbed.Node) (link.Link, error)

// TestConformanceAFXDP runs the tests of package linktest on AF_XDP links: of one
// queue and of several, over IPv6, and with the longest frames.
func TestConformanceAFXDP(t *testing.T) {
	onQueue := func(queue int) opening {
		return func(_ *testing.T, h *testbed.Node) (link.Link, error) {
			return link.OpenAFXDP(link.AFXDPConfig{Interface: h.Interface, Queue: queue, Local: netip.AddrPortFrom(h.IP, wire.DefaultPort)})
		}
	}
	jumbo := func(_ *testing.T, h *testbed.Node) (link.Link, error) {
		return link.OpenAFXDP(link.AFXDPConfig{Interface: h.Interface, Local: netip.AddrPortFrom(h.IP, wire.DefaultPort), MTU: wire.MaxMTU})
	}
	for _, c := range []struct {
		name   string
		queues int
		open   [2]opening
	}{
		{"one queue", 1, [2]opening{onQueue(0), onQueue(0)}},
		{"three queues", 3, [2]opening{onQueue(0), onQueue(2)}},
		{"IPv6", 1, [2]opening{openIPv6, openIPv6}},
		{"jumbo", 1, [2]opening{jumbo, jumbo}},
	} {
		t.Run(c.name, func(t *testing.T) {
			bed := bedtest.New(t, testbed.Config{Hosts: 2, Queues: c.queues})
			linktest.Suite{Open: func(t *testing.T) (a, b link.Link) {
				var links [2]link.Link
				for i := range links {
					if err := bed.Host(i).Do(func() (err error) {
						links[i], err = c.open[i](t, bed.Host(i))
						return err
					}); err != nil {
						t.Fatal(err)
					}
				}
				return links[0], links[1]
			}}.Run(t)
		})
	}
}

// openIPv6 gives a host an address and opens a link on it. The zone is as in a configuration.
func openIPv6(t *testing.T, h *testbed.Node) (link.Link, error) {
	t.Helper()
	if err := os.WriteFile(fmt.Sprintf("/proc/sys/net/ipv6/conf/%s/disable_ipv6", h.Interface), []byte("0"), 0); err != nil {
		t.Skip(err)
	}
	as16 := netip.MustParseAddr("fe80::77:0").As16()
	as4 := h.IP.As4()
	as16[15] = as4[3]
	ip := netip.AddrFrom16(as16)
	ifi, err := netlink.LinkByName(h.Interface)
	if err != nil {
		return nil, err
	}
	addr, err := netlink.ParseAddr(ip.String() + "/64")
	if err != nil {
		return nil, err
	}
	addr.Flags = unix.IFA_F_NODAD
	if err := netlink.AddrReplace(ifi, addr); err != nil {
		return nil, err
	}
	return link.OpenAFXDP(link.AFXDPConfig{Interface: h.Interface, Local: netip.AddrPortFrom(ip.WithZone(h.Interface), wire.DefaultPort)})
}
