// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/internal/linux/sys"
	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/internal/test/bedtest"
	"github.com/libra-ina/libra/wire"
)

// forwarding is a switch with a job whose senders are on hosts 0 and 1; there is a
// third host.
type forwarding struct {
	t     *testing.T
	bed   *testbed.Bed
	plane plane
	taps  [3]int // packet sockets on the hosts

	programs [3]*afxdp.Attachment

	log  lines
	read int // how much of the log says has looked at
}

const forwardedJob = 4

func newForwarding(t *testing.T, mode string, more ...func(*cluster.Switch)) *forwarding {
	t.Helper()
	bed := bedtest.New(t, testbed.Config{Hosts: 3, StaticARP: true})
	f := &forwarding{t: t, bed: bed}
	c := &cluster.Config{Switch: cluster.Switch{Address: bed.Switch().IP, XDPMode: mode, Stripes: 10}}
	for i, h := range bed.Hosts() {
		c.Switch.Interfaces = append(c.Switch.Interfaces, h.PortName)
		f.on(h, func() error { return f.openTap(i) })
	}
	for _, change := range more {
		change(&c.Switch)
	}
	f.on(bed.Switch(), func() (err error) {
		f.plane, err = openXDPPlane(c, f.log.logger())
		return err
	})
	t.Cleanup(func() {
		if err := f.plane.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := f.plane.AddJob(aggregator.JobConfig{ID: forwardedJob, Slots: 10}); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		if err := f.plane.AddSender(forwardedJob, f.sender(i)); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func (f *forwarding) sender(host int) aggregator.SenderConfig {
	h := f.bed.Host(host)
	return aggregator.SenderConfig{ID: uint16(host), MAC: [6]byte(h.MAC), IP: h.IP}
}

func (f *forwarding) on(n *testbed.Node, fn func() error) {
	f.t.Helper()
	if err := n.Do(fn); err != nil {
		f.t.Fatal(err)
	}
}

func (f *forwarding) openTap(host int) error {
	all := int(binary.NativeEndian.Uint16([]byte{unix.ETH_P_ALL >> 8, unix.ETH_P_ALL & 0xff}))
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all)
	if err != nil {
		return err
	}
	f.t.Cleanup(func() { unix.Close(fd) })
	f.taps[host] = fd
	timeout := unix.NsecToTimeval(int64(100 * time.Millisecond))
	return errors.Join(
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: uint16(all), Ifindex: f.bed.Host(host).Index}),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout))
}

// equip puts the program of AF_XDP sockets on hosts, which their ports need to
// transmit.
func (f *forwarding) equip(hosts ...int) {
	f.t.Helper()
	for _, host := range hosts {
		f.on(f.bed.Host(host), func() error {
			s, err := afxdp.Attach(afxdp.AttachConfig{Interface: f.bed.Host(host).Interface, Match: afxdp.MatchUDP(wire.DefaultPort)})
			if err == nil {
				f.programs[host] = s
				f.t.Cleanup(func() { s.Close() })
			}
			return err
		})
	}
}

// frame returns a COLD frame from one host to another.
func (f *forwarding) frame(from, to int) []byte {
	f.t.Helper()
	endpoint := func(host int) wire.Endpoint {
		h := f.bed.Host(host)
		return wire.Endpoint{MAC: [6]byte(h.MAC), IP: h.IP, Port: wire.DefaultPort}
	}
	e, err := wire.NewEnvelope(endpoint(from), endpoint(to))
	if err != nil {
		f.t.Fatal(err)
	}
	frame := make([]byte, e.Len()+wire.ColdLen(1, 1))
	wire.Header{Type: wire.TypeCold, Job: forwardedJob, Seq: wire.FirstSeq}.Put(frame[e.Len():])
	wire.PutRows(frame[e.Len():], wire.TypeCold, 1, 1)
	e.Seal(frame)
	return frame
}

// send sends a frame n times and returns how many copies arrived, and how many
// were forwarded past the bridge.
func (f *forwarding) send(from, to int, frame []byte, n int) (arrived, forwarded int) {
	f.t.Helper()
	const batch = 20 // fits the socket's buffer
	before, err := f.plane.Counters()
	if err != nil {
		f.t.Fatal(err)
	}
	for sent := 0; sent < n; {
		for end := min(n, sent+batch); sent < end; sent++ {
			if _, err := unix.Write(f.taps[from], frame); err != nil {
				f.t.Fatal(err)
			}
		}
		arrived += f.count(to, frame, sent-arrived)
	}
	after, err := f.plane.Counters()
	if err != nil {
		f.t.Fatal(err)
	}
	return arrived, int(after.Forwarded - before.Forwarded)
}

// count counts the copies of a frame that arrive, until there are want or none
// comes any more.
func (f *forwarding) count(host int, frame []byte, want int) (n int) {
	f.t.Helper()
	buf := make([]byte, 4096)
	for n < want {
		got, from, err := unix.Recvfrom(f.taps[host], buf, 0)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return n
		case errors.Is(err, unix.EINTR):
		case err != nil:
			f.t.Fatal(err)
		case from.(*unix.SockaddrLinklayer).Pkttype != unix.PACKET_OUTGOING && string(buf[:got]) == string(frame):
			n++
		}
	}
	return n
}

// expect sends 200 frames and checks how many arrive, and how many of them past
// the bridge.
func (f *forwarding) expect(from, to int, arrived, forwarded int) {
	f.t.Helper()
	if a, x := f.send(from, to, f.frame(from, to), 200); a != arrived || x != forwarded {
		f.t.Errorf("host %d to host %d: of 200 frames %d arrived and %d were forwarded, want %d and %d", from, to, a, x, arrived, forwarded)
	}
}

// until sends single frames until they are forwarded past the bridge, or are not.
// They reveal to the bridge where their sender is.
func (f *forwarding) until(from, to int, forwarded bool) {
	f.t.Helper()
	for deadline := time.Now().Add(eventLimit); ; {
		if _, n := f.send(from, to, f.frame(from, to), 1); n == 1 == forwarded {
			return
		}
		if time.Now().After(deadline) {
			f.t.Fatalf("frames from host %d to host %d are forwarded: %v, want %v", from, to, !forwarded, forwarded)
		}
	}
}

// meet makes frames between hosts 0 and 1 forwarded in both directions.
func (f *forwarding) meet() {
	f.t.Helper()
	f.send(1, 0, f.frame(1, 0), 1)
	f.until(0, 1, true)
	f.until(1, 0, true)
}

// Whether the hosts' ports can transmit for XDP or not, all frames arrive.
func TestEveryFrameBetweenHostsArrives(t *testing.T) {
	for _, mode := range []string{"native", "generic"} {
		t.Run(mode, func(t *testing.T) {
			f := newForwarding(t, mode)
			for _, h := range f.bed.Hosts() {
				if err := h.SetGRO(false); err != nil {
					t.Fatal(err)
				}
			}
			f.until(1, 0, false)
			f.until(0, 1, false)
			f.expect(0, 1, 200, 0)
			f.equip(0)
			f.until(1, 0, true)
			f.expect(1, 0, 200, 200)
			f.expect(0, 1, 200, 0)
			f.equip(1)
			f.until(0, 1, true)
			f.expect(0, 1, 200, 200)
			f.programs[1].Close()
			f.until(0, 1, false)
			f.expect(0, 1, 200, 0)
			if err := f.bed.Host(1).SetGRO(true); err != nil { // as good as a program
				t.Fatal(err)
			}
			f.until(0, 1, true)
			f.expect(0, 1, 200, 200)
			// Host 2 belongs to no job.
			f.equip(2)
			f.expect(0, 2, 200, 0)
			f.expect(2, 0, 200, 0)
		})
	}
}

func TestRoutesFollowHosts(t *testing.T) {
	f := newForwarding(t, "native")
	f.equip(0, 1, 2)
	f.meet()

	// Host 1 moves: its address is behind the third port now.
	moved := f.frame(1, 0)
	if a, x := f.send(2, 0, moved, 20); a != 20 || x == 20 {
		t.Errorf("of 20 frames of a host that has moved, %d arrived and %d were forwarded", a, x)
	}
	there := f.frame(0, 1)
	for deadline := time.Now().Add(eventLimit); ; {
		a, x := f.send(0, 2, there, 1)
		if a == 1 && x == 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("of one frame to a host that has moved, %d arrived and %d were forwarded", a, x)
		}
		// Host 1 may have got the frame, and answered that its port is closed: the
		// bridge finds it back where it was.
		f.send(2, 0, moved, 1)
	}
	if a, x := f.send(0, 2, there, 200); a != 200 || x != 200 {
		t.Errorf("of 200 frames to a host that has moved, %d arrived and %d were forwarded", a, x)
	}
	f.until(1, 0, true) // and back

	// A sender that leaves is not followed any more, until it comes again.
	if err := f.plane.RemoveSender(forwardedJob, 1); err != nil {
		t.Fatal(err)
	}
	f.until(0, 1, false)
	f.expect(0, 1, 200, 0)
	if err := f.plane.AddSender(forwardedJob, f.sender(1)); err != nil {
		t.Fatal(err)
	}
	f.until(0, 1, true)

	// A host of two jobs is followed until the second ends.
	if err := f.plane.AddJob(aggregator.JobConfig{ID: forwardedJob + 1, Slots: 10}); err != nil {
		t.Fatal(err)
	}
	f.plane.reach(forwardedJob+1, [][6]byte{f.sender(0).MAC})
	f.plane.reach(forwardedJob+1, [][6]byte{f.sender(1).MAC}) // the server has moved to host 1
	if err := f.plane.AddSender(forwardedJob+1, f.sender(0)); err != nil {
		t.Fatal(err)
	}
	if err := f.plane.RemoveJob(forwardedJob); err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond) // for what must not happen
	f.expect(0, 1, 200, 200)
	if err := f.plane.RemoveJob(forwardedJob + 1); err != nil {
		t.Fatal(err)
	}
	f.until(0, 1, false)
	f.expect(0, 1, 200, 0)
	f.plane.reach(forwardedJob, [][6]byte{f.sender(1).MAC}) // of a job that has ended
}

// Server 0 finds out where the other servers are, so that their frames are forwarded like its own.
// What it does not find out is left to the bridge.
func TestFramesOfAllServersAreForwarded(t *testing.T) {
	f := newForwarding(t, "native")
	f.equip(0, 1, 2)
	f.meet()
	f.expect(0, 2, 200, 0)
	var log lines
	c := &cluster.Config{Backend: cluster.BackendAFXDP}
	for _, ip := range []netip.Addr{f.bed.Host(1).IP, netip.MustParseAddr("203.0.113.1"), f.bed.Host(2).IP} {
		c.Servers = append(c.Servers, cluster.Server{Host: cluster.Host{Address: ip, Interface: f.bed.Host(1).Interface}})
	}
	c.Server = c.Servers[0]
	s := &server{env: Env{Config: c, Log: log.logger()}, hot: smallHotSet(t)}
	f.on(f.bed.Host(1), func() error {
		f.plane.reach(forwardedJob, [][6]byte{[6]byte(f.bed.Host(1).MAC)})
		macs := s.otherServers(t.Context())
		if len(macs) != 1 || !bytes.Equal(macs[0], f.bed.Host(2).MAC) {
			t.Fatalf("the other servers are at %x, want %v alone", macs, f.bed.Host(2).MAC)
		}
		f.plane.reach(forwardedJob, [][6]byte{[6]byte(f.bed.Host(1).MAC), [6]byte(macs[0])})
		spec, err := s.specOf(t.Context(), &s.shares, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := spec.GetServerMacs(); len(got) != 2 || !bytes.Equal(got[0], f.bed.Host(1).MAC) || !bytes.Equal(got[1], macs[0]) {
			t.Errorf("the aggregator gets the servers %x", got)
		}
		return nil
	})
	f.until(0, 2, true)
	f.until(2, 0, true)
	f.expect(0, 2, 200, 200)
	f.expect(0, 1, 200, 200)
	if !strings.Contains(log.String(), `host="server 1"`) || strings.Contains(log.String(), `host="server 2"`) {
		t.Errorf("the log does not name the server that was not found: %s", log.String())
	}
}

// A host that the bridge has forgotten is found again.
func TestRoutesAge(t *testing.T) {
	f := newForwarding(t, "native")
	f.equip(0, 1)
	f.meet()
	f.on(f.bed.Switch(), func() error {
		return sys.WriteAttr(f.bed.Switch().Interface, "bridge/ageing_time", "100") // hundredths of a second
	})
	// The bridge sees nothing of this host meanwhile.
	for deadline := time.Now().Add(eventLimit); ; {
		a, x := f.send(0, 1, f.frame(0, 1), 1)
		if a != 1 {
			t.Error("a frame is lost")
		}
		if x == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("a route outlives the bridge's entry")
		}
	}
	// The bridge has forgotten host 1 too: its first frame is not forwarded, the
	// last ones may be.
	if a, x := f.send(1, 0, f.frame(1, 0), 200); a != 200 || x == 200 {
		t.Errorf("of 200 frames of a forgotten host %d arrived and %d were forwarded", a, x)
	}
	f.meet()
}

// bridgeLink changes an attribute of a bridge's port, as 'bridge link set' does.
func (f *forwarding) bridgeLink(host int, attribute int, value uint8) {
	f.t.Helper()
	f.on(f.bed.Switch(), func() error {
		req := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
		msg := nl.NewIfInfomsg(unix.AF_BRIDGE)
		msg.Index = int32(f.bed.Host(host).PortIndex)
		req.AddData(msg)
		info := nl.NewRtAttr(unix.IFLA_PROTINFO|unix.NLA_F_NESTED, nil)
		info.AddRtAttr(attribute, []byte{value})
		req.AddData(info)
		_, err := req.Execute(unix.NETLINK_ROUTE, 0)
		return err
	})
}

// What the bridge does not forward, the program does not either, and what it
// forwards by rules of its own is left to it.
func TestBridgeDecides(t *testing.T) {
	const state, isolated, locked = 1, 33, 39 // of <linux/if_link.h>
	const disabled, forwarding = 0, 3         // of <linux/if_bridge.h>
	f := newForwarding(t, "native")
	f.equip(0, 1)
	f.meet()

	f.bridgeLink(1, state, disabled)
	f.until(0, 1, false)
	f.expect(0, 1, 0, 0)
	f.expect(1, 0, 0, 0)
	f.bridgeLink(1, state, forwarding)
	f.meet()

	f.bridgeLink(0, isolated, 1) // from one such port to another the bridge drops
	f.until(0, 1, false)
	f.expect(0, 1, 200, 0)
	f.bridgeLink(1, isolated, 1)
	f.expect(0, 1, 0, 0)
	f.bridgeLink(0, isolated, 0)
	f.bridgeLink(1, isolated, 0)
	f.meet()

	f.bridgeLink(1, locked, 1)
	f.until(1, 0, false)
	f.bridgeLink(1, locked, 0)
	f.meet()

	// A port of no bridge is not connected to the others.
	port := f.bed.Host(1).PortName
	f.on(f.bed.Switch(), func() error {
		link, err := netlink.LinkByName(port)
		return errors.Join(err, netlink.LinkSetNoMaster(link))
	})
	f.until(0, 1, false)
	f.expect(0, 1, 0, 0)
	f.on(f.bed.Switch(), func() error {
		link, err := netlink.LinkByName(port)
		return errors.Join(err, netlink.LinkSetMasterByIndex(link, f.bed.Switch().Index))
	})
	f.meet()

	// A port that is renamed stays what it is; one that is down is none.
	f.on(f.bed.Switch(), func() error {
		link, err := netlink.LinkByName(port)
		return errors.Join(err, netlink.LinkSetName(link, "renamed"))
	})
	f.meet()
	f.expect(0, 1, 200, 200)
	f.on(f.bed.Switch(), func() error {
		link, err := netlink.LinkByName("renamed")
		return errors.Join(err, netlink.LinkSetDown(link))
	})
	f.until(0, 1, false)
	f.expect(0, 1, 0, 0)
}

func TestVLANFilteringIsLeftToTheBridge(t *testing.T) {
	f := newForwarding(t, "native")
	f.equip(0, 1)
	f.meet()
	filter := func(on bool) (err error) {
		_ = f.bed.Switch().Do(func() error {
			link, found := netlink.LinkByName(f.bed.Switch().Interface)
			err = errors.Join(found, netlink.BridgeSetVlanFiltering(link, on))
			return nil
		})
		return err
	}
	if err := filter(true); errors.Is(err, unix.EOPNOTSUPP) {
		t.Skip("this kernel's bridges know no VLANs: ", err)
	} else if err != nil {
		t.Fatal(err)
	}
	f.until(0, 1, false)
	f.expect(0, 1, 200, 0)
	if err := filter(false); err != nil {
		t.Fatal(err)
	}
	f.meet()
}
