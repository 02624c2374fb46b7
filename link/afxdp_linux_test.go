// SPDX-License-Identifier: Apache-2.0

package link

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/internal/linux/neigh"
	"github.com/libra-ina/libra/internal/linux/sys"
	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/internal/test/bedtest"
	"github.com/libra-ina/libra/wire"
)

// receiveOne waits for the first packet that a link receives.
func receiveOne(ctx context.Context, t *testing.T, l Link) Packet {
	t.Helper()
	pkts := make([]Packet, 8)
	for ctx.Err() == nil {
		n, err := l.Receive(pkts)
		if err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			return pkts[0]
		}
		if err := l.Wait(10 * time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("the frame for this link did not arrive")
	return Packet{}
}

// TestForeignTraffic checks that a link does not take the kernel's traffic, and counts frames that
// arrive at its port but are not for it.
func TestForeignTraffic(t *testing.T) {
	ctx := deadline(t)
	bed := bedtest.New(t, testbed.Config{Hosts: 2})
	var link Link
	var kernel, client *net.UDPConn
	at := netip.AddrPortFrom(bed.Host(0).IP, wire.DefaultPort)
	listen := func(host int, port uint16) *net.UDPConn {
		c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(bed.Host(host).IP, port)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	in := func(host int, fn func()) {
		if err := bed.Host(host).Do(func() error { fn(); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	in(0, func() {
		var err error
		if link, err = OpenAFXDP(AFXDPConfig{Interface: bed.Host(0).Interface, Local: at}); err != nil {
			t.Fatal(err)
		}
		kernel = listen(0, 4000)
	})
	in(1, func() { client = listen(1, 0) })
	if _, err := client.WriteToUDPAddrPort([]byte("for the kernel"), netip.AddrPortFrom(at.Addr(), 4000)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 100)
	_ = kernel.SetReadDeadline(time.Now().Add(eventLimit))
	if n, _, err := kernel.ReadFromUDPAddrPort(buf); err != nil || string(buf[:n]) != "for the kernel" {
		t.Fatalf("the kernel's socket got %q, %v", buf[:n], err)
	}

	// Frames to the port: one with a wrong checksum, one for another address, which the kernel gets,
	// one good.
	from := wire.Endpoint{MAC: [6]byte(bed.Host(1).MAC), IP: bed.Host(1).IP, Port: 7}
	to := link.Local()
	other := to
	other.IP = other.IP.Next().Next()
	seal := func(to wire.Endpoint) []byte {
		e, err := wire.NewEnvelope(from, to)
		if err != nil {
			t.Fatal(err)
		}
		frame := make([]byte, e.Len()+100)
		wire.Header{Type: wire.TypeHot, Seq: 77}.Put(frame[e.Len():])
		e.Seal(frame)
		return frame
	}
	corrupt := seal(to)
	corrupt[80] ^= 1
	in(1, func() {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		for _, frame := range [][]byte{corrupt, seal(other), seal(to)} {
			if err := unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: bed.Host(1).Index}); err != nil {
				t.Fatal(err)
			}
		}
	})
	if h, err := wire.ParseHeader(receiveOne(ctx, t, link).Payload); err != nil || h.Seq != 77 {
		t.Errorf("received %+v, %v", h, err)
	}
	if s := link.Stats(); s.BadChecksum != 1 || s.Foreign != 0 || s.Received != 1 {
		t.Errorf("%+v, want one received, and one with a wrong checksum", s)
	}
	in(0, func() {
		before := ipReceived(t)
		in(1, func() { sendRaw(t, bed.Host(1), seal(other)) })
		for end := time.Now().Add(eventLimit); ipReceived(t) == before; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("the kernel does not get frames for another address")
			}
		}
	})

	// After Close the kernel gets the port's frames again.
	if err := link.Close(); err != nil {
		t.Error(err)
	}
	if _, err := link.Receive(make([]Packet, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Receive after Close: %v", err)
	}
	link.Wake() // must be harmless
	in(0, func() { kernel = listen(0, wire.DefaultPort) })
	if _, err := client.WriteToUDPAddrPort([]byte("again"), at); err != nil {
		t.Fatal(err)
	}
	_ = kernel.SetReadDeadline(time.Now().Add(eventLimit))
	if n, _, err := kernel.ReadFromUDPAddrPort(buf); err != nil || string(buf[:n]) != "again" {
		t.Errorf("after Close the kernel's socket got %q, %v", buf[:n], err)
	}
}

// ipReceived returns how many IP packets for other hosts the kernel of the thread's namespace has
// seen, or forwarded.
func ipReceived(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/thread-self/net/snmp")
	if err != nil {
		t.Fatal(err)
	}
	ip := strings.Split(string(text), "\n")[1]
	return strings.Join(strings.Fields(ip)[3:7], " ") // InReceives to ForwDatagrams
}

func sendRaw(t *testing.T, h *testbed.Node, frame []byte) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: h.Index}); err != nil {
		t.Fatal(err)
	}
}

// TestMTU checks that the frames of a link are as long as its user and the interface allow, but no
// longer than the protocol's longest. Its chunks have 4 KB instead of 2 only if needed. XDP runs in
// native mode on a veth whose MTU is that of the longest frames.
func TestMTU(t *testing.T) {
	bed := bedtest.New(t, testbed.Config{Hosts: 1})
	h := bed.Host(0)
	for _, c := range []struct{ iface, wanted, payload, chunk int }{
		{1500, 0, 1472, 2048},
		{1500, 9000, 1472, 2048},
		{1400, 0, 1372, 2048},
		{3440, 0, 1472, 2048},
		{3440, 1600, 1572, 2048},
		{3440, 1772, 1744, 2048},
		{3440, 1773, 1745, 4096},
		{3440, 3440, 3412, 4096},
		{3439, 3440, 3411, 4096},
		{3500, 3500, 3412, 4096},
		{9000, 9000, 3412, 4096},
	} {
		if err := h.Do(func() error { return sys.WriteAttr(h.Interface, "mtu", strconv.Itoa(c.iface)) }); err != nil {
			t.Fatal(err)
		}
		if err := h.Do(func() error {
			l, err := openAFXDP(AFXDPConfig{Interface: h.Interface, Local: netip.AddrPortFrom(h.IP, wire.DefaultPort), MTU: c.wanted})
			if err != nil {
				return err
			}
			defer l.Close()
			if payload, chunk := l.Limits().MaxPayload, l.umem.FrameSize(); payload != c.payload || chunk != c.chunk {
				t.Errorf("MTU %d of the interface, %d wanted: payloads of %d bytes, chunks of %d; want %d, %d", c.iface, c.wanted, payload, chunk, c.payload, c.chunk)
			}
			if mode := l.at.Mode(); mode != afxdp.AttachNative && c.iface <= wire.MaxMTU {
				t.Errorf("MTU %d of the interface: the program is attached in mode %v", c.iface, mode)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := openAFXDP(AFXDPConfig{Interface: "lo", Local: netip.MustParseAddrPort("127.0.0.1:19522"), MTU: -1}); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "AFXDPConfig.MTU is -1") {
		t.Errorf("a negative MTU: %v", err)
	}
}

// TestJumboInterface checks that a link works on an interface with an MTU that its frames do not
// fit, and handles others' long frames to its port.
func TestJumboInterface(t *testing.T) {
	bed := bedtest.New(t, testbed.Config{Hosts: 2, MTU: 9000})
	at := netip.AddrPortFrom(bed.Host(0).IP, wire.DefaultPort)
	var link Link
	if err := bed.Host(0).Do(func() (err error) {
		link, err = OpenAFXDP(AFXDPConfig{Interface: bed.Host(0).Interface, Local: at})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer link.Close()
	var client net.Conn
	if err := bed.Host(1).Do(func() (err error) {
		client, err = net.Dial("udp", at.String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for _, size := range []int{8000, link.Limits().MaxPayload} {
		frame := make([]byte, size)
		wire.Header{Type: wire.TypeHot, Seq: uint32(size)}.Put(frame)
		if _, err := client.Write(frame); err != nil {
			t.Fatal(err)
		}
	}
	pkts := make([]Packet, 8)
	for end := time.Now().Add(eventLimit); ; {
		n, err := link.Receive(pkts)
		if err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			if h, err := wire.ParseHeader(pkts[0].Payload); err != nil || int(h.Seq) != link.Limits().MaxPayload {
				t.Errorf("received %+v, %v", h, err)
			}
			return
		}
		if time.Now().After(end) {
			t.Fatalf("nothing came: %+v", link.Stats())
		}
		if err := link.Wait(10 * time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
}

// TestOpenAFXDPErrors checks the errors when a link cannot be opened.
func TestOpenAFXDPErrors(t *testing.T) {
	bed := bedtest.New(t, testbed.Config{Hosts: 1})
	h := bed.Host(0)
	at := netip.AddrPortFrom(h.IP, wire.DefaultPort)
	for name, c := range map[string]struct {
		cfg    AFXDPConfig
		drop   []int // capabilities
		config bool  // an ErrConfig
		says   []string
	}{
		"no such interface":      {cfg: AFXDPConfig{Interface: "nope", Local: at}, says: []string{"nope"}},
		"without CAP_BPF":        {cfg: AFXDPConfig{Interface: h.Interface, Local: at}, drop: []int{unix.CAP_BPF, unix.CAP_SYS_ADMIN}, says: []string{h.Interface, "CAP_BPF", "udp backend"}},
		"without CAP_NET_RAW":    {cfg: AFXDPConfig{Interface: h.Interface, Local: at}, drop: []int{unix.CAP_NET_RAW}, says: []string{h.Interface, "CAP_NET_RAW", "udp backend"}},
		"someone else's address": {cfg: AFXDPConfig{Interface: h.Interface, Local: netip.MustParseAddrPort("192.0.2.9:1")}, config: true, says: []string{"192.0.2.9", h.IP.String()}},
		"no port":                {cfg: AFXDPConfig{Interface: h.Interface, Local: netip.AddrPortFrom(h.IP, 0)}, config: true, says: []string{"no port"}},
		"negative queue":         {cfg: AFXDPConfig{Interface: h.Interface, Local: at, Queue: -1}, config: true, says: []string{"Queue is -1"}},
		"no such queue":          {cfg: AFXDPConfig{Interface: h.Interface, Local: at, Queue: 5}, says: []string{h.Interface, "queue"}},
		"one queue too far":      {cfg: AFXDPConfig{Interface: h.Interface, Local: at, Queue: 1}, says: []string{h.Interface, "queue 1"}},
		"no zero-copy":           {cfg: AFXDPConfig{Interface: h.Interface, Local: at, ZeroCopy: true}, says: []string{"zero-copy on " + h.Interface, "veth lacks", "BindCopy"}},
		"another zone":           {cfg: AFXDPConfig{Interface: h.Interface, Local: netip.MustParseAddrPort("[fe80::1%nope]:1")}, config: true, says: []string{"nope"}},
	} {
		t.Run(name, func(t *testing.T) {
			var l Link
			var err error
			onThreadOf(t, h, c.drop, func() { l, err = OpenAFXDP(c.cfg) })
			if err == nil {
				t.Fatal("opened", l.Close())
			}
			if errors.Is(err, ErrConfig) != c.config {
				t.Errorf("error %v: ErrConfig is %v, want %v", err, !c.config, c.config)
			}
			for _, says := range c.says {
				if !strings.Contains(err.Error(), says) {
					t.Errorf("error %v, want one about %q", err, says)
				}
			}
		})
	}
}

// onThreadOf runs fn in a host's namespace on its own thread, which has lost some capabilities and
// ends with it.
func onThreadOf(t *testing.T, h *testbed.Node, drop []int, fn func()) {
	t.Helper()
	err := sys.OwnThread(func() error {
		return h.Do(func() error {
			header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			var data [2]unix.CapUserData
			if err := unix.Capget(&header, &data[0]); err != nil {
				return err
			}
			for _, c := range drop {
				data[c/32].Effective &^= 1 << (c % 32)
			}
			if err := unix.Capset(&header, &data[0]); err != nil {
				return err
			}
			fn()
			// Returning from the namespace requires them again.
			for _, c := range drop {
				data[c/32].Effective |= 1 << (c % 32)
			}
			return unix.Capset(&header, &data[0])
		})
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestPathErrors requests paths that do not exist.
func TestPathErrors(t *testing.T) {
	bed := bedtest.New(t, testbed.Config{Hosts: 1})
	h := bed.Host(0)
	onThreadOf(t, h, nil, func() {
		l, err := OpenAFXDP(AFXDPConfig{Interface: h.Interface, Local: netip.AddrPortFrom(h.IP, wire.DefaultPort)})
		if err != nil {
			t.Error(err)
			return
		}
		defer l.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		for name, c := range map[string]struct {
			to   string
			want error
		}{
			"no host":     {"10.77.0.200", neigh.ErrUnresolved},
			"no route":    {"192.0.2.1", neigh.ErrNoRoute},
			"this host":   {h.IP.String(), neigh.ErrLocal},
			"IPv6":        {"2001:db8::1", neigh.ErrNoRoute},
			"unspecified": {"", ErrConfig},
		} {
			var to wire.Endpoint
			if c.to != "" {
				to = wire.Endpoint{IP: netip.MustParseAddr(c.to), Port: 1}
			}
			if _, err := l.Path(ctx, to); !errors.Is(err, c.want) {
				t.Errorf("%s: error %v, want %v", name, err, c.want)
			}
		}
	})
}

// TestLinksLeaveNothing opens and closes links of both kinds and checks that no descriptor stays
// open.
func TestLinksLeaveNothing(t *testing.T) {
	bed := bedtest.New(t, testbed.Config{Hosts: 1})
	h := bed.Host(0)
	descriptors := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	cycle := func() {
		onThreadOf(t, h, nil, func() {
			at := netip.AddrPortFrom(h.IP, wire.DefaultPort)
			for _, open := range []func() (Link, error){
				func() (Link, error) { return OpenAFXDP(AFXDPConfig{Interface: h.Interface, Local: at}) },
				func() (Link, error) { return OpenUDP(at) },
			} {
				l, err := open()
				if err == nil {
					err = errors.Join(l.Close(), l.Close())
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	cycle() // descriptors that are opened once and kept
	before := descriptors()
	for range 3 {
		cycle()
	}
	if after := descriptors(); after > before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}
