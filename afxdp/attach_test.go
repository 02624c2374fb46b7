//go:build linux

package afxdp

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"

	"github.com/libra-ina/libra/internal/testbed"
)

// passProgram is somebody else's XDP program.
func passProgram(t testing.TB) *ebpf.Program {
	t.Helper()
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.XDP, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, xdpPass), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { prog.Close() })
	return prog
}

// attachedID returns the id of the program on "b", 0 for none.
func attachedID(t testing.TB, ns *testbed.Namespace) (id uint32) {
	t.Helper()
	err := ns.Do(func() error {
		ifi, err := net.InterfaceByName("b")
		if err == nil {
			id = attachedProgram(ifi.Index)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestForeignProgramStays(t *testing.T) {
	foreign := passProgram(t)
	info, err := foreign.Info()
	if err != nil {
		t.Fatal(err)
	}
	want, _ := info.ID()
	for name, put := range map[string]func(*testing.T, *testbed.Namespace){
		"by bpf_link": func(t *testing.T, ns *testbed.Namespace) {
			attach(t, ns, AttachConfig{Interface: "b", Program: foreign})
		},
		"by bpf_link, in generic mode": func(t *testing.T, ns *testbed.Namespace) {
			attach(t, ns, AttachConfig{Interface: "b", Program: foreign, Mode: AttachGeneric})
		},
		"by netlink, as ip link does": func(t *testing.T, ns *testbed.Namespace) {
			err := ns.Do(func() error {
				l, err := netlink.LinkByName("b")
				if err != nil {
					return err
				}
				return netlink.LinkSetXdpFd(l, foreign.FD())
			})
			if err != nil {
				t.Fatal(err)
			}
		},
	} {
		for _, mode := range []AttachMode{AttachAuto, AttachNative, AttachGeneric} {
			t.Run(name+"/"+mode.String(), func(t *testing.T) {
				ns := newNet(t, testbed.VethConfig{})
				put(t, ns)
				err := ns.Do(func() error {
					a, err := Attach(AttachConfig{Interface: "b", Mode: mode})
					if err == nil {
						a.Close()
					}
					return err
				})
				wantErr(t, err, ErrProgramAttached)
				if got := attachedID(t, ns); got != uint32(want) {
					t.Errorf("program on the interface is %d, want the foreign %d", got, want)
				}
			})
		}
	}
}

func TestDetachLeavesInterfaceAsItWas(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	for _, mode := range []AttachMode{AttachNative, AttachGeneric} {
		a := attach(t, ns, AttachConfig{Interface: "b", Mode: mode})
		if a.Mode() != mode {
			t.Errorf("mode is %v, want %v", a.Mode(), mode)
		}
		if attachedID(t, ns) == 0 {
			t.Error("no program on the interface")
		}
		if err := errors.Join(a.Close(), a.Close()); err != nil {
			t.Fatal(err)
		}
		wantErr(t, ns.Do(a.Reattach), net.ErrClosed)
		if id := attachedID(t, ns); id != 0 {
			t.Errorf("program %d is still there", id)
		}
	}
}

// An Attachment that nobody refers to must not be collected with its link.
func TestForgottenAttachmentStays(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	err := ns.Do(func() error {
		_, err := Attach(AttachConfig{Interface: "b"})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		runtime.GC()
	}
	time.Sleep(10 * time.Millisecond) // finalizers run in a goroutine of their own
	if attachedID(t, ns) == 0 {
		t.Error("the garbage collector detached the program")
	}
	attached.Range(func(a, _ any) bool { return a.(*Attachment).Close() == nil })
}

func TestAttachErrors(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	for name, c := range map[string]struct {
		cfg  AttachConfig
		want error
	}{
		"absent interface": {AttachConfig{Interface: "nosuch"}, ErrInterfaceGone},
		"negative queues":  {AttachConfig{Interface: "b", Queues: -1}, ErrConfig},
	} {
		err := ns.Do(func() error {
			_, err := Attach(c.cfg)
			return err
		})
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	jumbo := newNet(t, testbed.VethConfig{MTU: 9000})
	err := jumbo.Do(func() error {
		_, err := Attach(AttachConfig{Interface: "b", Mode: AttachNative})
		return err
	})
	if !errors.Is(err, ErrFrameTooSmall) || !strings.Contains(err.Error(), "MultiBuffer") {
		t.Errorf("MTU 9000 without fragments: %v", err)
	}
	// Auto falls back to the generic hook.
	if a := attach(t, jumbo, AttachConfig{Interface: "b"}); a.Mode() != AttachGeneric {
		t.Errorf("mode %v, want generic", a.Mode())
	}
}

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

// The verdicts are those of the program run on crafted packets, without a
// network: 4 is XDP_REDIRECT, 2 XDP_PASS. Without a socket in the map
// bpf_redirect_map gives PASS, too, so a socket is needed.
func TestUDPFilter(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	a := attach(t, ns, AttachConfig{Interface: "b", UDPPort: 9000})
	open(t, ns, newPool(t, newUMEM(t, UMEMConfig{}), 0), Config{Interface: "b", XSKMap: a.XSKMap()})
	const redirect = 4
	for name, c := range map[string]struct {
		packet []byte
		want   uint32
	}{
		"IPv4":                {udpPacket(false, false, 9000, nil), redirect},
		"IPv4 in a VLAN":      {udpPacket(false, true, 9000, nil), redirect},
		"IPv4 with options":   {udpPacket(false, false, 9000, func(ip []byte) { ip[0] = 0x47 }), redirect},
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
		"truncated UDP":       {udpPacket(false, false, 9000, nil)[:14+20+7], xdpPass},
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

// Packets that the filter does not want reach the kernel's sockets.
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
	a := attach(t, peer, AttachConfig{Interface: "far", UDPPort: 9000})
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
	if err := in.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if n, err := in.Read(buf); err != nil || string(buf[:n]) != "to 9001" {
		t.Errorf("kernel socket received %q, %v", buf[:n], err)
	}
	if ev, err := s.Poll(EventRx, 5*time.Second); ev != EventRx || err != nil {
		t.Fatal(ev, err)
	}
	descs := make([]Desc, 4)
	n, err := s.Receive(descs)
	if err != nil || n != 1 || !strings.HasSuffix(string(s.UMEM().Packet(descs[0])), "to 9000") {
		t.Errorf("AF_XDP socket received %d packets, %v", n, err)
	}
}

func TestRxHints(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	a := attach(t, ns, AttachConfig{Interface: "b", Hints: true})
	u := newUMEM(t, UMEMConfig{})
	s := open(t, ns, newPool(t, u, 2048), Config{Interface: "b", XSKMap: a.XSKMap()})
	tx := open(t, ns, newPool(t, u, 0), Config{Interface: "a"})
	p := udpPacket(false, true, 9000, func(ip []byte) { ip[15], ip[19] = 1, 2 })
	f, _ := tx.Pool().Alloc()
	d := Desc{Frame: f, Off: 256, Len: uint32(len(p))}
	copy(u.Packet(d), p)
	transmit(t, tx, []Desc{d})
	if ev, err := s.Poll(EventRx, 5*time.Second); ev != EventRx || err != nil {
		t.Fatal(ev, err)
	}
	descs := make([]Desc, 1)
	if n, err := s.Receive(descs); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	h, ok := u.RxHints(descs[0])
	if !ok {
		t.Fatal("no hints before the packet")
	}
	// veth computes a hash, has no clock, and leaves the tag in the packet.
	if h.Hash == 0 || h.Timestamp != 0 {
		t.Errorf("hints are %+v", h)
	}
	if _, again := u.RxHints(descs[0]); again {
		t.Error("hints were read twice: a later packet could show them as its own")
	}
	// A program that is bound to a device runs in the driver only.
	ns2 := newNet(t, testbed.VethConfig{})
	err := ns2.Do(func() error {
		_, err := Attach(AttachConfig{Interface: "b", Hints: true, Mode: AttachGeneric})
		return err
	})
	wantErr(t, err, ErrConfig)
}
