// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/internal/test/refuse"
)

// udpPacket is Ethernet, IP and UDP headers to a port, with variations.
func udpPacket(v6, vlan bool, port uint16, mangle func(ip []byte)) []byte {
	p := make([]byte, 12)
	if vlan {
		p = binary.BigEndian.AppendUint16(p, 0x8100)
		p = binary.BigEndian.AppendUint16(p, 42)
	}
	var ip []byte
	if v6 {
		p = binary.BigEndian.AppendUint16(p, 0x86dd)
		ip = make([]byte, 40)
		ip[0], ip[6] = 0x60, 17
	} else {
		p = binary.BigEndian.AppendUint16(p, 0x0800)
		ip = make([]byte, 20)
		ip[0], ip[9] = 0x45, 17
		ip[6] = 0x40 // don't fragment
	}
	if mangle != nil {
		mangle(ip)
	}
	p = append(p, ip...)
	if ihl := int(ip[0]&15) * 4; !v6 && ihl > 20 {
		p = append(p, make([]byte, ihl-20)...)
	}
	udp := make([]byte, 8+16)
	binary.BigEndian.PutUint16(udp[2:], port)
	return append(p, udp...)
}

// The verdicts are those of the program run on crafted packets, without a network: 4 is
// XDP_REDIRECT, 2 XDP_PASS. Without a socket in the map bpf_redirect_map also returns PASS, so a
// socket is needed.
func TestUDPFilter(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	a := attach(t, ns, AttachConfig{Interface: "b", Match: MatchUDP(9000)})
	open(t, ns, newPool(t, newUMEM(t, UMEMConfig{}), 0), Config{Interface: "b", XSKMap: a.XSKMap()})
	const redirect = 4
	for name, c := range map[string]struct {
		packet []byte
		want   uint32
	}{
		"IPv4":                {udpPacket(false, false, 9000, nil), redirect},
		"IPv4 in a VLAN":      {udpPacket(false, true, 9000, nil), redirect},
		"IPv4 with options":   {udpPacket(false, false, 9000, func(ip []byte) { ip[0] = 0x47 }), xdpPass},
		"IPv4 of version 6":   {udpPacket(false, false, 9000, func(ip []byte) { ip[0] = 0x65 }), xdpPass},
		"IPv6 of version 4":   {udpPacket(true, false, 9000, func(ip []byte) { ip[0] = 0x40 }), xdpPass},
		"IPv6 traffic class":  {udpPacket(true, false, 9000, func(ip []byte) { ip[0], ip[1] = 0x6f, 0xff }), redirect},
		"IPv4 precedence":     {udpPacket(false, false, 9000, func(ip []byte) { ip[1] = 0xb8 }), redirect},
		"two VLAN tags":       {append(udpPacket(false, true, 9000, nil)[:16:16], udpPacket(false, true, 9000, nil)[12:]...), xdpPass},
		"IPv6":                {udpPacket(true, false, 9000, nil), redirect},
		"IPv6 in a VLAN":      {udpPacket(true, true, 9000, nil), redirect},
		"other port":          {udpPacket(false, false, 9001, nil), xdpPass},
		"swapped port":        {udpPacket(false, false, 9000>>8|9000<<8&0xff00, nil), xdpPass},
		"IPv6, other port":    {udpPacket(true, false, 9001, nil), xdpPass},
		"TCP":                 {udpPacket(false, false, 9000, func(ip []byte) { ip[9] = 6 }), xdpPass},
		"IPv6 TCP":            {udpPacket(true, false, 9000, func(ip []byte) { ip[6] = 6 }), xdpPass},
		"first fragment":      {udpPacket(false, false, 9000, func(ip []byte) { ip[6] = 0x20 }), xdpPass},
		"later fragment":      {udpPacket(false, false, 9000, func(ip []byte) { ip[7] = 9 }), xdpPass},
		"header length of 16": {udpPacket(false, false, 9000, func(ip []byte) { ip[0] = 0x44 }), xdpPass},
		"ARP":                 {append([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 6}, make([]byte, 46)...), xdpPass},
		"last fragment":       {udpPacket(false, false, 9000, func(ip []byte) { ip[6] = 0x1f }), xdpPass},
		"IPv6 fragment":       {udpPacket(true, false, 9000, func(ip []byte) { ip[6] = 44 }), xdpPass},
		"truncated UDP":       {udpPacket(false, false, 9000, nil)[:14+20+7], xdpPass},
		"truncated, IPv6":     {udpPacket(true, false, 9000, nil)[:14+40+7], xdpPass},
		"no payload":          {udpPacket(false, false, 9000, nil)[:14+20+8], redirect},
		"no payload, IPv6":    {udpPacket(true, true, 9000, nil)[:18+40+8], redirect},
	} {
		got, err := a.prog.Run(&ebpf.RunOptions{
			Data: c.packet, DataOut: make([]byte, 256),
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got != c.want {
			t.Errorf("%s: verdict %d, want %d", name, got, c.want)
		}
	}
}

// kernelTap sees an interface's packets that reach the kernel.
type kernelTap int

func openKernelTap(t *testing.T, ns *testbed.Namespace, ifname string) (tap kernelTap) {
	t.Helper()
	err := ns.Do(func() error {
		ifi, err := net.InterfaceByName(ifname)
		if err != nil {
			return err
		}
		all := binary.NativeEndian.Uint16([]byte{unix.ETH_P_ALL >> 8, unix.ETH_P_ALL & 0xff})
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(all))
		if err != nil {
			return err
		}
		t.Cleanup(func() { unix.Close(fd) })
		tap = kernelTap(fd)
		wait := unix.NsecToTimeval(int64(5 * time.Second))
		return errors.Join(unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: ifi.Index}),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait))
	})
	if err != nil {
		t.Fatal(err)
	}
	return tap
}

// next returns the next received packet, nil after some seconds without one.
func (k kernelTap) next(t *testing.T) []byte {
	t.Helper()
	buf := make([]byte, 4096)
	for {
		n, from, err := unix.Recvfrom(int(k), buf, 0)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return nil
		case errors.Is(err, unix.EINTR):
		case err != nil:
			t.Fatal(err)
		case from.(*unix.SockaddrLinklayer).Pkttype != unix.PACKET_OUTGOING:
			return buf[:n]
		}
	}
}

// Packets to the port reach the socket of their queue, or the kernel if it has none; all others
// reach the kernel unchanged, and no program stays on the interface.
func TestMatchSteers(t *testing.T) {
	for _, mode := range []AttachMode{AttachNative, AttachGeneric} {
		t.Run(mode.String(), func(t *testing.T) {
			ns := newNet(t, testbed.VethConfig{Queues: 2})
			a := attach(t, ns, AttachConfig{Interface: "b", Match: MatchUDP(9000), Mode: mode})
			if a.Mode() != mode {
				t.Errorf("mode %v, want %v", a.Mode(), mode)
			}
			u := newUMEM(t, UMEMConfig{})
			var send [2]func(packet []byte)
			for queue := range send {
				tx := open(t, ns, newPool(t, u, 64), Config{Interface: "a", Queue: queue, RxFrames: -1})
				send[queue] = func(packet []byte) {
					f, _ := tx.Pool().Alloc()
					d := Desc{Frame: f, Off: 256, Len: uint32(len(packet))}
					copy(u.Packet(d), packet)
					transmit(t, tx, []Desc{d})
				}
			}
			kernel := openKernelTap(t, ns, "b")
			passes := func(what string, packet []byte) {
				t.Helper()
				if got := kernel.next(t); !bytes.Equal(got, packet) {
					t.Errorf("%s: the kernel got %x, want %x", what, got, packet)
				}
			}
			ours := map[string][]byte{
				"IPv4": udpPacket(false, false, 9000, nil), "IPv4 in a VLAN": udpPacket(false, true, 9000, nil),
				"IPv6": udpPacket(true, false, 9000, nil), "IPv6 in a VLAN": udpPacket(true, true, 9000, nil),
				"multicast": append([]byte{1, 0, 0x5e, 0, 0, 1}, udpPacket(false, false, 9000, nil)[6:]...),
			}
			send[0](ours["IPv4"])
			passes("no socket yet", ours["IPv4"])
			s := open(t, ns, newPool(t, u, 1024), Config{Interface: "b", XSKMap: a.XSKMap()})
			for what, packet := range ours {
				send[0](packet)
				if ev, err := s.Poll(EventRx, eventLimit); ev != EventRx || err != nil {
					t.Fatalf("%s: %v, %v", what, ev, err)
				}
				descs := make([]Desc, 4)
				n, err := s.Receive(descs)
				if n != 1 || err != nil || !bytes.Equal(u.Packet(descs[0]), packet) {
					t.Fatalf("%s: socket received %d, %v", what, n, err)
				}
				if err := s.Release(descs[:n]); err != nil {
					t.Fatal(err)
				}
			}
			if mode == AttachNative { // in generic mode a veth has one queue
				send[1](ours["IPv6"])
				passes("a queue without a socket", ours["IPv6"])
			}
			for what, packet := range map[string][]byte{
				"other port": udpPacket(false, false, 9001, nil), "IPv6, other port": udpPacket(true, false, 9001, nil),
				"options":  udpPacket(false, false, 9000, func(ip []byte) { ip[0] = 0x46 }),
				"fragment": udpPacket(false, false, 9000, func(ip []byte) { ip[6] = 0x20 }),
				"ARP":      append([]byte{255, 255, 255, 255, 255, 255, 0, 0, 0, 0, 0, 1, 8, 6}, make([]byte, 46)...),
			} {
				send[0](packet)
				passes(what, packet)
			}
			if n, err := s.Receive(make([]Desc, 4)); n != 0 || err != nil {
				t.Errorf("the socket received %d more, %v", n, err)
			}
			if err := errors.Join(a.Close(), s.Close()); err != nil {
				t.Error(err)
			}
			if id := attachedID(t, ns); id != 0 {
				t.Errorf("program %d is still there", id)
			}
		})
	}
}

// Packets that do not match the filter reach the kernel's sockets.
func TestForeignPacketsReachTheStack(t *testing.T) {
	ns, peer := newNet(t, testbed.VethConfig{}), newNet(t, testbed.VethConfig{Names: [2]string{"x", "y"}})
	if err := ns.Veth(testbed.VethConfig{Names: [2]string{"near", "far"}, Peer: peer}); err != nil {
		t.Fatal(err)
	}
	addAddr := func(n *testbed.Namespace, ifname, addr string) {
		t.Helper()
		err := n.Do(func() error {
			l, err := netlink.LinkByName(ifname)
			if err != nil {
				return err
			}
			a, err := netlink.ParseAddr(addr)
			if err != nil {
				return err
			}
			return netlink.AddrAdd(l, a)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	addAddr(ns, "near", "192.0.2.1/24")
	addAddr(peer, "far", "192.0.2.2/24")
	a := attach(t, peer, AttachConfig{Interface: "far", Match: MatchUDP(9000)})
	s := open(t, peer, newPool(t, newUMEM(t, UMEMConfig{}), 0), Config{Interface: "far", XSKMap: a.XSKMap()})

	var in, out *net.UDPConn
	err := peer.Do(func() (err error) {
		in, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("192.0.2.2:9001")))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	err = ns.Do(func() (err error) {
		out, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("192.0.2.1:0")))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	for _, port := range []string{"9001", "9000"} {
		if _, err := out.WriteToUDPAddrPort([]byte("to "+port), netip.MustParseAddrPort("192.0.2.2:"+port)); err != nil {
			t.Fatal(err)
		}
	}
	buf := make([]byte, 64)
	if err := in.SetReadDeadline(time.Now().Add(eventLimit)); err != nil {
		t.Fatal(err)
	}
	if n, err := in.Read(buf); err != nil || string(buf[:n]) != "to 9001" {
		t.Errorf("kernel socket received %q, %v", buf[:n], err)
	}
	if ev, err := s.Poll(EventRx, eventLimit); ev != EventRx || err != nil {
		t.Fatal(ev, err)
	}
	descs := make([]Desc, 4)
	n, err := s.Receive(descs)
	if err != nil || n != 1 || !strings.HasSuffix(string(s.UMEM().Packet(descs[0])), "to 9000") {
		t.Errorf("AF_XDP socket received %d packets, %v", n, err)
	}
}

// Attach reports a lack of descriptors and keeps none.
func TestAttachWithoutDescriptors(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	refuse.Exhaust(t, "", func() (undo func() error, err error) {
		err = ns.Do(func() error {
			a, err := Attach(AttachConfig{Interface: "b", Match: MatchUDP(9000), Mode: AttachNative})
			undo = a.Close
			return err
		})
		return undo, err
	})
}
