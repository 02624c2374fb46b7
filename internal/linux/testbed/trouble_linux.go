// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"fmt"
	"net"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// SetCable sets the switch's end of a host's cable up or down. While it is down, the host's link
// has no carrier.
func (n *Node) SetCable(up bool) error {
	if n.PortName == "" {
		return fmt.Errorf("%w: %s has no cable", ErrConfig, n.Name)
	}
	return n.sw.ns.SetUp(n.PortName, up)
}

// SetMTU sets the MTU of a node's interface, and not that of its port.
func (n *Node) SetMTU(mtu int) error {
	return n.ns.with(n.Interface, func(handle *netlink.Handle, link netlink.Link) error {
		if err := handle.LinkSetMTU(link, mtu); err != nil {
			return fmt.Errorf("testbed: set the MTU of %s to %d: %w", n.Interface, mtu, err)
		}
		return nil
	})
}

// SetMAC changes the Ethernet address of a node's interface, and announces it to the others, as an
// operating system does that has to (arp_notify). MAC remains the one of the beginning.
func (n *Node) SetMAC(mac net.HardwareAddr) error {
	const announce = "/proc/sys/net/ipv4/conf/all/arp_notify"
	if err := n.Do(func() error { return os.WriteFile(announce, []byte("1"), 0) }); err != nil {
		return fmt.Errorf("testbed: have %s announce its address: %w", n.Name, err)
	}
	return n.ns.with(n.Interface, func(handle *netlink.Handle, link netlink.Link) error {
		if err := handle.LinkSetHardwareAddr(link, mac); err != nil {
			return fmt.Errorf("testbed: set the address of %s to %v: %w", n.Interface, mac, err)
		}
		return nil
	})
}

// Misdirect makes a node lose what it sends to another, until restore is called; what the other
// sends still arrives. The node believes its own Ethernet address to be the other's, so that the
// bridge would have to send its frames back, which bridges do not.
func (n *Node) Misdirect(to *Node) (restore func() error, err error) {
	entry := netlink.Neigh{Family: unix.AF_INET, IP: to.IP.AsSlice()}
	change := func(change func(*netlink.Handle, *netlink.Neigh) error) error {
		err := n.ns.with(n.Interface, func(handle *netlink.Handle, link netlink.Link) error {
			entry.LinkIndex, entry.HardwareAddr = link.Attrs().Index, link.Attrs().HardwareAddr
			return change(handle, &entry)
		})
		if err != nil {
			return fmt.Errorf("testbed: tell %s the hardware address of %s: %w", n.Name, to.Name, err)
		}
		return nil
	}
	entry.State = netlink.NUD_PERMANENT
	if err := change((*netlink.Handle).NeighSet); err != nil {
		return nil, err
	}
	return func() error { return change((*netlink.Handle).NeighDel) }, nil
}
