// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"errors"
	"fmt"
	"net"
	"strconv"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// interfaceByName finds an interface of the calling thread's network namespace.
func interfaceByName(name string) (*net.Interface, error) {
	ifi, err := net.InterfaceByName(name)
	return ifi, explainLookup(strconv.Quote(name), err)
}

// interfaceByIndex finds an interface by its index.
func interfaceByIndex(index int) (*net.Interface, error) {
	ifi, err := net.InterfaceByIndex(index)
	return ifi, explainLookup(strconv.Itoa(index), err)
}

// linkByIndex is interfaceByIndex with the attributes that package net does not report.
func linkByIndex(index int) (netlink.Link, error) {
	l, err := netlink.LinkByIndex(index)
	return l, explainLookup(strconv.Itoa(index), err)
}

// needEthernet refuses a device whose packets begin with their IP headers, such as a tun or
// WireGuard device: what reads Ethernet headers finds nothing there.
func needEthernet(ifi *net.Interface, what, remedy string) error {
	l, err := linkByIndex(ifi.Index)
	if err != nil {
		return err
	}
	switch kind := l.Attrs().EncapType; kind {
	case "ether", "loopback": // loopback has Ethernet headers of zeros
		return nil
	default:
		return &FeatureError{
			Feature: what + " on " + ifi.Name, Needs: fmt.Sprintf("packets with Ethernet headers, which a device of type %q lacks", kind),
			Remedy: remedy, Err: unix.EPROTONOSUPPORT,
		}
	}
}

// explainLookup distinguishes an absent interface from a failed lookup, for want of descriptors or
// memory: an errno belongs to the lookup, since both packages have their own error for the absent
// one.
func explainLookup(which string, err error) error {
	var errno unix.Errno
	switch {
	case err == nil:
		return nil
	case errors.As(err, &errno):
		return fmt.Errorf("afxdp: look up interface %s: %w", which, err)
	}
	return fmt.Errorf("%w: %s: %w", ErrInterfaceGone, which, err)
}
