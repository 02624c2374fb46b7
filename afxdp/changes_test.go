// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/internal/test/testlog"
)

// recordLog records what is logged with slog.Default until the end of the test.
func recordLog(t *testing.T) *testlog.Log {
	log := &testlog.Log{}
	before := slog.Default()
	slog.SetDefault(log.Logger())
	t.Cleanup(func() { slog.SetDefault(before) })
	return log
}

// A pairOfHosts is two hosts on one cable: "a" with 10.0.0.1 at the near one, "b" with 10.0.0.2 at
// the far one. The kernel's patience with neighbours is short.
type pairOfHosts struct {
	t         *testing.T
	near, far *testbed.Namespace
}

func newHostPair(t *testing.T) *pairOfHosts {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to create network namespaces")
	}
	p := &pairOfHosts{t: t}
	for _, ns := range []**testbed.Namespace{&p.near, &p.far} {
		made, err := testbed.NewNamespace()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { made.Close() })
		*ns = made
	}
	p.connect()
	return p
}

// connect makes the cable.
func (p *pairOfHosts) connect() {
	p.t.Helper()
	if err := p.near.Veth(testbed.VethConfig{Names: [2]string{"a", "b"}, Peer: p.far}); err != nil {
		p.t.Fatal(err)
	}
	const quick = "; echo 0 >delay_first_probe_time; echo 50 >retrans_time_ms; echo 1 >ucast_solicit; echo 500 >base_reachable_time_ms"
	p.at(p.near, "ip address add 10.0.0.1/24 dev a; cd /proc/sys/net/ipv4/neigh/a"+quick)
	p.at(p.far, "ip address add 10.0.0.2/24 dev b; ethtool -K b tx off; cd /proc/sys/net/ipv4/neigh/b"+quick)
}

// at runs commands at a host.
func (p *pairOfHosts) at(ns *testbed.Namespace, commands string) {
	p.t.Helper()
	err := ns.Do(func() error {
		// The child has this thread's namespace; /proc/sys shows that of its reader.
		out, err := exec.Command("sh", "-ec", commands).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%s: %w: %s", commands, err, out)
		}
		return err
	})
	if err != nil {
		p.t.Fatal(err)
	}
}

// socket returns a kernel's socket of the far host.
func (p *pairOfHosts) socket(local string) net.PacketConn {
	p.t.Helper()
	var c net.PacketConn
	if err := p.far.Do(func() (err error) { c, err = net.ListenPacket("udp4", local); return err }); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { c.Close() })
	return c
}

func (p *pairOfHosts) listen(local string) (c net.PacketConn, conn *UDPConn) {
	p.t.Helper()
	if err := p.near.Do(func() (err error) { conn, err = ListenUDP("a", netip.MustParseAddrPort(local)); return err }); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			p.t.Error(err)
		}
	})
	return conn, conn
}

func (p *pairOfHosts) kernelListen(local string) net.PacketConn {
	p.t.Helper()
	var c net.PacketConn
	if err := p.near.Do(func() (err error) { c, err = net.ListenPacket("udp4", local); return err }); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { c.Close() })
	return c
}

// passes waits until packets pass in both directions: from the far host and back. Some may be lost
// before, or be late.
func passes(t *testing.T, what string, near, far net.PacketConn, to net.Addr) {
	t.Helper()
	end := time.Now().Add(eventLimit)
	buf := make([]byte, 2000)
	for number := 0; ; number++ {
		if time.Now().After(end) {
			t.Fatalf("%s: nothing passes", what)
		}
		question := fmt.Sprintf("%s %d", what, number)
		_, _ = far.WriteTo([]byte(question), to) // a lost route is part of some changes
		wait := time.Now().Add(50 * time.Millisecond)
		if err := errors.Join(near.SetReadDeadline(wait), far.SetReadDeadline(wait)); err != nil {
			t.Fatal(err)
		}
		n, from, err := near.ReadFrom(buf)
		if err != nil {
			continue
		}
		if err := near.SetDeadline(time.Now().Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := near.WriteTo(buf[:n], from); err != nil {
			continue
		}
		for err = nil; err == nil; { // an answer to a question before the change may come first
			if n, _, err = far.ReadFrom(buf); err == nil && strings.HasPrefix(string(buf[:n]), what+" ") {
				return
			}
		}
	}
}

// What the kernel's socket survives, a UDPConn survives, too: each change is made under both.
func TestUDPConnSurvivesWhatTheKernelDoes(t *testing.T) {
	log := recordLog(t)
	for _, kind := range []string{"kernel", "UDPConn"} {
		t.Run(kind, func(t *testing.T) {
			p := newHostPair(t)
			var near net.PacketConn
			if kind == "kernel" {
				near = p.kernelListen("10.0.0.1:7000")
			} else {
				near, _ = p.listen("10.0.0.1:7000")
			}
			far := p.socket("0.0.0.0:8000")
			to := &net.UDPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 7000}
			said := func(words ...string) {
				t.Helper()
				if kind == "UDPConn" {
					log.Await(t, words...)
				}
			}
			passes(t, "at first", near, far, to)
			p.at(p.near, "ip neigh replace 10.0.0.2 dev a lladdr 02:00:00:00:00:99 nud stale")
			passes(t, "stale, another address", near, far, to)
			p.at(p.far, "ip link set dev b address 02:00:00:00:00:22")
			passes(t, "the peer's address", near, far, to)
			p.at(p.near, "ip link set dev a address 02:00:00:00:00:11")
			said("a different Ethernet address", "packets are sent from the new one")
			passes(t, "own Ethernet address", near, far, to)
			p.at(p.near, "ip neigh flush to 10.0.0.2 dev a")
			passes(t, "entry deleted", near, far, to)
			p.at(p.far, "ip link set dev b address 02:00:00:00:00:33")
			p.at(p.near, "ip neigh replace 10.0.0.2 dev a lladdr 02:00:00:00:00:33 nud permanent")
			passes(t, "entry made permanent", near, far, to)
			p.at(p.near, "ip link set dev a down")
			said("ip link set dev a up")
			p.at(p.near, "ip link set dev a up")
			said("up again")
			passes(t, "down and up", near, far, to)
			p.at(p.near, "ip link set dev a name c")
			said("ip link set dev c name a")
			passes(t, "renamed", near, far, to)
			p.at(p.near, "ip link set dev c name a; ip address del 10.0.0.1/24 dev a")
			said("ip address add 10.0.0.1/24 dev a")
			p.at(p.near, "ip address add 10.0.0.1/24 dev a")
			passes(t, "address back", near, far, to)
			p.at(p.near, "ip link del dev a")
			said("the interface is gone")
			p.connect()
			said("is back")
			passes(t, "deleted and created", near, far, to)
			elsewhere, err := testbed.NewNamespace()
			if err != nil {
				t.Fatal(err)
			}
			defer elsewhere.Close()
			p.at(p.near, fmt.Sprintf("ip link set dev a netns /proc/%d/fd/%d", os.Getpid(), elsewhere.FD()))
			said("moved to another network namespace")
			p.at(elsewhere, fmt.Sprintf("ip link set dev a netns /proc/%d/fd/%d", os.Getpid(), p.near.FD()))
			p.at(p.near, "ip link set dev a up; ip address add 10.0.0.1/24 dev a")
			said("is back")
			passes(t, "moved and back", near, far, to)
		})
	}
}

// A neighbour's entry is stale, and the host has another Ethernet address: a standby host took
// over, or a virtual machine was replaced. The kernel checks an entry that its own packets use, and
// one that a UDPConn uses, too, although the host never says anything.
func TestUDPConnFindsANeighbourThatChanged(t *testing.T) {
	for _, kind := range []string{"kernel", "UDPConn"} {
		p := newHostPair(t)
		far := p.socket("10.0.0.2:8000")
		p.at(p.near, "ip neigh replace 10.0.0.2 dev a lladdr 02:00:00:00:00:99 nud stale")
		var near net.PacketConn
		if kind == "kernel" {
			near = p.kernelListen("10.0.0.1:7000")
		} else {
			near, _ = p.listen("10.0.0.1:7000")
		}
		until(t, kind, func() bool {
			if _, err := near.WriteTo([]byte("x"), far.LocalAddr()); err != nil {
				t.Fatal(err)
			}
			if err := far.SetReadDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			_, _, err := far.ReadFrom(make([]byte, 10))
			return err == nil
		})
	}
}

// The kernel's answer about a neighbour does not stay in use when the kernel has another one, or
// none.
func TestUDPConnAsksForNeighboursAnew(t *testing.T) {
	p := newHostPair(t)
	near, conn := p.listen("10.0.0.1:7000")
	far := p.socket("10.0.0.2:8000")
	if _, err := near.WriteTo([]byte("x"), far.LocalAddr()); err != nil {
		t.Fatal(err)
	}
	to := netip.MustParseAddr("10.0.0.2")
	way, _ := conn.hops.findHop(to)
	right := way.Hop
	wrong := right
	wrong.MAC = [6]byte{2, 0, 0, 0, 0, 0x99} // of no machine
	conn.hops.putHop(to, wrong)
	until(t, "the kernel's answer", func() bool {
		way, ok := conn.hops.findHop(to)
		return ok && way.Hop == right
	})
	p.at(p.near, "ip route add unreachable 10.0.0.2/32")
	until(t, "the loss of the route", func() bool {
		_, err := near.WriteTo([]byte("x"), far.LocalAddr())
		return err != nil
	})
	p.at(p.near, "ip route del unreachable 10.0.0.2/32")
	until(t, "the route", func() bool {
		_, err := near.WriteTo([]byte("x"), far.LocalAddr())
		return err == nil
	})
	until(t, "that unused answers go", func() bool {
		n := 0
		conn.hops.of.Range(func(any, any) bool { n++; return true })
		return n == 0
	})
}

// A larger MTU lets larger packets pass; with a smaller one they are refused, as by the kernel.
func TestUDPConnFollowsTheMTU(t *testing.T) {
	log := recordLog(t)
	p := newHostPair(t)
	near, conn := p.listen("10.0.0.1:7000")
	far := p.socket("0.0.0.0:8000")
	write := func(n int) error {
		_, err := near.WriteTo(make([]byte, n), &net.UDPAddr{IP: net.IPv4(10, 0, 0, 2), Port: 8000})
		return err
	}
	arrives := func(n int) {
		t.Helper()
		buf := make([]byte, 9000)
		if err := far.SetReadDeadline(time.Now().Add(eventLimit)); err != nil {
			t.Fatal(err)
		}
		until(t, fmt.Sprintf("room for %d bytes", n), func() bool { return write(n) == nil })
		for got := 0; got != n; { // earlier ones may arrive before
			var err error
			if got, _, err = far.ReadFrom(buf); err != nil {
				t.Fatalf("%d bytes of %d, %v", got, n, err)
			}
		}
	}
	wantErr(t, write(1473), unix.EMSGSIZE)
	p.at(p.near, "ip link set dev a mtu 3000")
	p.at(p.far, "ip link set dev b mtu 3000")
	arrives(2972)
	if _, err := far.WriteTo(make([]byte, 2972), &net.UDPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 7000}); err != nil {
		t.Fatal(err)
	}
	if err := near.SetReadDeadline(time.Now().Add(eventLimit)); err != nil {
		t.Fatal(err)
	}
	if n, _, err := near.ReadFrom(make([]byte, 9000)); n != 2972 || err != nil {
		t.Errorf("%d bytes were read of 2972, %v", n, err)
	}
	p.at(p.near, "ip link set dev a mtu 1000")
	until(t, "a refusal of what the MTU does not hold", func() bool { return errors.Is(write(973), unix.EMSGSIZE) })
	arrives(972)
	p.at(p.near, "ip link set dev a mtu 9000")
	log.Await(t, "the MTU was raised to 9000", "ip link set dev a mtu 3822")
	p.at(p.near, "ip link set dev a mtu 3822")
	log.Await(t, "have room again")
	if s := conn.Stats(); s != (UDPStats{}) {
		t.Errorf("dropped: %+v", s)
	}
}

// The address of a connection may be lost; writing then says so, until it is back.
func TestUDPConnWithoutItsAddress(t *testing.T) {
	p := newHostPair(t)
	near, _ := p.listen("10.0.0.1:7000")
	write := func() error {
		_, err := near.WriteTo([]byte("x"), &net.UDPAddr{IP: net.IPv4(10, 0, 0, 2), Port: 8000})
		return err
	}
	if err := write(); err != nil {
		t.Fatal(err)
	}
	p.at(p.near, "ip address add 10.0.0.9/24 dev a; ip address del 10.0.0.1/24 dev a; ip address replace 10.0.0.9/24 dev a")
	until(t, "the loss", func() bool { return errors.Is(write(), unix.EADDRNOTAVAIL) })
	p.at(p.near, "ip address add 10.0.0.1/24 dev a")
	until(t, "the address", func() bool { return write() == nil })
}

// A program that another tool detaches is attached again; if another program is there meanwhile,
// the log says so, and a connection waits for its end.
func TestUDPConnKeepsItsProgram(t *testing.T) {
	log := recordLog(t)
	p := newHostPair(t)
	near, conn := p.listen("10.0.0.1:7000")
	far := p.socket("0.0.0.0:8000")
	to := &net.UDPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 7000}
	passes(t, "at first", near, far, to)
	conn.group.mu.Lock()
	detach(t, conn.group.program)
	conn.group.mu.Unlock()
	log.Await(t, "another process has detached the XDP program")
	passes(t, "attached again", near, far, to)
	pass, err := loadPass()
	if err != nil {
		t.Fatal(err)
	}
	defer pass.Close()
	conn.group.mu.Lock() // so that it does not attach its own first
	detach(t, conn.group.program)
	var other link.Link
	if err := p.near.Do(func() (err error) {
		other, err = link.AttachXDP(link.XDPOptions{Program: pass, Interface: conn.sender().Info().Ifindex})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	conn.group.mu.Unlock()
	log.Await(t, "another XDP program is attached", "detach it with its owner's tool")
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	passes(t, "the other's end", near, far, to)
}

// detach detaches a program as bpftool does. The caller holds its group's lock.
func detach(t *testing.T, a *Attachment) {
	t.Helper()
	info, err := a.hook.link.Info()
	if err != nil {
		t.Fatal(err)
	}
	l, err := link.NewFromID(info.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := l.Detach(); err != nil {
		t.Fatal(err)
	}
}

// Run follows a group's interface: it logs what programs with packets of their own have to know,
// and goes on.
func TestGroupLogsChanges(t *testing.T) {
	log := &testlog.Log{}
	p := newHostPair(t)
	var g *Group
	if err := p.near.Do(func() (err error) {
		g, err = OpenAll("a", GroupConfig{Match: MatchUDP(7000), Log: log.Logger()})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	far := p.socket("0.0.0.0:8000")
	got := make(chan string, 100)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- g.Run(ctx, Serve(func(s *Socket, packets []Desc) error {
			for _, d := range packets {
				if u, ok := ParseUDP(s.UMEM().Packet(d)); ok {
					select {
					case got <- string(u.Payload()):
					default:
					}
				}
			}
			return nil
		}))
	}()
	receives := func(what string) {
		t.Helper()
		until(t, what, func() bool {
			_, _ = far.WriteTo([]byte(what), &net.UDPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 7000})
			select {
			case text := <-got:
				return text == what
			case <-time.After(10 * time.Millisecond):
				return false
			}
		})
	}
	receives("at first")
	for _, c := range []struct{ change, says string }{
		{"ip link set dev a mtu 1000", "ip link set dev a mtu 1500"},
		{"ip link set dev a mtu 1500", "the MTU is large enough again"},
		{"ip link set dev a mtu 9000", "received packets of more than"},
		{"ip link set dev a mtu 1500", "have room again"},
		{"ip link set dev a address 02:00:00:00:00:11", "packets that the program builds need it"},
		{"ip link set dev a name c", "ip link set dev c name a"},
		{"ip link set dev c down", "ip link set dev c up"},
		{"ip link set dev c up", "up again"},
	} {
		p.at(p.near, c.change)
		log.Await(t, c.says)
		if c.says != "ip link set dev c up" { // it is down
			receives(c.change)
		}
	}
	g.mu.Lock()
	detach(t, g.program)
	g.mu.Unlock()
	log.Await(t, "another process has detached the XDP program")
	receives("attached again under another name")
	p.at(p.near, "ip link del dev c")
	log.Await(t, "the interface is gone")
	p.connect()
	log.Await(t, "the interface is back")
	receives("created again")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
