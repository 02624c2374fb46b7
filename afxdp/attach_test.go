// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"errors"
	"net"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/internal/test/refuse"
)

// passProgram is another XDP program.
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

// attachedID returns the ID of the program on "b", 0 if there is none.
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
					a, err := Attach(AttachConfig{Interface: "b", Match: MatchAll(), Mode: mode})
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
		a := attach(t, ns, AttachConfig{Interface: "b", Match: MatchAll(), Mode: mode})
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

// An Attachment without references must not be collected with its link.
func TestForgottenAttachmentStays(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	err := ns.Do(func() error {
		_, err := Attach(AttachConfig{Interface: "b", Match: MatchAll()})
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

func TestAttachQueues(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	for queues, want := range map[int]uint32{0: 256, 3: 3} {
		a := attach(t, ns, AttachConfig{Interface: "b", Match: MatchAll(), Queues: queues})
		if n := a.XSKMap().MaxEntries(); n != want {
			t.Errorf("%d queues: the map has %d entries, want %d", queues, n, want)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestAttachErrors(t *testing.T) {
	filter, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SocketFilter, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { filter.Close() }) // after the networks' count of descriptors
	ns := newNet(t, testbed.VethConfig{})
	for name, c := range map[string]struct {
		cfg  AttachConfig
		want error
	}{
		"absent interface": {AttachConfig{Interface: "nosuch", Match: MatchAll()}, ErrInterfaceGone},
		"no match":         {AttachConfig{Interface: "b"}, ErrConfig},
		"invalid match":    {AttachConfig{Interface: "b", Match: MatchPortRange(2, 1)}, ErrConfig},
		"negative queues":  {AttachConfig{Interface: "b", Match: MatchAll(), Queues: -1}, ErrConfig},
		"mode":             {AttachConfig{Interface: "b", Match: MatchAll(), Mode: AttachGeneric + 1}, ErrConfig},
		"other program":    {AttachConfig{Interface: "b", Program: filter}, ErrConfig},
		"many others":      {AttachConfig{Interface: "b", Match: MatchUDP(1), Others: slices.Repeat([]Match{MatchUDP(2)}, maxOthers+1)}, ErrConfig},
		// It also has the largest MTU, which is not the reason.
		"no hook": {AttachConfig{Interface: "lo", Match: MatchAll(), Mode: AttachNative}, errors.ErrUnsupported},
	} {
		err := ns.Do(func() error {
			_, err := Attach(c.cfg)
			return err
		})
		if !errors.Is(err, c.want) || errors.Is(err, ErrFrameTooSmall) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	jumbo := newNet(t, testbed.VethConfig{MTU: 9000})
	err = jumbo.Do(func() error {
		_, err := Attach(AttachConfig{Interface: "b", Match: MatchAll(), Mode: AttachNative})
		return err
	})
	if !errors.Is(err, ErrFrameTooSmall) || !strings.Contains(err.Error(), "MultiBuffer") {
		t.Errorf("MTU 9000 without fragments: %v", err)
	}
	// As many as the kernel allows maps of a program.
	attach(t, ns, AttachConfig{Interface: "b", Match: MatchUDP(1), Others: slices.Repeat([]Match{MatchUDP(2)}, maxOthers), Hints: hasHints()})
	// Auto falls back to the generic hook.
	if a := attach(t, jumbo, AttachConfig{Interface: "b", Match: MatchAll()}); a.Mode() != AttachGeneric {
		t.Errorf("mode %v, want generic", a.Mode())
	}
}

// hasHints reports whether the kernel has functions for hints. They are older than those that
// report devices' features.
func hasHints() bool {
	d, err := QueryDevice("lo")
	return err == nil && d.Known
}

func TestRxHints(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	a := attach(t, ns, AttachConfig{Interface: "b", Match: MatchAll(), Hints: true})
	u := newUMEM(t, UMEMConfig{})
	s := open(t, ns, newPool(t, u, 2048), Config{Interface: "b", XSKMap: a.XSKMap()})
	tx := open(t, ns, newPool(t, u, 0), Config{Interface: "a"})
	p := udpPacket(false, true, 9000, func(ip []byte) { ip[15], ip[19] = 1, 2 })
	f, _ := tx.Pool().Alloc()
	d := Desc{Frame: f, Off: 256, Len: uint32(len(p))}
	copy(u.Packet(d), p)
	transmit(t, tx, []Desc{d})
	if ev, err := s.Poll(EventRx, eventLimit); ev != EventRx || err != nil {
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
	// A program that is bound to a device runs only in the driver.
	ns2 := newNet(t, testbed.VethConfig{})
	err := ns2.Do(func() error {
		_, err := Attach(AttachConfig{Interface: "b", Match: MatchAll(), Hints: true, Mode: AttachGeneric})
		return err
	})
	wantErr(t, err, ErrConfig)
}

func TestAttachMeetsErrors(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	try := func(cfg AttachConfig) func() error {
		return func() error {
			a, err := Attach(cfg)
			if err == nil {
				err = a.Close()
			}
			return err
		}
	}
	plain := AttachConfig{Interface: "b", Match: MatchAll()}
	noHints := "receive hints needs a driver with XDP metadata; leave AttachConfig.Hints out: "
	if !hasHints() {
		noHints = "receive hints (bpf_xdp_metadata_rx_timestamp) needs Linux 6.3 or later"
	}
	load := func(err unix.Errno) refuse.Call { return bpfCommand(unix.BPF_PROG_LOAD, err) }
	attach := func(err unix.Errno) refuse.Call { return bpfCommand(unix.BPF_LINK_CREATE, err) }
	for name, c := range map[string]struct {
		cfg   AttachConfig
		call  refuse.Call
		want  error
		words string
	}{
		"map":             {plain, bpfCommand(unix.BPF_MAP_CREATE, unix.EDOM), unix.EDOM, "afxdp: create XSKMAP: "},
		"map, privilege":  {plain, bpfCommand(unix.BPF_MAP_CREATE, unix.EPERM), ErrPermission, "create XSKMAP needs CAP_BPF and CAP_NET_ADMIN: "},
		"load":            {plain, load(unix.EDOM), unix.EDOM, "afxdp: load XDP program: "},
		"load, privilege": {plain, load(unix.EPERM), ErrPermission, "load XDP program needs CAP_BPF"},
		"fragments":       {AttachConfig{Interface: "b", Match: MatchAll(), MultiBuffer: true}, load(unix.EINVAL), errors.ErrUnsupported, "XDP programs for several buffers needs Linux 6.1"},
		"hints":           {AttachConfig{Interface: "b", Match: MatchAll(), Hints: true, Mode: AttachNative}, load(unix.EOPNOTSUPP), errors.ErrUnsupported, noHints},
		"privilege":       {plain, attach(unix.EPERM), ErrPermission, "missing privilege: attaching XDP programs needs CAP_NET_ADMIN and CAP_BPF: "},
		"gone":            {plain, attach(unix.ENODEV), ErrInterfaceGone, ": b: "},
		"queues":          {plain, attach(unix.ENOSPC), ErrFewQueues, "attach to b: a veth needs at least as many receive queues"},
		"busy":            {plain, attach(unix.EBUSY), ErrProgramAttached, "on b: program id 0;"},
		"attach":          {plain, attach(unix.EDOM), unix.EDOM, "afxdp: attach to b in auto mode: "},
		"attach natively": {AttachConfig{Interface: "b", Match: MatchAll(), Mode: AttachNative}, attach(unix.EDOM), unix.EDOM, "afxdp: attach to b in native mode: "},
	} {
		refused(t, ns, name, c.want, c.words, try(c.cfg), c.call)
		if id := attachedID(t, ns); id != 0 {
			t.Errorf("%s: program %d is on the interface", name, id)
		}
	}
	if _, err := attachedMode(1 << 30); err == nil || !strings.HasPrefix(err.Error(), "afxdp: read back XDP mode: ") {
		t.Errorf("mode of no interface: %v", err)
	}
	if id := attachedProgram(1 << 30); id != 0 {
		t.Errorf("program %d on no interface", id)
	}
}

// Each packet goes to the map of the first match that accepts it.
func TestAttachOthers(t *testing.T) {
	n := sharedNet{ns: newNet(t, testbed.VethConfig{}), umem: newUMEM(t, UMEMConfig{})}
	n.prog = attach(t, n.ns, AttachConfig{
		Interface: "a", Queues: 1, Match: MatchUDP(1, 2), Others: []Match{MatchUDP(2, 3), MatchTCP(9), MatchEtherType(testEtherType)},
	})
	for i := range 4 {
		if other := n.prog.OtherXSKMap(i - 1); other == nil || other.MaxEntries() != 1 {
			t.Fatalf("map %d: %v", i, other)
		}
	}
	packets := [][]byte{
		udpPacket(false, false, 1, nil), udpPacket(false, false, 2, nil), udpPacket(true, true, 3, nil), udpPacket(false, false, 4, nil),
		append(make([]byte, 12), testEtherType>>8, testEtherType&0xff, 0, 0), make([]byte, 14),
	}
	const redirect = 4
	for with, want := range [][]uint32{
		{redirect, redirect, xdpPass, xdpPass, xdpPass, xdpPass},
		{xdpPass, xdpPass, redirect, xdpPass, xdpPass, xdpPass},
		{xdpPass, xdpPass, xdpPass, xdpPass, xdpPass, xdpPass},
		{xdpPass, xdpPass, xdpPass, xdpPass, redirect, xdpPass},
	} {
		s := open(t, n.ns, newPool(t, n.umem, 512), Config{Interface: "a", XSKMap: n.prog.OtherXSKMap(with - 1)})
		for i, p := range packets {
			verdict, err := n.prog.prog.Run(&ebpf.RunOptions{Data: p, DataOut: make([]byte, 256)})
			if err != nil || verdict != want[i] {
				t.Errorf("packet %d with a socket in map %d: verdict %d, want %d, %v", i, with, verdict, want[i], err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for _, bad := range []AttachConfig{
		{Interface: "b", Match: MatchAll(), Others: []Match{MatchUDP(1)}},
		{Interface: "b", Match: MatchUDP(1), Others: []Match{MatchAll(), MatchUDP(2)}},
		{Interface: "b", Match: MatchUDP(1), Others: []Match{{}}},
	} {
		err := n.ns.Do(func() error { _, err := Attach(bad); return err })
		wantErr(t, err, ErrConfig)
	}
	attach(t, n.ns, AttachConfig{Interface: "b", Match: MatchUDP(1), Others: []Match{MatchUDP(2), MatchAll()}})
}
