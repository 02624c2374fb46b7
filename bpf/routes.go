// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/libra-ina/libra/aggregator"
)

// AddRoute declares that the host with the address mac is behind an interface, which may be renamed
// later. It replaces an earlier route.
//
// The program forwards an untagged Libra frame between two hosts that have routes to different
// interfaces, if it was received on the interface of its sender. All others go to the kernel and
// its bridge. So do frames to an interface that does not support XDP transmission (known since
// Linux 6.3; a veth supports it while its peer has an XDP program or GRO enabled), and frames from
// and to interfaces that [Aggregator.SetForwarding] excludes.
//
// A sender with that address gets the results of rounds only on this interface.
func (a *Aggregator) AddRoute(mac [6]byte, iface string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return aggregator.ErrClosed
	}
	index, err := a.interfaceIndex(iface)
	if err != nil {
		return err
	}
	if err := a.watchTargets(); err != nil {
		return fmt.Errorf("bpf: route to %s: %w", iface, err)
	}
	old, moved := a.routes[mac]
	a.routes[mac] = index
	err = a.updateTarget(index)
	if err == nil {
		err = a.updateRoute(mac)
	}
	if err == nil && moved && old != index {
		err = a.updateTarget(old)
	}
	if err != nil {
		return fmt.Errorf("bpf: route to %s: %w", iface, err)
	}
	return a.updateAllPorts()
}

// RemoveRoute reverses AddRoute. It is not an error if there is no such route.
func (a *Aggregator) RemoveRoute(mac [6]byte) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return aggregator.ErrClosed
	}
	index, ok := a.routes[mac]
	if !ok {
		return nil
	}
	delete(a.routes, mac)
	if err := errors.Join(a.updateRoute(mac), a.updateTarget(index)); err != nil {
		return fmt.Errorf("bpf: remove route: %w", err)
	}
	return a.updateAllPorts()
}

// SetForwarding allows or forbids forwarding of frames between hosts that arrive or leave on an
// interface. It is allowed by default.
func (a *Aggregator) SetForwarding(iface string, on bool) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return aggregator.ErrClosed
	}
	index, err := a.interfaceIndex(iface)
	if err != nil {
		return err
	}
	if on {
		delete(a.withheld, index)
	} else {
		a.withheld[index] = struct{}{}
	}
	errs := []error{a.updateTarget(index)}
	for mac, at := range a.routes {
		if at == index {
			errs = append(errs, a.updateRoute(mac))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("bpf: forwarding at %s: %w", iface, err)
	}
	return nil
}

// updateRoute adds a route to the program's table or deletes it. The caller holds the lock.
func (a *Aggregator) updateRoute(mac [6]byte) error {
	index, ok := a.routes[mac]
	if _, withheld := a.withheld[index]; ok && !withheld {
		return a.objects.Routes.Put(routeKey(mac), index)
	}
	return absent(a.objects.Routes.Delete(routeKey(mac)))
}

// absent ignores the error that a key to be deleted does not exist: the kernel deletes removed
// interfaces.
func absent(err error) error {
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	return err
}

// routeKey is the address followed by two zero bytes.
func routeKey(mac [6]byte) (key [8]byte) {
	copy(key[:], mac[:])
	return key
}
