// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"cmp"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
)

// VethConfig describes a pair of connected virtual Ethernet interfaces.
type VethConfig struct {
	// Names of the two ends. Default "a" and "b".
	Names [2]string
	// MACs are the hardware addresses of the two ends. Default: random ones.
	MACs [2]net.HardwareAddr
	// Peer is the namespace of the second end. Nil: the same as the first's.
	Peer *Namespace
	// Master is the index of the bridge that the first end becomes a port of.
	// Default: none.
	Master int
	// Queues is the number of receive and of transmit queues of each end.
	// Default 1. An end with an XDP program needs at least as many receive
	// queues as the other has transmit queues.
	Queues int
	// MTU of both ends in bytes. Default 1500.
	MTU int
}

// Veth creates a pair with both ends up.
func (n *Namespace) Veth(cfg VethConfig) error {
	if cfg.Names == [2]string{} {
		cfg.Names = [2]string{"a", "b"}
	}
	cfg.Queues = cmp.Or(cfg.Queues, 1)
	cfg.MTU = cmp.Or(cfg.MTU, 1500)
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr, attrs.MasterIndex = cfg.Names[0], cfg.MTU, cfg.MACs[0], cfg.Master
	attrs.NumRxQueues, attrs.NumTxQueues = cfg.Queues, cfg.Queues
	veth := &netlink.Veth{
		LinkAttrs: attrs, PeerName: cfg.Names[1], PeerHardwareAddr: cfg.MACs[1], PeerMTU: uint32(cfg.MTU),
		PeerNumRxQueues: uint32(cfg.Queues), PeerNumTxQueues: uint32(cfg.Queues),
	}
	peer := n
	if cfg.Peer != nil {
		peer = cfg.Peer
		veth.PeerNamespace = netlink.NsFd(peer.FD())
	}
	handle, err := n.handle()
	if err != nil {
		return err
	}
	defer handle.Close()
	err = handle.LinkAdd(veth)
	if err == nil {
		err = n.SetUp(cfg.Names[0], true)
	}
	if err == nil {
		err = peer.SetUp(cfg.Names[1], true)
	}
	if err != nil {
		return fmt.Errorf("testbed: make veth pair %s-%s: %w", cfg.Names[0], cfg.Names[1], err)
	}
	return nil
}
