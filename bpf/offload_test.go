// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"net"
	"net/netip"
	"testing"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/internal/linux/sys"
	"github.com/libra-ina/libra/wire"
)

// The kernel's UDP sockets leave checksums to the network card if it has checksum offload, as a
// veth pair does, which completes none. Such frames are counted separately from damaged ones;
// without the offload they are applied.
func TestKernelSocketOverVeth(t *testing.T) {
	inNamespace(t, 1, func() {
		d := open(t)
		if err := d.Attach("port0", afxdp.AttachNative); err != nil {
			t.Fatal(err)
		}
		link, err := netlink.LinkByName("host0")
		if err != nil {
			t.Fatal(err)
		}
		host, agg := conformance.Host(0), conformance.Aggregator
		ip := net.IPNet{IP: host.IP.AsSlice(), Mask: net.CIDRMask(24, 32)}
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: &ip}); err != nil {
			t.Fatal(err)
		}
		err = netlink.NeighAdd(&netlink.Neigh{
			LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT, IP: agg.IP.AsSlice(), HardwareAddr: agg.MAC[:],
		})
		if err != nil {
			t.Fatal(err)
		}
		job := aggregator.JobConfig{ID: 3, Slots: 30}
		if err := d.AddJob(job); err != nil {
			t.Fatal(err)
		}
		sender := aggregator.SenderConfig{ID: 1, MAC: [6]byte(link.Attrs().HardwareAddr), IP: host.IP}
		if err := d.AddSender(job.ID, sender); err != nil {
			t.Fatal(err)
		}
		local := net.UDPAddrFromAddrPort(netip.AddrPortFrom(host.IP, host.Port))
		conn, err := net.DialUDP("udp4", local, net.UDPAddrFromAddrPort(netip.AddrPortFrom(agg.IP, agg.Port)))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		seq := uint32(0)
		push := func() {
			t.Helper()
			seq++
			p := make([]byte, wire.HotLen(1))
			wire.Header{Type: wire.TypeHot, Job: job.ID, Sender: sender.ID, Seq: seq}.Put(p)
			wire.StripeAt(p, 0).SetMask(1)
			wire.StripeAt(p, 0).SetValue(0, 1)
			if _, err := conn.Write(p); err != nil {
				t.Fatal(err)
			}
		}
		counted := func() (partial, applied uint64) {
			t.Helper()
			c, err := d.Counters()
			if err != nil {
				t.Fatal(err)
			}
			j, err := d.JobCounters(job.ID)
			if err != nil {
				t.Fatal(err)
			}
			if c.BadChecksum > 0 {
				t.Fatalf("%d frames count as damaged", c.BadChecksum)
			}
			return c.PartialChecksum, j.Applied
		}
		wait := func(wantPartial, wantApplied uint64) {
			t.Helper()
			for deadline := time.Now().Add(eventLimit); ; time.Sleep(time.Millisecond) {
				partial, applied := counted()
				if partial == wantPartial && applied == wantApplied {
					return
				}
				if time.Now().After(deadline) {
					t.Fatalf("%d frames with partial checksums and %d applied, want %d and %d", partial, applied, wantPartial, wantApplied)
				}
			}
		}
		offload := func(on uint32) {
			t.Helper()
			value := [2]uint32{unix.ETHTOOL_STXCSUM, on} // struct ethtool_value
			if err := sys.Ethtool("host0", unsafe.Pointer(&value)); err != nil {
				t.Fatal(err)
			}
		}
		offload(1)
		push()
		push()
		wait(2, 0)
		offload(0)
		push()
		wait(2, 1)
	})
}
