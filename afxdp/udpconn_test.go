// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/neigh"
	"github.com/libra-ina/libra/internal/linux/testbed"
)

// newConn returns a connection of host0 and its bed.
func newConn(t *testing.T, queues int) (*testbed.Bed, *UDPConn) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to create network namespaces")
	}
	before := descriptors(t)
	bed, err := testbed.New(t.Context(), testbed.Config{Hosts: 2, Queues: queues})
	if err != nil {
		t.Fatal(err)
	}
	c := listen(t, bed, netip.AddrPortFrom(bed.Host(0).IP, 7000))
	t.Cleanup(func() {
		if err := errors.Join(c.Close(), c.Close(), bed.Close()); err != nil {
			t.Error(err)
		}
		if after := descriptors(t); fmt.Sprint(before) != fmt.Sprint(after) {
			t.Errorf("descriptors leaked: %v, then %v", before, after)
		}
	})
	return bed, c
}

func listen(t *testing.T, bed *testbed.Bed, local netip.AddrPort) *UDPConn {
	t.Helper()
	var c *UDPConn
	err := bed.Host(0).Do(func() (err error) {
		c, err = ListenUDP("host0", local)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// kernelConn is a socket of a machine's kernel.
func kernelConn(t *testing.T, node *testbed.Node) *net.UDPConn {
	t.Helper()
	var c *net.UDPConn
	err := node.Do(func() (err error) {
		c, err = net.ListenUDP("udp4", &net.UDPAddr{IP: node.IP.AsSlice()})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(eventLimit)); err != nil {
		t.Fatal(err)
	}
	return c
}

// Packets to other addresses of the machine pass, unless the connection is for all.
func TestUDPConnHasItsAddress(t *testing.T) {
	for local, want := range map[string]string{"10.0.0.1:7000": "10.0.0.1:7000", "0.0.0.0:7000": "10.0.0.3:7000"} {
		ns := newNet(t, testbed.VethConfig{})
		var c *UDPConn
		if err := ns.Do(func() (err error) { c, err = ListenUDP("b", netip.MustParseAddrPort(local)); return err }); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		a := open(t, ns, newPool(t, newUMEM(t, UMEMConfig{}), 0), Config{Interface: "a", RxFrames: -1})
		var descs []Desc
		for _, to := range []string{"10.0.0.3:7000", "10.0.0.1:7000"} {
			f, _ := a.Pool().Alloc()
			h := UDPHeaders{From: netip.MustParseAddrPort("10.0.0.2:9"), To: netip.MustParseAddrPort(to)}
			n, err := h.Put(a.UMEM().Bytes(f)[256:], []byte(to))
			if err != nil {
				t.Fatal(err)
			}
			descs = append(descs, Desc{Frame: f, Off: 256, Len: uint32(n)})
		}
		transmit(t, a, descs)
		if err := c.SetReadDeadline(time.Now().Add(eventLimit)); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 100)
		if n, _, err := c.ReadFrom(buf); string(buf[:n]) != want || err != nil {
			t.Errorf("at %s: read what was sent to %q first, %v, want %s", local, buf[:n], err, want)
		}
	}
}

// A multicast address cannot be a sender: answers to it would reach the whole group.
func TestUDPConnOfGroupSendsFromItsOwnAddress(t *testing.T) {
	bed, c := newConn(t, 1)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	k := kernelConn(t, bed.Switch())
	to := netip.AddrPortFrom(bed.Switch().IP, uint16(k.LocalAddr().(*net.UDPAddr).Port))
	want := netip.AddrPortFrom(bed.Host(0).IP, 7000)
	for _, local := range []string{"0.0.0.0:7000", "224.0.0.5:7000", "255.255.255.255:7000"} {
		c := listen(t, bed, netip.MustParseAddrPort(local))
		if _, err := c.WriteToUDPAddrPort([]byte(local), to); err != nil {
			t.Errorf("%s: %v", local, err)
		}
		if err := k.SetReadDeadline(time.Now().Add(eventLimit)); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 100)
		n, from, err := k.ReadFromUDPAddrPort(buf)
		if from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port()); string(buf[:n]) != local || from != want || err != nil {
			t.Errorf("at %s: read %q from %v, %v, want it from %v", local, buf[:n], from, err, want)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A packet that was changed on its way is not read.
func TestUDPConnDropsWrongChecksums(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	h := UDPHeaders{From: netip.MustParseAddrPort("10.0.0.2:9"), To: netip.MustParseAddrPort("10.0.0.1:7000")}
	var c *UDPConn
	if err := ns.Do(func() (err error) { c, err = ListenUDP("b", h.To); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	a := open(t, ns, newPool(t, newUMEM(t, UMEMConfig{}), 0), Config{Interface: "a", RxFrames: -1})
	var descs []Desc
	for _, payload := range []string{"changed", "whole"} {
		f, _ := a.Pool().Alloc()
		packet := a.UMEM().Bytes(f)[256:]
		n, err := h.Put(packet, []byte(payload))
		if err != nil {
			t.Fatal(err)
		}
		if payload == "changed" {
			packet[n-1]++
		}
		descs = append(descs, Desc{Frame: f, Off: 256, Len: uint32(n)})
	}
	transmit(t, a, descs)
	if err := c.SetReadDeadline(time.Now().Add(eventLimit)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 100)
	if n, from, err := c.ReadFrom(buf); string(buf[:n]) != "whole" || err != nil || from.String() != h.From.String() {
		t.Errorf("read %q from %v, %v", buf[:n], from, err)
	}
}

// A program that uses only package net exchanges packets with kernel sockets on another machine, on
// all queues; the kernel provides the route, including ARP.
func TestUDPConn(t *testing.T) {
	const peers = 40 // whose ports differ, so that their packets arrive on both queues
	bed, c := newConn(t, 2)
	var served sync.WaitGroup
	served.Go(func() { upperCase(c) })
	for i := range peers {
		k := kernelConn(t, bed.Switch())
		question := fmt.Sprint("question ", i)
		if _, err := k.WriteTo([]byte(question), c.LocalAddr()); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 100)
		n, from, err := k.ReadFrom(buf)
		if err != nil || string(buf[:n]) != strings.ToUpper(question) || from.String() != c.LocalAddr().String() {
			t.Fatalf("%q from %v, %v", buf[:n], from, err)
		}
	}
	for _, s := range c.Group().Sockets() {
		until(t, "packets of both queues in the counters", func() bool { // which tell when the reader sleeps
			st, err := s.Snapshot()
			if err != nil {
				t.Fatal(err)
			}
			return st.RxReceived > 0
		})
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	served.Wait()
}

// upperCase answers each packet, until the connection is closed.
func upperCase(c net.PacketConn) {
	buf := make([]byte, 2000)
	for {
		n, from, err := c.ReadFrom(buf)
		if err == nil {
			_, err = c.WriteTo([]byte(strings.ToUpper(string(buf[:n]))), from)
		}
		if errors.Is(err, net.ErrClosed) {
			return
		}
	}
}

// Many goroutines write while one reads; frames are reused.
func TestUDPConnOfManyWriters(t *testing.T) {
	const writers, packets = 4, 600
	bed, c := newConn(t, 1)
	k := kernelConn(t, bed.Host(1))
	raw, err := k.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	// All packets wait here: more than net.core.rmem_max lets SetReadBuffer have.
	controlErr := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20) })
	if err := errors.Join(controlErr, err); err != nil {
		t.Fatal(err)
	}
	to := k.LocalAddr().(*net.UDPAddr).AddrPort()
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for i := range packets {
				if n, err := c.WriteToUDPAddrPort(make([]byte, 1+i%1400), to); n != 1+i%1400 || err != nil {
					t.Error(n, err)
					return
				}
			}
		})
	}
	wg.Wait()
	buf := make([]byte, 2000)
	for i := range writers * packets {
		if _, err := k.Read(buf); err != nil {
			t.Fatalf("%d packets came: %v", i, err)
		}
	}
}

func TestUDPConnRefuses(t *testing.T) {
	bed, c := newConn(t, 1)
	to := netip.AddrPortFrom(bed.Host(1).IP, 9)
	for name, c := range map[string]struct {
		call func() error
		want error
	}{
		"too long":       {func() error { _, err := c.WriteToUDPAddrPort(make([]byte, testbed.DefaultMTU-27), to); return err }, unix.EMSGSIZE},
		"longest":        {func() error { _, err := c.WriteToUDPAddrPort(make([]byte, testbed.DefaultMTU-28), to); return err }, nil},
		"another family": {func() error { _, err := c.WriteToUDPAddrPort(nil, netip.MustParseAddrPort("[fe80::1]:9")); return err }, unix.EAFNOSUPPORT},
		"no address":     {func() error { _, err := c.WriteTo(nil, &net.TCPAddr{}); return err }, ErrConfig},
		"no interface":   {func() error { _, err := ListenUDP("nosuch", to); return err }, ErrInterfaceGone},
		"no port":        {func() error { _, err := ListenUDP("lo", netip.AddrPortFrom(to.Addr(), 0)); return err }, ErrConfig},
		"no Ethernet":    {func() error { _, err := ListenUDP("lo", to); return err }, ErrConfig},
		"taken": {func() error {
			return bed.Host(0).Do(func() error { _, err := ListenUDP("host0", netip.AddrPortFrom(bed.Host(0).IP, 7001)); return err })
		}, ErrProgramAttached},
	} {
		if err := c.call(); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

// Headers of UDPHeaders are parsed by ParseUDP.
func TestUDPHeaders(t *testing.T) {
	four, six := netip.MustParseAddrPort("192.0.2.1:1000"), netip.MustParseAddrPort("[2001:db8::1]:1000")
	for _, c := range []struct {
		from, to netip.AddrPort
		room     int
		ok       bool
	}{
		{four, netip.MustParseAddrPort("198.51.100.7:53"), 100, true},
		{six, netip.MustParseAddrPort("[2001:db8::2]:53"), 100, true},
		{four, netip.MustParseAddrPort("198.51.100.7:53"), 14 + 20 + 8 + 4, false},
		{four, six, 100, false},
		{netip.AddrPort{}, four, 100, false},
	} {
		frame := make([]byte, c.room)
		for i := range frame {
			frame[i] = 0xa5 // from an earlier packet
		}
		h := UDPHeaders{FromMAC: [6]byte{2, 0, 0, 0, 0, 1}, ToMAC: [6]byte{2, 0, 0, 0, 0, 2}, From: c.from, To: c.to}
		n, err := h.Put(frame, []byte("hello"))
		if !c.ok {
			wantErr(t, err, ErrDescriptor)
			continue
		}
		u, ok := ParseUDP(frame[:n])
		if err != nil || !ok || u.Source() != c.from || u.Destination() != c.to || string(u.Payload()) != "hello" || !u.ChecksumValid() {
			t.Errorf("%v to %v: % x, %v", c.from, c.to, frame[:n], err)
		}
		clean := make([]byte, c.room)
		if _, err := h.Put(clean, []byte("hello")); err != nil || !bytes.Equal(clean[:n], frame[:n]) {
			t.Errorf("%v to %v: something is left of the packet before: % x, want % x, %v", c.from, c.to, frame[:n], clean[:n], err)
		}
		if frame[5] != 2 || frame[11] != 1 {
			t.Errorf("MAC addresses % x", frame[:12])
		}
	}
}

// While the link is down one packet waits for it; others are refused, and not sent later. Reading
// continues when it is up again.
func TestUDPConnWhileTheLinkIsDown(t *testing.T) {
	bed, c := newConn(t, 1)
	k := kernelConn(t, bed.Switch())
	to := k.LocalAddr().(*net.UDPAddr).AddrPort()
	setUp := func(up bool) {
		t.Helper()
		err := bed.Host(0).Do(func() error {
			l, err := netlink.LinkByName("host0")
			if err != nil {
				return err
			}
			if up {
				return netlink.LinkSetUp(l)
			}
			return netlink.LinkSetDown(l)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for number, want := range []error{nil, nil, ErrLinkDown, ErrLinkDown, nil} {
		switch number {
		case 1:
			setUp(false)
		case 4:
			setUp(true)
			until(t, "the bridge", func() bool { // it forwards when it has noticed
				up := true
				err := bed.Switch().Do(func() error {
					links, err := netlink.LinkList()
					for _, l := range links {
						up = up && (l.Attrs().MasterIndex == 0 || l.Attrs().OperState == netlink.OperUp)
					}
					return err
				})
				return up && err == nil
			})
		}
		n, err := c.WriteToUDPAddrPort([]byte{byte(number)}, netip.AddrPortFrom(to.Addr().Unmap(), to.Port()))
		if !errors.Is(err, want) || (n == 1) != (want == nil) {
			t.Fatalf("packet %d: %d, %v; want %v", number, n, err, want)
		}
	}
	buf := make([]byte, 100)
	for _, want := range []byte{0, 1, 4} {
		if n, _, err := k.ReadFrom(buf); n != 1 || buf[0] != want || err != nil {
			t.Fatalf("packet % x, %v; want %d", buf[:n], err, want)
		}
	}
	c.ready = []Ready{{Socket: c.sender(), Err: ErrLinkDown}}
	if _, err := k.WriteTo([]byte("hello"), c.LocalAddr()); err != nil {
		t.Fatal(err)
	}
	if n, _, err := c.ReadFrom(buf); string(buf[:n]) != "hello" || err != nil {
		t.Errorf("read %q, %v", buf[:n], err)
	}
}

// However many addresses packets are sent to, a limited number of routes is kept.
func TestUDPConnForgetsWays(t *testing.T) {
	var c UDPConn
	kept := func() (n int) {
		c.hops.of.Range(func(any, any) bool { n++; return true })
		return n
	}
	address := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}) }
	for i := range maxHops {
		for range 2 { // an answer in place of an expired one
			c.hops.putHop(address(i), neigh.Hop{})
		}
	}
	if n := kept(); n != maxHops {
		t.Errorf("%d are kept, want %d", n, maxHops)
	}
	for i := range 3 * maxHops {
		c.hops.putHop(address(maxHops+i), neigh.Hop{})
		if n := c.hops.size; n > maxHops {
			t.Fatalf("%d are kept", n)
		}
	}
	if n := kept(); n > maxHops || n != c.hops.size {
		t.Errorf("%d are kept, and %d counted", n, c.hops.size)
	}
}
