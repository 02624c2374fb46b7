// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"net"
	"net/netip"
	"testing"
)

// Over IPv6 a UDPConn survives what the kernel's socket does, too: neighbours are discovered
// otherwise, and a link that goes down loses its addresses, as does one whose MTU is too small for
// IPv6.
func TestUDPConnSurvivesOverIPv6(t *testing.T) {
	const quick = "; echo 0 >delay_first_probe_time; echo 50 >retrans_time_ms; echo 1 >ucast_solicit; echo 500 >base_reachable_time_ms"
	const again = "; echo 0 >/proc/sys/net/ipv6/conf/a/disable_ipv6; ip address replace fd00::1/64 dev a nodad"
	for kind, local := range map[string]string{"kernel": "[fd00::1]:7000", "UDPConn": "[fd00::1]:7000", "UDPConn, wildcard": "[::]:7000"} {
		t.Run(kind, func(t *testing.T) {
			p := newHostPair(t)
			p.at(p.near, "ip address flush dev a"+again+"; cd /proc/sys/net/ipv6/neigh/a"+quick)
			p.at(p.far, "echo 0 >/proc/sys/net/ipv6/conf/b/disable_ipv6; ip address add fd00::2/64 dev b nodad; cd /proc/sys/net/ipv6/neigh/b"+quick)
			var near, far net.PacketConn
			if err := p.near.Do(func() (err error) {
				if kind == "kernel" {
					near, err = net.ListenPacket("udp6", local)
					return err
				}
				near, err = ListenUDP("a", netip.MustParseAddrPort(local))
				return err
			}); err != nil {
				t.Fatal(err)
			}
			defer near.Close()
			if err := p.far.Do(func() (err error) { far, err = net.ListenPacket("udp6", "[::]:8000"); return err }); err != nil {
				t.Fatal(err)
			}
			defer far.Close()
			to := &net.UDPAddr{IP: net.ParseIP("fd00::1"), Port: 7000}
			passes(t, "at first", near, far, to)
			for _, change := range []struct {
				far      bool
				commands string
			}{
				{false, "ip neigh replace fd00::2 dev a lladdr 02:00:00:00:00:99 nud stale"},
				{true, "ip link set dev b address 02:00:00:00:00:22"},
				{false, "ip link set dev a address 02:00:00:00:00:11"},
				{false, "ip neigh flush to fd00::2 dev a"},
				{false, "ip link set dev a down; ip link set dev a up" + again},
				{false, "ip address del fd00::1/64 dev a" + again},
				{false, "ip link set dev a mtu 1000; ip link set dev a mtu 1500" + again},
				{true, "ip link set dev b down; ip link set dev b address 02:00:00:00:00:44; ip link set dev b up; ip address replace fd00::2/64 dev b nodad"},
				{false, "ip link add br7 type bridge; ip link set dev a master br7; ip link set dev a nomaster; ip link del dev br7"},
			} {
				at := p.near
				if change.far {
					at = p.far
				}
				p.at(at, change.commands)
				passes(t, change.commands, near, far, to)
			}
		})
	}
}
