// SPDX-License-Identifier: Apache-2.0

package link

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/libra-ina/libra/wire"
)

func openTestUDP(t *testing.T, addr string) Link {
	t.Helper()
	l, err := OpenUDP(netip.MustParseAddrPort(addr))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// TestUDPEcho sends payloads of all sizes there and back, over IPv4 and IPv6.
func TestUDPEcho(t *testing.T) {
	for _, host := range []string{"127.0.0.1:0", "[::1]:0"} {
		a, b := openTestUDP(t, host), openTestUDP(t, host)
		path, err := a.Path(t.Context(), b.Local())
		if err != nil {
			t.Fatal(err)
		}
		var frames []Frame
		for _, n := range []int{wire.HeaderLen, 100, a.Limits().MaxPayload} {
			buf, ok := a.Alloc()
			if !ok {
				t.Fatal("no buffer")
			}
			a.Payload(buf)[n-1] = byte(n)
			frames = append(frames, Frame{Buf: buf, Len: n, To: path, Retx: n == 100})
		}
		if n, err := a.Send(frames); n != len(frames) || err != nil {
			t.Fatalf("Send: %d, %v", n, err)
		}
		for _, f := range frames {
			a.Free(f.Buf)
		}
		got := receiveAll(t, b, len(frames))
		for i := range got {
			got[i].Reply = len(got[i].Payload)
		}
		if err := b.Reply(got); err != nil {
			t.Fatal(err)
		}
		for i, p := range receiveAll(t, a, len(frames)) {
			want := frames[i].Len
			if len(p.Payload) != want || p.Payload[want-1] != byte(want) || p.Src.AddrPort() != b.Local().AddrPort() {
				t.Errorf("%v: answer %d: %d bytes from %v", host, i, len(p.Payload), p.Src)
			}
			if retx := wire.Flags(p.Payload[1])&wire.FlagRetx != 0; retx != frames[i].Retx {
				t.Errorf("%v: answer %d: RETX flag %v", host, i, retx)
			}
		}
	}
}

// receiveAll receives until there are n packets, in one batch: the test sends no more than fit one.
func receiveAll(t *testing.T, l Link, n int) []Packet {
	t.Helper()
	time.Sleep(time.Millisecond)
	pkts := make([]Packet, n)
	for range 1000 {
		got, err := l.Receive(pkts)
		if err != nil {
			t.Fatal(err)
		}
		if got == n {
			return pkts
		}
		if got != 0 {
			t.Fatalf("%d packets of %d in the first batch", got, n)
		}
		if err := l.Wait(10 * time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("nothing received")
	return nil
}

func TestUDPOpenErrors(t *testing.T) {
	taken := openTestUDP(t, "127.0.0.1:0")
	for addr, says := range map[string]string{
		"0.0.0.0:1":                       "0.0.0.0",
		"[::]:1":                          "::",
		"192.0.2.1:1":                     "192.0.2.1",
		taken.Local().AddrPort().String(): "in use",
	} {
		if l, err := OpenUDP(netip.MustParseAddrPort(addr)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v: %v, error %v; want one about %q", addr, l, err, says)
		}
	}
	for _, to := range []string{"[::1]:1", "127.0.0.1:0"} {
		at := netip.MustParseAddrPort(to)
		if _, err := taken.Path(t.Context(), wire.Endpoint{IP: at.Addr(), Port: at.Port()}); err == nil {
			t.Errorf("a path from IPv4 to %v", to)
		}
	}
}

// TestUDPDiscardsLongDatagrams sends more than a frame can hold.
func TestUDPDiscardsLongDatagrams(t *testing.T) {
	l := openTestUDP(t, "127.0.0.1:0")
	c, err := net.Dial("udp", l.Local().AddrPort().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, n := range []int{l.Limits().MaxPayload + 1, 40_000, 20} {
		if _, err := c.Write(make([]byte, n)); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(time.Millisecond)
	pkts := make([]Packet, 8)
	n := 0
	for i := 0; i < 1000 && n == 0; i++ {
		if n, err = l.Receive(pkts); err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			if err := l.Wait(10 * time.Millisecond); err != nil {
				t.Fatal(err)
			}
		}
	}
	if s := l.Stats(); n != 1 || len(pkts[0].Payload) != 20 || s.Truncated != 2 || s.Received != 1 {
		t.Errorf("received %d, %+v", n, s)
	}
}

// TestUDPLinkLocal sends there and back between link-local addresses, whose zone
// names the interface.
func TestUDPLinkLocal(t *testing.T) {
	for _, zone := range []func(net.Interface) string{
		func(i net.Interface) string { return i.Name },
		func(i net.Interface) string { return strconv.Itoa(i.Index) },
	} {
		ifi, ip := linkLocalInterface(t)
		at := netip.AddrPortFrom(ip.WithZone(zone(ifi)), 0)
		var links [2]Link
		for i := range links {
			var err error
			if links[i], err = OpenUDP(at); err != nil {
				t.Fatal(err)
			}
			defer links[i].Close()
		}
		a, b := links[0], links[1]
		to := b.Local()
		if to.IP != ip {
			t.Errorf("local address %v, want %v: frames carry no zone", to.IP, ip)
		}
		// In the form of a configuration, with the zone.
		to.IP = at.Addr()
		path, err := a.Path(t.Context(), to)
		if err != nil {
			t.Fatal(err)
		}
		buf, _ := a.Alloc()
		if n, err := a.Send([]Frame{{Buf: buf, Len: 20, To: path}}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		got := receiveAll(t, b, 1)
		if got[0].Src.AddrPort() != a.Local().AddrPort() {
			t.Errorf("received from %v, want %v", got[0].Src, a.Local())
		}
		got[0].Reply = 20
		if err := b.Reply(got); err != nil {
			t.Fatal(err)
		}
		if p := receiveAll(t, a, 1)[0]; p.Src.AddrPort() != path.To().AddrPort() {
			t.Errorf("answered from %v, want %v", p.Src, path.To())
		}
		// The address that an aggregator learns from a frame is also a return path.
		if back, err := b.Path(t.Context(), got[0].Src); err != nil {
			t.Error(err)
		} else if n, err := b.Send([]Frame{{Buf: buf, Len: 20, To: back}}); n != 1 || err != nil {
			t.Error(n, err)
		} else {
			receiveAll(t, a, 1)
		}
	}
}

// linkLocalInterface returns an interface with a link-local address.
func linkLocalInterface(t *testing.T) (net.Interface, netip.Addr) {
	t.Helper()
	all, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, ifi := range all {
		addrs, _ := ifi.Addrs()
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is6() && p.Addr().IsLinkLocalUnicast() {
				return ifi, p.Addr()
			}
		}
	}
	t.Skip("no interface has an IPv6 link-local address")
	return net.Interface{}, netip.Addr{}
}

// TestZones checks the errors for invalid zones.
func TestZones(t *testing.T) {
	for addr, says := range map[string]string{
		"[fe80::1]:1":         "fe80::1%eth0",
		"[fe80::1%nope]:1":    `zone "nope" is no interface`,
		"[fe80::1%0]:1":       `zone "0" is no interface`,
		"[fe80::1%9999999]:1": `zone "9999999" is no interface`,
	} {
		if l, err := OpenUDP(netip.MustParseAddrPort(addr)); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), says) {
			t.Errorf("%v: %v, error %v; want one about %q", addr, l, err, says)
		}
	}
	// IPv4 also has link-local addresses, but no zones.
	if l, err := OpenUDP(netip.MustParseAddrPort("169.254.7.7:0")); err == nil || strings.Contains(err.Error(), "%") {
		t.Errorf("169.254.7.7: %v, %v", l, err)
	}
	l := openTestUDP(t, "[::1]:0")
	for zone, says := range map[string]string{"nope": `zone "nope"`, "lo": "the link is not on"} {
		to := wire.Endpoint{IP: netip.MustParseAddr("fe80::1").WithZone(zone), Port: 1}
		p, err := l.Path(t.Context(), to)
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("path to %v: %v, error %v; want one about %q", to, p, err, says)
		} else if both := fmt.Sprintf("from udp address %v to ", l.Local()); !strings.Contains(err.Error(), both) {
			t.Errorf("error %v, want one with %q", err, both)
		}
	}
}

// A socket of package net passes the zone to the system only for link-local peers.
func TestUDPZoneOfPeers(t *testing.T) {
	for to, want := range map[string]string{
		"[fe80::1]:7": "[fe80::1%here]:7", "[2001:db8::1]:7": "[2001:db8::1]:7", "169.254.1.1:7": "169.254.1.1:7",
	} {
		if got := inZone(netip.MustParseAddrPort(to), "here"); got.String() != want {
			t.Errorf("%s becomes %v, want %s", to, got, want)
		}
	}
}

// TestUDPPathToAnotherFamily has no path, and the error names both ends as given.
func TestUDPPathToAnotherFamily(t *testing.T) {
	l := openTestUDP(t, "[::1]:0")
	to := wire.Endpoint{IP: netip.MustParseAddr("127.0.0.1"), Port: 7}
	says := fmt.Sprintf("from udp address %v to 127.0.0.1:7", l.Local())
	if p, err := l.Path(t.Context(), to); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), says) {
		t.Errorf("path %v, error %v; want one about %q", p, err, says)
	}
}

// TestUDPMappedAddress binds an IPv4 address that is written as an IPv6 one.
func TestUDPMappedAddress(t *testing.T) {
	l := openTestUDP(t, "[::ffff:127.0.0.1]:0")
	if ip := l.Local().IP; !ip.Is4() {
		t.Errorf("the link is at %v, want an IPv4 address", ip)
	}
	to := wire.Endpoint{IP: netip.MustParseAddr("::ffff:127.0.0.1"), Port: 1}
	if p, err := l.Path(t.Context(), to); err != nil || !p.To().IP.Is4() {
		t.Errorf("path to %v: %v, %v", to, p, err)
	}
}

// TestUDPWindow checks that four senders' windows fit a receive buffer.
func TestUDPWindow(t *testing.T) {
	for buffer, want := range map[int]int{
		0: 16, 4 * 17 * udpCharge: 16, 4*32*udpCharge - 1: 16, 4 * 32 * udpCharge: 32, 4*64*udpCharge + 1: 64,
		4 * 128 * udpCharge: 128, 1 << 30: 128,
	} {
		if got := udpWindow(buffer); got != want {
			t.Errorf("with a buffer of %d bytes the window is %d, want %d", buffer, got, want)
		}
	}
}

// TestUDPRefusedFrame has a frame in a batch that the kernel does not send: the others are sent,
// and it is counted with its reason.
func TestUDPRefusedFrame(t *testing.T) {
	for name, open := range map[string]func(netip.AddrPort) (Link, error){"mmsg": OpenUDP, "net": OpenNetUDP} {
		t.Run(name, func(t *testing.T) {
			var links [2]Link
			for i := range links {
				var err error
				if links[i], err = open(netip.MustParseAddrPort("127.0.0.1:0")); err != nil {
					t.Fatal(err)
				}
				defer links[i].Close()
			}
			good, err := links[0].Path(t.Context(), links[1].Local())
			if err != nil {
				t.Fatal(err)
			}
			// No packet can be sent from the loopback interface's address to another host.
			bad, err := links[0].Path(t.Context(), wire.Endpoint{IP: netip.MustParseAddr("192.0.2.1"), Port: 1})
			if err != nil {
				t.Fatal(err)
			}
			seen := listen(t, links[0], 1<<20)
			var frames []Frame
			for i, to := range []Path{bad, good, good, bad, bad, good} {
				b, _ := links[0].Alloc()
				wire.Header{Type: wire.TypePull, Seq: uint32(i)}.Put(links[0].Payload(b))
				frames = append(frames, Frame{Buf: b, Len: 20, To: to})
			}
			if n, err := links[0].Send(frames); n != len(frames) || err != nil {
				t.Fatal(n, err)
			}
			if s := links[0].Stats(); s.Sent != 3 || s.SendError != 3 || s.LastError == nil {
				t.Errorf("%+v, want 3 of each, and why", s)
			}
			for i, want := range []uint32{1, 2, 5} {
				got := receiveAll(t, links[1], 1)
				if h, err := wire.ParseHeader(got[0].Payload); err != nil || h.Seq != want {
					t.Errorf("frame %d is %+v, %v; want number %d", i, h, err, want)
				}
			}
			if n := len(readAll(seen)); n != 3 {
				t.Errorf("the tap shows %d frames, want the 3 that were sent", n)
			}
			// The next batch starts again.
			if n, err := links[0].Send(frames[1:3]); n != 2 || err != nil || links[0].Stats().SendError != 3 {
				t.Errorf("%d, %v, %+v", n, err, links[0].Stats())
			}
		})
	}
}
