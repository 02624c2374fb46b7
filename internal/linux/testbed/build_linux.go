// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const bridgeName = "br0"

// buildAll creates the namespaces and everything in them. All of it is reachable from b at any
// time, so that Close can remove it after a failure.
func (b *Bed) buildAll(ctx context.Context) error {
	var handles []*netlink.Handle // of the switches
	defer func() {
		for _, h := range handles {
			h.Close()
		}
	}()
	for i := range 1 + len(b.cfg.Above) {
		handle, err := b.addSwitch(i)
		if err != nil {
			return err
		}
		handles = append(handles, handle)
	}
	if b.cfg.Unbridged {
		if err := b.addUplink(handles[0]); err != nil {
			return err
		}
	}
	for i, above := range b.cfg.Above {
		if err := b.addCable(1+i, above, handles); err != nil {
			return err
		}
	}
	for i := range b.cfg.Hosts {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("testbed: interrupted: %w", context.Cause(ctx))
		}
		at := 0
		if b.cfg.At != nil {
			at = b.cfg.At[i]
		}
		if err := b.addHost(ctx, i, b.switches[at], handles[at]); err != nil {
			return err
		}
	}
	if b.cfg.StaticARP {
		for _, n := range b.nodes() {
			if err := b.addNeighbours(n); err != nil {
				return err
			}
		}
	}
	for _, handle := range handles {
		if err := waitUp(ctx, handle); err != nil {
			return err
		}
	}
	return nil
}

// addSwitch creates a switch with its bridge. The returned handle works in its namespace.
func (b *Bed) addSwitch(i int) (*netlink.Handle, error) {
	name := "switch"
	if i > 0 {
		name += strconv.Itoa(i)
	}
	n, handle, err := b.newNode(name, bridgeName, b.cfg.switchAt(i))
	if err != nil {
		return nil, err
	}
	b.switches = append(b.switches, n)
	if err := b.addBridge(n, handle); err != nil {
		handle.Close()
		return nil, err
	}
	return handle, nil
}

// addCable joins the bridges of two switches: the port towards switch i is called cable and its
// number.
func (b *Bed) addCable(i, above int, handles []*netlink.Handle) error {
	from, to := b.switches[i], b.switches[above]
	names := [2]string{"cable" + strconv.Itoa(i), "above"}
	err := to.ns.Veth(VethConfig{Names: names, Peer: from.ns, Master: to.Index, Queues: b.cfg.Queues, MTU: b.cfg.MTU})
	if err != nil {
		return err
	}
	up, err := handles[i].LinkByName(names[1])
	if err == nil {
		err = handles[i].LinkSetMasterByIndex(up, from.Index)
	}
	if err != nil {
		return fmt.Errorf("testbed: make %s a port of %s: %w", names[1], from.Name, err)
	}
	for end, n := range []*Node{to, from} {
		if _, err := b.tuneInterface(handles[[]int{above, i}[end]], n, names[end]); err != nil {
			return err
		}
		n.ports = append(n.ports, names[end])
	}
	return nil
}

// newNode creates a node's namespace with its loopback interface up. The returned handle works in
// that namespace; the caller closes it.
func (b *Bed) newNode(name, iface string, offset int) (*Node, *netlink.Handle, error) {
	ns, err := NewNamespace()
	if err != nil {
		return nil, nil, err
	}
	n := &Node{
		Name:      name,
		Interface: iface,
		IP:        b.cfg.address(offset),
		MAC:       hardwareAddr(macNode, offset),
		bed:       b,
		ns:        ns,
	}
	handle, err := ns.handle()
	if err != nil {
		_ = ns.Close()
		return nil, nil, err
	}
	return n, handle, nil
}

// addBridge creates a switch's bridge with its address.
func (b *Bed) addBridge(n *Node, handle *netlink.Handle) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = bridgeName
	attrs.MTU = b.cfg.MTU
	attrs.HardwareAddr = n.MAC
	// Spanning tree is off in a new bridge, so ports forward at once. Snooping would make the
	// bridge watch multicast groups, and sometimes send queries.
	noSnooping := false
	if err := handle.LinkAdd(&netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &noSnooping}); err != nil {
		return fmt.Errorf("testbed: make bridge %s: %w", bridgeName, err)
	}
	if err := n.ns.SetUp(bridgeName, true); err != nil {
		return err
	}
	link, err := handle.LinkByName(bridgeName)
	if err != nil {
		return fmt.Errorf("testbed: find %s: %w", bridgeName, err)
	}
	n.Index = link.Attrs().Index
	return b.addAddress(handle, n)
}

// addUplink creates the cable between the bridge and the program that switches.
func (b *Bed) addUplink(handle *netlink.Handle) error {
	const bridged = "bridged"
	sw := b.Switch()
	err := sw.ns.Veth(VethConfig{Names: [2]string{bridged, UplinkName}, Master: sw.Index, Queues: b.cfg.Queues,
		MTU: b.cfg.MTU})
	for _, name := range []string{bridged, UplinkName} {
		if err == nil {
			_, err = b.tuneInterface(handle, sw, name)
		}
	}
	return err
}

// addHost creates a host, its cable and its port on the bridge.
func (b *Bed) addHost(ctx context.Context, i int, sw *Node, ports *netlink.Handle) error {
	offset := hostOffset + i
	name := "host" + strconv.Itoa(i)
	n, handle, err := b.newNode(name, name, offset)
	if err != nil {
		return err
	}
	b.hosts = append(b.hosts, n)
	defer handle.Close()
	n.PortName = "port" + strconv.Itoa(i)
	n.PortMAC = hardwareAddr(macPort, offset)

	master := sw.Index
	if b.cfg.Unbridged {
		master = 0
	}
	err = sw.ns.Veth(VethConfig{
		Names: [2]string{n.PortName, n.Interface}, MACs: [2]net.HardwareAddr{n.PortMAC, n.MAC},
		Peer: n.ns, Master: master, Queues: b.cfg.Queues, MTU: b.cfg.MTU,
	})
	if err != nil {
		return err
	}
	if n.PortIndex, err = b.tuneInterface(ports, sw, n.PortName); err != nil {
		return err
	}
	n.sw, sw.ports = sw, append(sw.ports, n.PortName)
	if n.Index, err = b.tuneInterface(handle, n, n.Interface); err != nil {
		return err
	}
	if err := b.addAddress(handle, n); err != nil {
		return err
	}
	return waitUp(ctx, handle)
}

// tuneInterface configures one end of a cable, and returns its index.
func (b *Bed) tuneInterface(handle *netlink.Handle, n *Node, name string) (int, error) {
	link, err := handle.LinkByName(name)
	if err != nil {
		return 0, fmt.Errorf("testbed: find %s: %w", name, err)
	}
	return link.Attrs().Index, n.Do(func() error { return tuneVeth(name, b.cfg.ThreadedNAPI) })
}

// addAddress adds a node's address to its interface.
func (b *Bed) addAddress(handle *netlink.Handle, n *Node) error {
	prefix := net.IPNet{IP: n.IP.AsSlice(), Mask: net.CIDRMask(b.cfg.Prefix.Bits(), 32)}
	link := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: n.Index}}
	if err := handle.AddrAdd(link, &netlink.Addr{IPNet: &prefix}); err != nil {
		return fmt.Errorf("testbed: give %s the address %v: %w", n.Interface, &prefix, err)
	}
	return nil
}

// addNeighbours adds neighbour entries for all other nodes to a node.
func (b *Bed) addNeighbours(n *Node) error {
	handle, err := n.ns.handle()
	if err != nil {
		return err
	}
	defer handle.Close()
	for _, other := range b.nodes() {
		if other == n {
			continue
		}
		neighbour := netlink.Neigh{
			LinkIndex:    n.Index,
			Family:       unix.AF_INET,
			State:        netlink.NUD_PERMANENT,
			IP:           other.IP.AsSlice(),
			HardwareAddr: other.MAC,
		}
		if err := handle.NeighAdd(&neighbour); err != nil {
			return fmt.Errorf("testbed: tell %s the hardware address of %s: %w", n.Name, other.Name, err)
		}
	}
	return nil
}

// waitUp waits until every interface of a namespace except loopback carries frames. The kernel
// processes a change of carrier in a work queue; frames sent before that are dropped.
func waitUp(ctx context.Context, handle *netlink.Handle) error {
	const poll = time.Millisecond
	for {
		waitingFor := ""
		links, err := handle.LinkList()
		if err != nil {
			return fmt.Errorf("testbed: list interfaces: %w", err)
		}
		for _, link := range links {
			if a := link.Attrs(); a.Flags&net.FlagLoopback == 0 && a.Flags&net.FlagUp != 0 && a.OperState != netlink.OperUp {
				waitingFor = a.Name
			}
		}
		if waitingFor == "" {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("testbed: %s has no carrier: %w", waitingFor, context.Cause(ctx))
		case <-time.After(poll):
		}
	}
}
