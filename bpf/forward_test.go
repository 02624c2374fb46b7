// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/wire"
)

// setUp sets an interface up without an IPv6 address, so that it sends nothing by itself.
func setUp(link netlink.Link) error {
	const none = 1                                // IN6_ADDR_GEN_MODE_NONE of <linux/if_link.h>
	_ = netlink.LinkSetIP6AddrGenMode(link, none) // a kernel without IPv6 has none either
	return netlink.LinkSetUp(link)
}

// inBridge is inNamespace with the ports in a bridge, and the program on them in native mode, or
// generic mode for the named ports.
func inBridge(t *testing.T, ports int, generic string, test func(a *Aggregator)) {
	t.Helper()
	inNamespace(t, ports, func() {
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}
		if err := errors.Join(netlink.LinkAdd(bridge), setUp(bridge)); err != nil {
			t.Fatal(err)
		}
		a := open(t).Aggregator
		for i := range ports {
			name := fmt.Sprintf("port%d", i)
			link, err := netlink.LinkByName(name)
			if err == nil {
				err = netlink.LinkSetMaster(link, bridge)
			}
			mode := afxdp.AttachNative
			if name == generic {
				mode = afxdp.AttachGeneric
			}
			if err := errors.Join(err, a.Attach(name, mode)); err != nil {
				t.Fatal(err)
			}
			waitForwarding(t, name)
		}
		test(a)
	})
}

// waitForwarding waits until a bridge's port has seen its carrier.
func waitForwarding(t *testing.T, port string) {
	t.Helper()
	for deadline := time.Now().Add(eventLimit); ; time.Sleep(time.Millisecond) {
		link, err := netlink.LinkByName(port)
		if err != nil {
			t.Fatal(err)
		}
		if s := link.Attrs().OperState; s == netlink.OperUp || s == netlink.OperUnknown {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s has no carrier", port)
		}
	}
}

// arrived counts the copies of a frame that a tap receives, until there are want or none arrives
// for a while.
func (w *tap) arrived(t *testing.T, frame []byte, want int) (n int) {
	t.Helper()
	buf := make([]byte, 4096)
	for quiet := 0; quiet < 5 && n < want; {
		got, from, err := unix.Recvfrom(w.fd, buf, 0)
		switch {
		case errors.Is(err, unix.EAGAIN):
			quiet++
		case errors.Is(err, unix.EINTR):
		case err != nil:
			t.Fatalf("%s: receive: %v", w.iface, err)
		case (from.(*unix.SockaddrLinklayer).Pkttype == unix.PACKET_OUTGOING) == w.outgoing && string(buf[:got]) == string(frame):
			n++
		}
	}
	return n
}

// sendAll sends a frame many times, and checks how many copies arrive and by which way.
func sendAll(t *testing.T, a *Aggregator, from, to *tap, frame []byte, forwarded bool) {
	t.Helper()
	const frames, batch = 200, 20 // a batch fits into the tap's buffer
	before, err := a.Counters()
	if err != nil {
		t.Fatal(err)
	}
	arrived := 0
	for range frames / batch {
		for range batch {
			from.send(t, frame)
		}
		arrived += to.arrived(t, frame, batch)
	}
	if arrived != frames {
		t.Errorf("%s received %d frames of %d", to.iface, arrived, frames)
	}
	after, err := a.Counters()
	if err != nil {
		t.Fatal(err)
	}
	want := uint64(0)
	if forwarded {
		want = frames
	}
	if n := after.Forwarded - before.Forwarded; n != want {
		t.Errorf("%d frames counted as forwarded, want %d", n, want)
	}
}

// addRoutes adds routes to hosts 0 and 1 behind ports 0 and 1.
func addRoutes(t *testing.T, a *Aggregator) {
	t.Helper()
	for i := range 2 {
		if err := a.AddRoute(conformance.Host(i).MAC, fmt.Sprintf("port%d", i)); err != nil {
			t.Fatal(err)
		}
	}
}

// waitTarget waits until the program sends frames out of an interface, or until it does not.
func waitTarget(t *testing.T, a *Aggregator, iface string, want bool) {
	t.Helper()
	link, err := netlink.LinkByName(iface)
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(eventLimit); ; time.Sleep(time.Millisecond) {
		var index uint32
		if got := a.objects.Ports.Lookup(uint32(link.Attrs().Index), &index) == nil; got == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the program may send out of %s: %v, want %v", iface, !want, want)
		}
	}
}

// The bridge forwards frames to a port that does not support XDP transmission, in any mode of the
// program, and the program forwards them once the port supports it.
func TestForwardsOnlyToPortsThatTransmit(t *testing.T) {
	for _, generic := range []string{"", "port1"} {
		t.Run("generic "+generic, func(t *testing.T) {
			inBridge(t, 2, generic, func(a *Aggregator) {
				host0, host1 := openTap(t, "host0"), openTap(t, "host1")
				addRoutes(t, a)
				frame := between(t, conformance.Host(0), conformance.Host(1))
				sendAll(t, a, host0, host1, frame, false)

				host := equipHost(t, "host1")
				waitTarget(t, a, "port1", true)
				sendAll(t, a, host0, host1, frame, true)

				if err := host.Close(); err != nil {
					t.Fatal(err)
				}
				waitTarget(t, a, "port1", false)
				sendAll(t, a, host0, host1, frame, false)
			})
		})
	}
}

// A driver without XDP.
func TestLeavesPortsWithoutXDPToTheBridge(t *testing.T) {
	inBridge(t, 1, "", func(a *Aggregator) {
		tunnel := &netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: "tunnel"}, VxlanId: 7, Port: 4789}
		bridge, err := netlink.LinkByName("br0")
		if err == nil {
			err = errors.Join(netlink.LinkAdd(tunnel), setUp(tunnel), netlink.LinkSetMaster(tunnel, bridge))
		}
		if err := errors.Join(err, a.Attach("tunnel", afxdp.AttachGeneric),
			a.AddRoute(conformance.Host(0).MAC, "port0"), a.AddRoute(conformance.Host(1).MAC, "tunnel")); err != nil {
			t.Fatal(err)
		}
		waitForwarding(t, "tunnel")
		// A tap sees the tunnel's transmissions as outgoing.
		host0, port := openTap(t, "host0"), openTap(t, "tunnel")
		port.outgoing = true
		sendAll(t, a, host0, port, between(t, conformance.Host(0), conformance.Host(1)), false)
	})
}

// A flooded frame reaches a switch by the port of its destination. It must not go back there.
func TestDoesNotReturnFloodedFrames(t *testing.T) {
	inBridge(t, 2, "", func(a *Aggregator) {
		host0, host1 := openHost(t, "host0", 1), openHost(t, "host1", 1)
		flooded := between(t, conformance.Host(0), conformance.Host(2))
		if err := errors.Join(
			a.AddRoute(conformance.Host(0).MAC, "port0"), a.AddRoute(conformance.Host(2).MAC, "port0"),
			a.AddRoute(conformance.Host(1).MAC, "port1"),
			host0.send(between(t, conformance.Host(2), conformance.Host(9))), // the bridge learns its port
			host0.send(flooded),
		); err != nil {
			t.Fatal(err)
		}
		for i, h := range []*host{host0, host1} {
			for deadline := time.Now().Add(time.Second); time.Now().Before(deadline); {
				got, err := h.wait(deadline)
				if err != nil || bytes.Equal(got, flooded) {
					t.Fatalf("host%d received the frame (%v)", i, err)
				}
			}
		}
		if c, err := a.Counters(); err != nil || c.Forwarded != 0 || c.Passed < 2 {
			t.Errorf("counters %+v (%v), want nothing forwarded", c, err)
		}
	})
}

// The bridge sees the next frame of a host that has moved, whatever the routes are.
func TestMovedHostIsSeenByTheBridge(t *testing.T) {
	inBridge(t, 3, "", func(a *Aggregator) {
		var taps [3]*tap
		for i := range taps {
			name := fmt.Sprintf("host%d", i)
			equipHost(t, name)
			taps[i] = openTap(t, name)
		}
		addRoutes(t, a)
		there, back := between(t, conformance.Host(0), conformance.Host(1)), between(t, conformance.Host(1), conformance.Host(0))
		taps[1].send(t, between(t, conformance.Host(1), conformance.Host(9))) // to the bridge
		waitTarget(t, a, "port0", true)
		waitTarget(t, a, "port1", true)
		sendAll(t, a, taps[0], taps[1], there, true)
		// Now host 1 is behind port 2, and says so.
		sendAll(t, a, taps[2], taps[0], back, false)
		entries, err := netlink.NeighList(0, unix.AF_BRIDGE)
		if err != nil {
			t.Fatal(err)
		}
		port2, err := netlink.LinkByName("port2")
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			mac := conformance.Host(1).MAC
			if string(e.HardwareAddr) == string(mac[:]) && e.LinkIndex != port2.Attrs().Index {
				t.Errorf("the bridge believes host 1 behind interface %d, not port2", e.LinkIndex)
			}
		}
		if err := a.AddRoute(conformance.Host(1).MAC, "port2"); err != nil {
			t.Fatal(err)
		}
		waitTarget(t, a, "port1", false) // no route leads there any more
		sendAll(t, a, taps[0], taps[2], there, true)
	})
}

// Nothing is forwarded at an interface that is excluded, in either direction.
func TestExcludedInterfacesAreLeftToTheBridge(t *testing.T) {
	inBridge(t, 2, "", func(a *Aggregator) {
		var taps [2]*tap
		for i := range taps {
			name := fmt.Sprintf("host%d", i)
			equipHost(t, name)
			taps[i] = openTap(t, name)
		}
		addRoutes(t, a)
		there, back := between(t, conformance.Host(0), conformance.Host(1)), between(t, conformance.Host(1), conformance.Host(0))
		for _, on := range []bool{true, false, true} {
			if err := a.SetForwarding("port1", on); err != nil {
				t.Fatal(err)
			}
			sendAll(t, a, taps[0], taps[1], there, on)
			sendAll(t, a, taps[1], taps[0], back, on)
		}
		if err := errors.Join(a.RemoveRoute(conformance.Host(1).MAC), a.RemoveRoute(conformance.Host(1).MAC)); err != nil {
			t.Fatal(err)
		}
		sendAll(t, a, taps[0], taps[1], there, false)
		if err := a.SetForwarding("absent0", true); err == nil {
			t.Error("an interface that is not there is accepted")
		}
	})
}

// There is room for every sender and server that the aggregator may have.
func TestRoutesForEverybody(t *testing.T) {
	inNamespace(t, 1, func() {
		a := open(t).Aggregator
		for i := range 1280 {
			if err := a.AddRoute([6]byte{2, 1, 0, 0, byte(i >> 8), byte(i)}, "port0"); err != nil {
				t.Fatalf("route %d: %v", i, err)
			}
		}
	})
}

// BenchmarkForward measures the decision about a COLD frame between hosts, without
// sending it: test runs of many iterations, of which the fastest counts.
func BenchmarkForward(b *testing.B) {
	d := openPair(b).Device.(*device)
	e, err := wire.NewEnvelope(conformance.Host(0), conformance.Host(2))
	if err != nil {
		b.Fatal(err)
	}
	frame := make([]byte, e.Len()+wire.ColdLen(9, 20))
	payload := frame[e.Len():]
	wire.Header{Type: wire.TypeCold, Seq: wire.FirstSeq}.Put(payload)
	wire.PutRows(payload, wire.TypeCold, 9, 20)
	e.Seal(frame)
	fastest := time.Hour
	for b.Loop() {
		action, took, err := d.objects.Aggregate.Benchmark(frame, 10_000, nil)
		if err != nil || action != xdpRedirect {
			b.Fatalf("action %d (%v)", action, err)
		}
		fastest = min(fastest, took)
	}
	b.ReportMetric(float64(fastest.Nanoseconds()), "ns/frame")
}
