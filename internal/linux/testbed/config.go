// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
)

// Defaults of [Config].
const (
	DefaultHosts  = 2
	DefaultQueues = 1
	DefaultMTU    = 3440
	DefaultPrefix = "10.77.0.0/24"
)

// The largest bed: a Linux bridge has 1023 ports, and a veth end for XDP programs should not have
// more queues than there are CPUs.
const (
	maxHosts  = 1000
	maxQueues = 64
	minMTU    = 576 // every IPv4 host must accept this (RFC 791)
	maxMTU    = 65535
)

// Config describes a bed; its zero value is two hosts with the defaults above.
type Config struct {
	// Hosts is the number of hosts; 0 means DefaultHosts.
	Hosts int
	// Queues is the number of transmit and of receive queues at both ends of
	// every veth pair; 0 means DefaultQueues. XDP on veth needs at least as many
	// receive queues as the peer has transmit queues, hence the same number.
	Queues int
	// MTU of all interfaces in bytes; 0 means DefaultMTU.
	MTU int
	// Above joins more switches to the first, whose index is 0: Above[i] is the index of the switch to
	// which a cable leads from switch 1+i, a smaller one, so that there are no loops.
	Above []int
	// At has the index of each host's switch; nil: all are at the first.
	At []int
	// Prefix is the IPv4 network of the bed: the switch gets its first address, host i the one at
	// offset 2+i, and more switches those after the hosts'. The zero value means DefaultPrefix.
	Prefix netip.Prefix
	// ThreadedNAPI receives frames in a kernel thread for each queue instead of the softirq of the
	// sender's CPU, so that a second CPU can share the work.
	ThreadedNAPI bool
	// StaticARP gives every node permanent neighbour entries for all others, so
	// that no ARP frame is ever sent.
	StaticARP bool
	// Unbridged adds no host's port to the bridge, for a program that switches between them. The
	// switch's bridge keeps its address, and has one port: the other end of that cable is
	// [UplinkName], one more port for the program.
	Unbridged bool
}

// UplinkName is the interface towards the switch's own address in an unbridged bed.
const UplinkName = "uplink"

func (c Config) withDefaults() (Config, error) {
	c.Hosts = cmp.Or(c.Hosts, DefaultHosts)
	c.Queues = cmp.Or(c.Queues, DefaultQueues)
	c.MTU = cmp.Or(c.MTU, DefaultMTU)
	if !c.Prefix.IsValid() {
		c.Prefix = netip.MustParsePrefix(DefaultPrefix)
	}
	c.Prefix = c.Prefix.Masked()

	switch {
	case c.Hosts < 1 || c.Hosts > maxHosts:
		return c, fmt.Errorf("%w: %d hosts, want 1 to %d", ErrConfig, c.Hosts, maxHosts)
	case c.Queues < 1 || c.Queues > maxQueues:
		return c, fmt.Errorf("%w: %d queues, want 1 to %d", ErrConfig, c.Queues, maxQueues)
	case c.MTU < minMTU || c.MTU > maxMTU:
		return c, fmt.Errorf("%w: MTU of %d bytes, want %d to %d", ErrConfig, c.MTU, minMTU, maxMTU)
	case !c.Prefix.Addr().Is4():
		return c, fmt.Errorf("%w: prefix %v is not IPv4", ErrConfig, c.Prefix)
	}
	// Network address, switches, hosts, broadcast address.
	if size := uint64(1) << (32 - c.Prefix.Bits()); size < uint64(c.Hosts)+3+uint64(len(c.Above)) {
		return c, fmt.Errorf("%w: prefix %v has no room for %d switches and %d hosts", ErrConfig, c.Prefix, 1+len(c.Above),
			c.Hosts)
	}
	return c, c.checkSwitches()
}

// checkSwitches checks how switches and hosts are joined.
func (c Config) checkSwitches() error {
	if len(c.Above) > 0 && c.Unbridged {
		return fmt.Errorf("%w: an unbridged bed has one switch", ErrConfig)
	}
	for i, above := range c.Above {
		if above < 0 || above > i {
			return fmt.Errorf("%w: a cable from switch %d leads to switch %d, want one before it", ErrConfig, 1+i, above)
		}
	}
	if c.At != nil && len(c.At) != c.Hosts {
		return fmt.Errorf("%w: the switches of %d hosts are given, of %d", ErrConfig, len(c.At), c.Hosts)
	}
	for i, at := range c.At {
		if at < 0 || at > len(c.Above) {
			return fmt.Errorf("%w: host %d is at switch %d of %d", ErrConfig, i, at, 1+len(c.Above))
		}
	}
	return nil
}

// Offsets of the addresses in the prefix.
const (
	switchOffset = 1
	hostOffset   = 2
)

// switchAt returns the offset of a switch's address.
func (c Config) switchAt(i int) int {
	if i == 0 {
		return switchOffset
	}
	return hostOffset + c.Hosts + i - 1
}

// address returns the address at an offset in the bed's prefix.
func (c Config) address(offset int) netip.Addr {
	b := c.Prefix.Addr().As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(offset))
	return netip.AddrFrom4(b)
}

// Kinds of hardware address: the fourth byte.
const (
	macNode = 0 // a host, or the switch's bridge
	macPort = 1 // a switch port
)

// hardwareAddr returns a locally administered address (02:4c:42, "LB") that
// ends in the offset of the node's IP address, so that a packet dump can be
// read without a table.
func hardwareAddr(kind byte, offset int) net.HardwareAddr {
	return net.HardwareAddr{0x02, 0x4c, 0x42, kind, byte(offset >> 8), byte(offset)}
}
