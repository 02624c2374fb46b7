// SPDX-License-Identifier: Apache-2.0

package link

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
)

// Addresses of frames carry no zone (RFC 4007): a link belongs to one interface, so a zone
// distinguishes nothing, and endpoints compare configured addresses with the sources of frames. A
// link removes the zone from its own address and from those of its peers.

// checkZone returns the index of the interface that the zone of a local address names, 0 for an
// address that needs none.
func checkZone(a netip.Addr) (index uint32, err error) {
	switch {
	case a.Zone() != "":
		index, err = zoneIndex(a.Zone())
		if err != nil {
			return 0, fmt.Errorf("%w: address %v: %w", ErrConfig, a, err)
		}
	case a.IsLinkLocalUnicast() && a.Is6():
		return 0, fmt.Errorf("%w: the link-local address %v has no interface: write it as %v%%eth0, with the interface's name", ErrConfig, a, a)
	}
	return index, nil
}

// zoneIndex returns the index of the interface that a zone gives by name or by number.
func zoneIndex(zone string) (uint32, error) {
	if ifi, err := net.InterfaceByName(zone); err == nil {
		return uint32(ifi.Index), nil
	}
	if n, err := strconv.Atoi(zone); err == nil {
		if ifi, err := net.InterfaceByIndex(n); err == nil {
			return uint32(ifi.Index), nil
		}
	}
	return 0, fmt.Errorf("zone %q is no interface of this host", zone)
}

// peerZone checks that the zone of a peer's address is that of the link, whose index is given, and
// returns the address without it.
func peerZone(peer netip.Addr, index uint32) (netip.Addr, error) {
	if peer.Zone() == "" {
		return peer, nil
	}
	zone, err := zoneIndex(peer.Zone())
	if err == nil && zone != index {
		err = fmt.Errorf("the link is not on the interface %q: give it an address with this zone", peer.Zone())
	}
	return peer.WithZone(""), err
}
