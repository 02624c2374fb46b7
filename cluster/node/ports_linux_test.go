// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/internal/linux/sys"
	"github.com/libra-ina/libra/internal/linux/testbed"
)

// says waits until the switch's log has the words, in what was logged since the last call.
func (f *forwarding) says(words string) {
	f.t.Helper()
	for deadline := time.Now().Add(eventLimit); ; time.Sleep(time.Millisecond) {
		text := f.log.String()[f.read:]
		if at := strings.Index(text, words); at >= 0 {
			f.read += at + len(words)
			return
		}
		if time.Now().After(deadline) {
			f.t.Fatalf("the switch's log does not say %q: %s", words, text)
		}
	}
}

// at runs commands on a node.
func (f *forwarding) at(n *testbed.Node, format string, args ...any) {
	f.t.Helper()
	commands := fmt.Sprintf(format, args...)
	f.on(n, func() error {
		out, err := exec.Command("sh", "-ec", commands).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%s: %w: %s", commands, err, out)
		}
		return err
	})
}

// recreate deletes a host's port, and makes another one of the same name, as when the machine
// behind it restarts.
func (f *forwarding) recreate(host int) { f.recreateWith(host, testbed.DefaultMTU) }

// recreateWith is recreate with another MTU of the pair.
func (f *forwarding) recreateWith(host, mtu int) {
	f.t.Helper()
	h, sw := f.bed.Host(host), f.bed.Switch()
	f.at(sw, "ip link del dev %s", h.PortName)
	f.says("the interface is gone")
	const queues = "numrxqueues 1 numtxqueues 1"
	f.at(h, "ip link add dev %s address %v mtu %d %s type veth peer name %s mtu %[3]d %[4]s; ethtool -K %[1]s tx off; ethtool -K %[5]s tx off",
		h.Interface, h.MAC, mtu, queues, h.PortName)
	f.on(sw, func() error {
		here, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			return err
		}
		defer here.Close()
		return h.Do(func() error {
			l, err := netlink.LinkByName(h.PortName)
			if err != nil {
				return err
			}
			return netlink.LinkSetNsFd(l, int(here.Fd()))
		})
	})
	f.at(sw, "ip link set dev %s master br0 up", h.PortName)
	f.at(h, "ip link set dev %s up; ip address add %v/24 dev %[1]s; ethtool -K %[1]s gro on", h.Interface, h.IP)
	f.on(h, func() error {
		l, err := netlink.LinkByName(h.Interface)
		if err == nil {
			h.Index = l.Attrs().Index
		}
		return err
	})
	f.on(sw, func() error {
		l, err := netlink.LinkByName(h.PortName)
		if err == nil {
			h.PortIndex = l.Attrs().Index
		}
		return err
	})
	f.on(h, func() error { return f.openTap(host) })
}

// attached waits until an interface of the switch has a program.
func (f *forwarding) attached(name string) {
	f.t.Helper()
	for deadline := time.Now().Add(eventLimit); ; time.Sleep(time.Millisecond) {
		var on bool
		f.on(f.bed.Switch(), func() error {
			l, err := netlink.LinkByName(name)
			if err == nil {
				on = l.Attrs().Xdp != nil && l.Attrs().Xdp.Attached
			}
			return err
		})
		if on {
			return
		}
		if time.Now().After(deadline) {
			f.t.Fatalf("%s has no program", name)
		}
	}
}

// detach detaches the program from a port as bpftool does.
func (f *forwarding) detach(index int) {
	f.t.Helper()
	it := new(link.Iterator)
	defer it.Close()
	for it.Next() {
		info, err := it.Link.Info()
		if err != nil || info.XDP() == nil || int(info.XDP().Ifindex) != index || !f.ours(it.Link) {
			continue
		}
		if err := it.Link.Detach(); err != nil {
			f.t.Fatal(err)
		}
		return
	}
	f.t.Fatal("no program is attached: ", it.Err())
}

// ours reports whether a link is of this switch's program: indexes of interfaces occur in every
// network namespace.
func (f *forwarding) ours(l link.Link) (ours bool) {
	f.on(f.bed.Switch(), func() error {
		info, err := l.Info()
		if err != nil {
			return err
		}
		port, err := netlink.LinkByIndex(int(info.XDP().Ifindex))
		if err == nil && port.Attrs().Xdp != nil {
			ours = port.Attrs().Xdp.ProgId == uint32(info.Program)
		}
		return nil
	})
	return ours
}

// The switch notices each change of its ports. What the kernel's bridge survives, it survives; what
// it cannot is in its log, with the remedy.
func TestSwitchFollowsItsPorts(t *testing.T) {
	f := newForwarding(t, "native")
	sw, h := f.bed.Switch(), f.bed.Host(1)
	f.meet()

	f.recreate(1)
	f.says("the interface is back")
	f.says("the XDP program is attached to the new port")
	f.attached(h.PortName)
	f.meet()
	f.expect(0, 1, 200, 200)
	f.expect(1, 0, 200, 200)

	f.detach(h.PortIndex)
	f.says("another process has detached the XDP program from the port")
	f.attached(h.PortName)
	f.meet()
	f.expect(0, 1, 200, 200)

	for _, c := range []struct{ change, says string }{
		{"ip link set dev %s mtu 1000", "ip link set dev " + h.PortName + " mtu "},
		{"ip link set dev %s mtu 3440", "the MTU is large enough again"},
		{"ip link set dev %s nomaster", "ip link set dev " + h.PortName + " master br0"},
		{"ip link set dev %s master br0", "in a bridge again"},
		{"ip link add br9 type bridge; ip link set dev %s master br9", "ip link set dev " + h.PortName + " master br0"},
		{"ip link set dev %s master br0; ip link del dev br9", "has left the other bridge"},
		{"ip link set dev %s down", "ip link set dev " + h.PortName + " up"},
		{"ip link set dev %s up", "up again"},
		{"ip link set dev %s address 02:00:00:00:00:77", "a different Ethernet address"},
	} {
		f.at(sw, c.change, h.PortName)
		f.says(c.says)
	}
	f.meet()
	f.at(h, "ip link set dev %s down", h.Interface)
	f.says("no link")
	f.at(h, "ip link set dev %s up", h.Interface)
	f.says("has its link again")
	f.on(h, func() error { return f.openTap(1) }) // the former one would report the outage

	f.at(sw, "ip link set dev %s name renamed", h.PortName)
	f.says("ip link set dev renamed name " + h.PortName)
	f.detach(h.PortIndex)
	f.says("another process has detached the XDP program from the port")
	f.attached("renamed")
	f.meet()
	f.expect(0, 1, 200, 200)
	f.at(sw, "ip link set dev renamed name %s", h.PortName)
	f.says("has its name again")

	f.at(sw, "ip address del %v/24 dev br0", sw.IP)
	f.says(fmt.Sprintf("ip address add %v/24 dev br0", sw.IP))
	f.at(sw, "ip address add %v/24 dev br0", sw.IP)
	f.says("has its address again")
	f.at(sw, "ip link set dev br0 address 02:00:00:00:00:88")
	f.says("a different Ethernet address")

	elsewhere, err := testbed.NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	defer elsewhere.Close()
	f.at(sw, "ip link set dev %s netns /proc/%d/fd/%d", h.PortName, os.Getpid(), elsewhere.FD())
	f.says("moved to another network namespace")
	f.recreateAfterMove(elsewhere, 1)
	f.attached(h.PortName)
	f.meet()
	f.expect(0, 1, 200, 200)
}

// threaded waits until a host's port receives in its own kernel thread.
func (f *forwarding) threaded(host int) {
	f.t.Helper()
	for deadline := time.Now().Add(eventLimit); ; time.Sleep(time.Millisecond) {
		var value string
		f.on(f.bed.Switch(), func() (err error) {
			value, err = sys.ReadAttr(f.bed.Host(host).PortName, "threaded")
			return err
		})
		if value == "1" {
			return
		}
		if time.Now().After(deadline) {
			f.t.Fatalf("threaded is %q on the port of host %d", value, host)
		}
	}
}

// A port that was created again gets what the configuration asks for its predecessor, also if the
// program does not fit it at first.
func TestSwitchPreparesANewPort(t *testing.T) {
	f := newForwarding(t, "native", func(s *cluster.Switch) { s.ThreadedNAPI = true })
	f.threaded(1)
	f.recreate(1)
	f.says("the XDP program is attached to the new port")
	f.threaded(1)

	h := f.bed.Host(1)
	f.recreateWith(1, 9000)
	f.says("the port does not take part in the aggregation")
	f.at(h, "ip link set dev %s mtu %d", h.Interface, testbed.DefaultMTU)
	f.at(f.bed.Switch(), "ip link set dev %s mtu %d", h.PortName, testbed.DefaultMTU)
	f.says("the XDP program is attached to the new port")
	f.threaded(1)
}

// recreateAfterMove brings a port back from another namespace.
func (f *forwarding) recreateAfterMove(from *testbed.Namespace, host int) {
	f.t.Helper()
	h := f.bed.Host(host)
	f.on(f.bed.Switch(), func() error {
		here, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			return err
		}
		defer here.Close()
		return from.Do(func() error {
			l, err := netlink.LinkByName(h.PortName)
			if err != nil {
				return err
			}
			return netlink.LinkSetNsFd(l, int(here.Fd()))
		})
	})
	f.at(f.bed.Switch(), "ip link set dev %s master br0 up", h.PortName)
	f.says("the interface is back")
}
