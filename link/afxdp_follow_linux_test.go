// SPDX-License-Identifier: Apache-2.0

package link

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	ebpflink "github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/internal/linux/netwatch"
	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/internal/test/bedtest"
	"github.com/libra-ina/libra/internal/test/refuse"
	"github.com/libra-ina/libra/internal/test/testlog"
	"github.com/libra-ina/libra/wire"
)

// A cable is a bed of two hosts with a link each. The first host's link is the one whose host
// changes.
type cable struct {
	t     *testing.T
	bed   *testbed.Bed
	log   testlog.Log
	links [2]Link
	path  Path
}

func newCable(t *testing.T) *cable {
	t.Helper()
	c := &cable{t: t, bed: bedtest.New(t, testbed.Config{Hosts: 2})}
	for i := range c.links {
		h := c.bed.Host(i)
		// The kernel's patience with neighbours is short.
		c.at(i, fmt.Sprintf("cd /proc/sys/net/ipv4/neigh/%s; echo 0 >delay_first_probe_time; echo 50 >retrans_time_ms; echo 1 >ucast_solicit", h.Interface))
		if err := h.Do(func() (err error) {
			c.links[i], err = OpenAFXDP(AFXDPConfig{Interface: h.Interface, Local: netip.AddrPortFrom(h.IP, wire.DefaultPort),
				Log: slog.New(slog.NewTextHandler(&c.log, nil))})
			return err
		}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := c.links[i].Close(); err != nil {
				t.Error(err)
			}
		})
	}
	if err := c.bed.Host(0).Do(func() (err error) {
		c.path, err = c.links[0].Path(t.Context(), wire.Endpoint{IP: c.bed.Host(1).IP, Port: wire.DefaultPort})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return c
}

// at runs commands at a host, and on the switch with -1.
func (c *cable) at(host int, commands string) {
	c.t.Helper()
	node := c.bed.Switch()
	if host >= 0 {
		node = c.bed.Host(host)
	}
	if err := node.Do(func() error {
		out, err := exec.Command("sh", "-ec", commands).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%s: %w: %s", commands, err, out)
		}
		return err
	}); err != nil {
		c.t.Fatal(err)
	}
}

// passes sends frames, and answers them, until an answer is back. Some may be lost.
func (c *cable) passes(what string) {
	c.t.Helper()
	pkts := make([]Packet, 8)
	for end := time.Now().Add(eventLimit); ; {
		if time.Now().After(end) {
			c.t.Fatalf("%s: nothing passes: %+v, %+v", what, c.links[0].Stats(), c.links[1].Stats())
		}
		if b, ok := c.links[0].Alloc(); ok {
			wire.Header{Type: wire.TypeHot, Seq: 7}.Put(c.links[0].Payload(b))
			if _, err := c.links[0].Send([]Frame{{Buf: b, Len: wire.HeaderLen, To: c.path}}); err != nil {
				c.t.Fatal(what, err)
			}
			c.links[0].Free(b)
		}
		for i, l := range []Link{c.links[1], c.links[0]} {
			if err := l.Wait(5 * time.Millisecond); err != nil {
				c.t.Fatal(what, err)
			}
			n, err := l.Receive(pkts)
			if err != nil {
				c.t.Fatal(what, err)
			}
			if n > 0 && i == 1 {
				return
			}
			for k := range pkts[:n] {
				pkts[k].Reply = wire.HeaderLen
			}
			if err := l.Reply(pkts[:n]); err != nil {
				c.t.Fatal(what, err)
			}
		}
	}
}

// sendsTo waits until the path's frames go to an Ethernet address. Frames to others may arrive,
// too: a bridge sends those to unknown addresses to every port.
func (c *cable) sendsTo(mac string) {
	c.t.Helper()
	if !c.sendsWithin(eventLimit, mac) {
		c.t.Fatalf("no frames go to %s", mac)
	}
}

// sendsWithin sends until a frame goes to an Ethernet address, and reports whether one did within a
// time.
func (c *cable) sendsWithin(limit time.Duration, mac string) bool {
	c.t.Helper()
	b, ok := c.links[0].Alloc()
	if !ok {
		c.t.Fatal("no buffer")
	}
	defer c.links[0].Free(b)
	tap := listen(c.t, c.links[0], 1<<20)
	defer tap.Close()
	for end := time.Now().Add(limit); ; {
		for _, f := range readAll(tap) {
			if f.Direction == Outbound && net.HardwareAddr(f.Data[:6]).String() == mac {
				return true
			}
		}
		if time.Now().After(end) {
			return false
		}
		wire.Header{Type: wire.TypeHot, Seq: 7}.Put(c.links[0].Payload(b))
		if _, err := c.links[0].Send([]Frame{{Buf: b, Len: wire.HeaderLen, To: c.path}}); err != nil {
			c.t.Fatal(err)
		}
		if err := c.links[0].Wait(5 * time.Millisecond); err != nil {
			c.t.Fatal(err)
		}
	}
}

// drain receives what earlier changes have left behind.
func (c *cable) drain() {
	c.t.Helper()
	pkts := make([]Packet, 8)
	for _, l := range c.links {
		for n := 1; n > 0; {
			var err error
			if n, err = l.Receive(pkts); err != nil {
				c.t.Fatal(err)
			}
		}
	}
}

// A link survives each change of its host's network that a kernel's socket would survive, or works
// again after it; its log says what has happened, and what to do.
func TestAFXDPSurvivesChanges(t *testing.T) {
	c := newCable(t)
	ip := [2]netip.Addr{c.bed.Host(0).IP, c.bed.Host(1).IP}
	c.passes("at first")
	mtu := testbed.DefaultMTU
	for _, step := range []struct {
		host     int
		commands string
		says     string
		to       string // last byte of the address that frames go to, "" if nothing passes
	}{
		{1, "ip link set dev host1 address 02:00:00:00:00:22", "the link keeps the one that its peers know", "22"},
		{0, fmt.Sprintf("ip neigh replace %v dev host0 lladdr 02:00:00:00:00:99 nud permanent", ip[1]), "a peer has a different Ethernet address now", "99"},
		{0, fmt.Sprintf("ip neigh replace %v dev host0 lladdr 02:00:00:00:00:22 nud permanent", ip[1]), "a peer has a different Ethernet address now", "22"},
		{0, fmt.Sprintf("ip neigh replace %v dev host0 lladdr 02:00:00:00:00:99 nud stale", ip[1]), "a peer has a different Ethernet address now", "22"},
		{0, fmt.Sprintf("ip neigh flush to %v dev host0", ip[1]), "", "22"},
		{0, "ip link set dev host0 address 02:00:00:00:00:11", "a different Ethernet address", "22"},
		{0, "ip link set dev host0 mtu 600", fmt.Sprintf("ip link set dev host0 mtu %d", wire.DefaultMTU), "22"},
		{0, fmt.Sprintf("ip link set dev host0 mtu %d", wire.DefaultMTU), "the MTU is large enough again", "22"},
		{0, fmt.Sprintf("ip link set dev host0 mtu %d", mtu+8), "", "22"},
		{0, "ip link set dev host0 down", "ip link set dev host0 up", ""},
		{0, "ip link set dev host0 up", "up again", "22"},
		{0, "ip link set dev host0 name other", "ip link set dev other name host0", "22"},
		{0, "ip link set dev other name host0", "has its name again", "22"},
		{0, fmt.Sprintf("ip address del %v/24 dev host0", ip[0]), fmt.Sprintf("ip address add %v/24 dev host0", ip[0]), ""},
		{0, fmt.Sprintf("ip address add %v/24 dev host0", ip[0]), "has its address again", "22"},
		{-1, fmt.Sprintf("ip link set dev %s nomaster", c.bed.Host(0).PortName), "", ""},
		{-1, fmt.Sprintf("ip link set dev %s master br0", c.bed.Host(0).PortName), "", "22"},
	} {
		c.at(step.host, step.commands)
		if step.says != "" {
			c.log.Await(t, step.says)
		}
		if step.to != "" {
			c.sendsTo("02:00:00:00:00:" + step.to)
			c.drain()
			c.passes(step.commands)
		}
	}
}

// recreate deletes the first host's interface and makes another one of its name.
func (c *cable) recreate() {
	c.t.Helper()
	port := c.bed.Host(0).PortName
	c.at(-1, "ip link del dev "+port)
	c.log.Await(c.t, "the interface is gone")
	c.at(0, fmt.Sprintf("ip link add host0 mtu %[2]d numrxqueues 1 numtxqueues 1 type veth peer name %[1]s mtu %[2]d numrxqueues 1 numtxqueues 1; ethtool -K host0 tx off; ethtool -K %[1]s tx off", port, testbed.DefaultMTU))
	var sw *testbed.Node = c.bed.Switch()
	if err := sw.Do(func() error {
		ns, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			return err
		}
		defer ns.Close()
		return c.bed.Host(0).Do(func() error {
			l, err := netlink.LinkByName(port)
			if err != nil {
				return err
			}
			return netlink.LinkSetNsFd(l, int(ns.Fd()))
		})
	}); err != nil {
		c.t.Fatal(err)
	}
	c.at(-1, fmt.Sprintf("ip link set dev %s master br0 up", port))
	c.at(0, fmt.Sprintf("ip link set dev host0 up; ip address add %v/24 dev host0", c.bed.Host(0).IP))
	c.log.Await(c.t, "the interface is back")
}

// An interface that is deleted and created again serves the link again, with its group and its
// buffers; and so does one from which another tool has detached the program.
func TestAFXDPSurvivesItsInterface(t *testing.T) {
	c := newCable(t)
	if err := c.bed.Host(0).Do(func() error { return Join(c.links[0], 3) }); err != nil {
		t.Fatal(err)
	}
	c.passes("at first")
	free := func() (n int) {
		var all []Buf
		for b, ok := c.links[0].Alloc(); ok; b, ok = c.links[0].Alloc() {
			all = append(all, b)
		}
		for _, b := range all {
			c.links[0].Free(b)
		}
		return len(all)
	}
	before := free()
	for range 2 {
		c.recreate()
		c.drain()
		c.passes("created again")
		var members []byte
		if err := c.bed.Host(0).Do(func() (err error) { members, err = os.ReadFile("/proc/thread-self/net/dev_mcast"); return err }); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(members), "01005e4c0003") {
			t.Errorf("the interface is not in the group: %s", members)
		}
	}
	if after := free(); after < before {
		t.Errorf("%d free buffers, %d before", after, before)
	}
	c.detachProgram()
	c.log.Await(t, "the XDP program was gone from the interface")
	c.drain()
	c.passes("attached again")
}

// An interface that was created again does not keep the link's address by itself, even one with the
// index of the former.
func TestAFXDPKeepsItsAddressAnew(t *testing.T) {
	l := &afxdpLink{local: wire.Endpoint{MAC: [6]byte{2, 0, 0, 0, 0, 1}, IP: netip.MustParseAddr("10.0.0.1")}}
	l.follow.keeper = -1 // no socket: it fails if it is asked
	s := netwatch.State{Index: 7, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 2}}
	l.follow.keptAt.Store(int64(s.Index))
	if err := l.keepAddress(s); err != nil {
		t.Errorf("an interface that keeps the address is asked again: %v", err)
	}
	if err := l.moveMemberships(uint32(s.Index)); err != nil {
		t.Fatal(err)
	}
	if err := l.keepAddress(s); !errors.Is(err, unix.EBADF) {
		t.Errorf("the new interface is not asked to keep the address: %v", err)
	}
}

// Errors that may be over soon do not end a link.
func TestAFXDPAbsorbsWhatMayPass(t *testing.T) {
	l := newCable(t).links[0].(*afxdpLink)
	for _, passing := range []error{nil, afxdp.ErrLinkDown, afxdp.ErrNoProgram, afxdp.ErrInterfaceGone} {
		if err := l.absorbError(passing); err != nil || !errors.Is(l.stats.LastError, passing) {
			t.Errorf("%v: %v, and the last error is %v", passing, err, l.stats.LastError)
		}
	}
	for _, lasting := range []error{net.ErrClosed, afxdp.ErrRingCorrupt, afxdp.ErrNoQueue} {
		if err := l.absorbError(lasting); !errors.Is(err, lasting) {
			t.Errorf("%v: %v", lasting, err)
		}
	}
	// The sockets are as they were: that the interface was gone is over with the next look.
	for end := time.Now().Add(eventLimit); l.follow.lost.Load(); time.Sleep(time.Millisecond) {
		if _, err := l.Receive(make([]Packet, 1)); err != nil || time.Now().After(end) {
			t.Fatal("the link does not recover: ", err)
		}
	}
}

// A process without the privilege to open sockets says so, and what to do, when its interface is
// another one.
func TestAFXDPWithoutPrivileges(t *testing.T) {
	c := newCable(t)
	c.passes("at first")
	c.recreate()
	l := c.links[0].(*afxdpLink)
	err := refuse.Run(func() error {
		for end := time.Now().Add(eventLimit); time.Now().Before(end); time.Sleep(time.Millisecond) {
			_, err := l.Receive(make([]Packet, 1))
			if err := errors.Join(err, l.Wait(time.Millisecond)); err != nil {
				return err
			}
		}
		return nil
	}, refuse.Call{Number: unix.SYS_SOCKET, Args: map[int]uint32{0: unix.AF_XDP}, Err: unix.EPERM})
	if !errors.Is(err, afxdp.ErrPermission) || !strings.Contains(err.Error(), "start it again") {
		t.Errorf("error %v, want one with the remedy", err)
	}
}

// detachProgram detaches the program from host0 as bpftool does. It is found by its number: indexes
// of interfaces occur in every network namespace, and those of other tests are no business of this
// one.
func (c *cable) detachProgram() {
	c.t.Helper()
	if err := c.bed.Host(0).Do(func() error {
		port, err := netlink.LinkByName("host0")
		if err != nil {
			return err
		}
		it := new(ebpflink.Iterator)
		defer it.Close()
		for it.Next() {
			info, err := it.Link.Info()
			if err == nil && info.XDP() != nil && port.Attrs().Xdp != nil && uint32(info.Program) == port.Attrs().Xdp.ProgId {
				return it.Link.Detach()
			}
		}
		return errors.Join(errors.New("no program is attached to host0"), it.Err())
	}); err != nil {
		c.t.Fatal(err)
	}
}

// A peer whose address the kernel believes to know is looked for again when it is silent.
func TestAFXDPDoubtsASilentPeer(t *testing.T) {
	c := newCable(t)
	c.passes("at first")
	const wrong = "02:00:00:00:00:99"
	for end := time.Now().Add(eventLimit); ; {
		c.at(0, fmt.Sprintf("ip neigh replace %v dev host0 lladdr %s nud reachable", c.bed.Host(1).IP, wrong))
		if c.sendsWithin(time.Second, wrong) {
			break
		}
		// An answer to what the kernel had asked before has come after that.
		if time.Now().After(end) {
			t.Fatalf("no frames go to %s", wrong)
		}
	}
	c.sendsTo(c.bed.Host(1).MAC.String())
}

// Paths that nobody holds any more are not followed.
func TestAFXDPForgetsPaths(t *testing.T) {
	c := newCable(t)
	for range 5 {
		if err := c.bed.Host(0).Do(func() error {
			_, err := c.links[0].Path(t.Context(), wire.Endpoint{IP: c.bed.Host(1).IP, Port: 9})
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	f := &c.links[0].(*afxdpLink).follow
	for end := time.Now().Add(eventLimit); ; collect() {
		f.addPath(c.path.(*afxdpPath), [6]byte{})
		f.mu.Lock()
		n := len(f.paths)
		f.paths = f.paths[:n-1]
		f.mu.Unlock()
		if n <= 2 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d paths are followed, want 1", n-1)
		}
	}
}

// Trouble with a path is forgotten when the path is not held any more, unless another path to the
// peer has it.
func TestAFXDPForgetsTroubleOfPaths(t *testing.T) {
	c := newCable(t)
	f := &c.links[0].(*afxdpLink).follow
	lost := wire.Endpoint{IP: netip.MustParseAddr("198.51.100.1"), Port: 9} // no route leads there
	var held [2]*afxdpPath
	for i := range held {
		held[i] = &afxdpPath{to: lost}
		f.addPath(held[i], [6]byte{2})
	}
	awaitTrouble := func(want bool) {
		t.Helper()
		for end := time.Now().Add(eventLimit); ; collect() {
			err := c.links[0].Stats().LastError
			if has := err != nil && strings.Contains(err.Error(), "no way to 198.51.100.1"); has == want {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("the last error is %v", err)
			}
		}
	}
	awaitTrouble(true)
	held[0] = nil
	for end, n := time.Now().Add(eventLimit), 3; n > 2; collect() { // the cable's path, and the other one
		f.mu.Lock()
		n = len(f.paths)
		f.mu.Unlock()
		if time.Now().After(end) {
			t.Fatalf("%d paths are followed, want 2", n)
		}
	}
	awaitTrouble(true)
	runtime.KeepAlive(held[1])
	held[1] = nil
	awaitTrouble(false)
	if n := strings.Count(c.log.String(), "no way to 198.51.100.1"); n != 1 {
		t.Errorf("logged %d times, want 1:\n%s", n, c.log.String())
	}
}

func collect() {
	runtime.GC()
	time.Sleep(time.Millisecond)
}
