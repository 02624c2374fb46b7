//go:build linux

package bpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/libra-ina/libra/aggregator"
)

// AddRoute makes the program forward Libra frames between hosts that have the
// destination address mac to an interface, which stays the same when the
// interface is renamed. It replaces an earlier route. Frames without a route
// go to the kernel. There may be 256 routes. A sender with that address gets the
// results of rounds on this interface only.
//
// The interface's driver must support XDP transmission; a veth does if its
// peer has an XDP program or GRO switched on.
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
	if err := a.objects.Ports.Put(index, index); err != nil {
		return fmt.Errorf("bpf: route to %s: %w", iface, err)
	}
	if err := a.objects.Routes.Put(routeKey(mac), index); err != nil {
		return fmt.Errorf("bpf: route to %s: %w", iface, err)
	}
	a.routes[mac] = index
	return a.updateAllPorts()
}

// RemoveRoute takes back AddRoute. It is no error if there is no such route.
func (a *Aggregator) RemoveRoute(mac [6]byte) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return aggregator.ErrClosed
	}
	if err := a.objects.Routes.Delete(routeKey(mac)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("bpf: remove route: %w", err)
	}
	delete(a.routes, mac)
	return a.updateAllPorts()
}

// routeKey is the address followed by two zero bytes.
func routeKey(mac [6]byte) (key [8]byte) {
	copy(key[:], mac[:])
	return key
}
