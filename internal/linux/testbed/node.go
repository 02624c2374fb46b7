// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"net"
	"net/netip"
)

// Node is a switch or a host of a [Bed].
type Node struct {
	// Name of the node: "switch", "switch1", ... or "host0", "host1", ...
	Name string
	// Interface in the node's namespace that carries its address: "br0" at the
	// switch, at a host the node's name.
	Interface string
	// Index is the interface index of Interface, unique in its namespace only.
	Index int
	// IP is the node's address.
	IP netip.Addr
	// MAC is the hardware address of Interface: frames for the node go there.
	MAC net.HardwareAddr
	// PortName is the interface at the switch's end of a host's cable; empty
	// for the switch itself.
	PortName string
	// PortIndex is the interface index of PortName in the switch's namespace.
	PortIndex int
	// PortMAC is the hardware address of PortName. No frame is addressed to it.
	PortMAC net.HardwareAddr

	bed   *Bed
	ns    *Namespace
	sw    *Node    // a host's
	ports []string // of a switch's bridge
}

// Ports returns the names of the interfaces at a switch's end of the cables of its hosts and other
// switches. The slice belongs to the bed.
func (n *Node) Ports() []string { return n.ports }
