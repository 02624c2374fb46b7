// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// packetSocket returns a socket for whole packets of an interface.
func (p *pairOfHosts) packetSocket(far bool, ifname string) (fd int) {
	p.t.Helper()
	ns := p.near
	if far {
		ns = p.far
	}
	const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8
	if err := ns.Do(func() error {
		ifi, err := net.InterfaceByName(ifname)
		if err == nil {
			fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all)
		}
		if err == nil {
			err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: ifi.Index})
		}
		timeout := unix.NsecToTimeval(int64(100 * time.Millisecond))
		if err == nil {
			err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout)
		}
		return err
	}); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// mac returns the Ethernet address of an interface.
func (p *pairOfHosts) mac(far bool) (mac [6]byte) {
	p.t.Helper()
	ns, name := p.near, "a"
	if far {
		ns, name = p.far, "b"
	}
	if err := ns.Do(func() error {
		ifi, err := net.InterfaceByName(name)
		if err == nil {
			copy(mac[:], ifi.HardwareAddr)
		}
		return err
	}); err != nil {
		p.t.Fatal(err)
	}
	return mac
}

// A connection takes what it delivers: packets without a VLAN, those with a mere priority among
// them, as a kernel's socket. Packets of VLANs are the kernel's, for the interfaces that it has for
// them.
func TestUDPConnAndTags(t *testing.T) {
	for _, kind := range []string{"kernel", "UDPConn", "UDPConn, wildcard"} {
		p := newHostPair(t)
		var near net.PacketConn
		var conn *UDPConn
		switch kind {
		case "kernel":
			near = p.kernelListen("10.0.0.1:7000")
		case "UDPConn":
			near, conn = p.listen("10.0.0.1:7000")
		default:
			near, conn = p.listen("0.0.0.0:7000")
		}
		h := UDPHeaders{FromMAC: p.mac(true), ToMAC: p.mac(false), From: netip.MustParseAddrPort("10.0.0.2:9"),
			To: netip.MustParseAddrPort("10.0.0.1:7000")}
		out, tap := p.packetSocket(true, "b"), p.packetSocket(false, "a")
		send := func(payload string, tags ...byte) {
			t.Helper()
			packet := make([]byte, 200)
			n, err := h.Put(packet, []byte(payload))
			if err != nil {
				t.Fatal(err)
			}
			whole := append(append(append([]byte{}, packet[:12]...), tags...), packet[12:n]...)
			if _, err := unix.Write(out, whole); err != nil {
				t.Fatal(err)
			}
		}
		send("of VLAN 10", 0x81, 0, 0, 10)
		send("of VLAN 10 in 802.1ad", 0x88, 0xa8, 0, 10)
		send("of VLAN 10 in a priority", 0x81, 0, 0xa0, 0, 0x81, 0, 0, 10)
		send("with a priority", 0x81, 0, 0xa0, 0)
		send("without a tag")
		if err := near.SetReadDeadline(time.Now().Add(eventLimit)); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 100)
		for _, want := range []string{"with a priority", "without a tag"} {
			if n, _, err := near.ReadFrom(buf); string(buf[:n]) != want || err != nil {
				t.Errorf("%s: read %q, %v, want the packet %s", kind, buf[:n], err, want)
			}
		}
		seen := 0
		for packet := make([]byte, 2000); ; {
			n, err := unix.Read(tap, packet)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil {
				break
			}
			if strings.Contains(string(packet[:n]), "of VLAN 10") {
				seen++
			}
		}
		if seen != 3 {
			t.Errorf("%s: the kernel has seen %d of 3 packets of VLANs", kind, seen)
		}
		if conn != nil && conn.Stats() != (UDPStats{}) {
			t.Errorf("%s: dropped: %+v", kind, conn.Stats())
		}
	}
}

// Each packet that a connection took and did not deliver is counted.
func TestUDPConnCountsWhatItDrops(t *testing.T) {
	p := newHostPair(t)
	near, conn := p.listen("10.0.0.1:7000")
	h := UDPHeaders{FromMAC: p.mac(true), ToMAC: p.mac(false), From: netip.MustParseAddrPort("10.0.0.2:9"),
		To: netip.MustParseAddrPort("10.0.0.1:7000")}
	out := p.packetSocket(true, "b")
	packet := make([]byte, 200)
	for _, spoil := range []func(udp []byte){
		func(udp []byte) { udp[4]++ },              // longer than the packet
		func(udp []byte) { udp[4], udp[5] = 0, 7 }, // shorter than its header
		func(udp []byte) { udp[8]++ },              // a changed payload
		func([]byte) {},
	} {
		n, err := h.Put(packet, []byte("whole"))
		if err != nil {
			t.Fatal(err)
		}
		spoil(packet[34:])
		if _, err := unix.Write(out, packet[:n]); err != nil {
			t.Fatal(err)
		}
	}
	if err := near.SetReadDeadline(time.Now().Add(eventLimit)); err != nil {
		t.Fatal(err)
	}
	if n, _, err := near.ReadFrom(packet); string(packet[:n]) != "whole" || err != nil {
		t.Errorf("read %q, %v", packet[:n], err)
	}
	if want := (UDPStats{Malformed: 2, BadChecksum: 1}); conn.Stats() != want {
		t.Errorf("%+v, want %+v", conn.Stats(), want)
	}
}

// In generic mode the program meets packets before they are cut into segments: they find no room,
// which is counted, until the remedy that AttachGeneric names.
func TestSegmentationInGenericMode(t *testing.T) {
	const each, size = 20, 1000
	for name, c := range map[string]struct {
		mode   AttachMode
		remedy string
		whole  bool // the segments arrive
	}{
		"native":              {AttachNative, "", true},
		"generic":             {AttachGeneric, "", false},
		"generic, as advised": {AttachGeneric, "ethtool -K b gso off tso off tx-udp-segmentation off", true},
	} {
		p := newHostPair(t)
		p.at(p.far, "ethtool -K b tx on")
		p.at(p.near, "ethtool -K a gro off lro off")
		if c.remedy != "" {
			p.at(p.far, c.remedy)
		}
		var g *Group
		if err := p.near.Do(func() (err error) {
			g, err = OpenAll("a", GroupConfig{Match: MatchUDP(7000), Attach: AttachConfig{Mode: c.mode}})
			return err
		}); err != nil {
			t.Fatal(err)
		}
		var got atomic.Int64
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			done <- g.Run(ctx, Serve(func(_ *Socket, packets []Desc) error { got.Add(int64(len(packets))); return nil }))
		}()
		var fd int
		if err := p.far.Do(func() (err error) {
			fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err == nil {
				err = unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_SEGMENT, size)
			}
			if err == nil {
				err = unix.Sendto(fd, make([]byte, each*size), 0, &unix.SockaddrInet4{Port: 7000, Addr: [4]byte{10, 0, 0, 1}})
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		until(t, name, func() bool {
			st, err := g.Snapshot()
			if err != nil {
				t.Fatal(err)
			}
			return got.Load() == each || st.Kernel.RxDropped > 0
		})
		if whole := got.Load() == each; whole != c.whole {
			t.Errorf("%s: %d of %d datagrams", name, got.Load(), each)
		}
		cancel()
		if err := errors.Join(<-done, g.Close(), unix.Close(fd)); err != nil {
			t.Error(err)
		}
	}
}
