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

// interfaceByIndex is interfaceByName by another key.
func interfaceByIndex(index int) (*net.Interface, error) {
	ifi, err := net.InterfaceByIndex(index)
	return ifi, explainLookup(strconv.Itoa(index), err)
}

// linkByIndex is interfaceByIndex with what package net does not tell.
func linkByIndex(index int) (netlink.Link, error) {
	l, err := netlink.LinkByIndex(index)
	return l, explainLookup(strconv.Itoa(index), err)
}

// explainLookup tells an absent interface from a question that failed, for want of descriptors or memory: an errno
// is of the question, since both packages have an error of their own for the absent one.
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
