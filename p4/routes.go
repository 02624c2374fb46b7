// SPDX-License-Identifier: Apache-2.0

package p4

import (
	"fmt"
	"net"

	"github.com/libra-ina/libra/aggregator"
)

// AddRoute sets the port of the switch behind which a host is. It replaces an earlier route.
func (p *Plane) AddRoute(mac [6]byte, port uint32) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return aggregator.ErrClosed
	}
	if old, ok := p.routes[mac]; ok && old != port {
		if err := p.removeRoute(mac, old); err != nil {
			return err
		}
	}
	what := fmt.Sprintf("route to %v", net.HardwareAddr(mac[:]))
	// Not all switches report that a table is full: bmv2 returns an unknown error.
	if _, ok := p.routes[mac]; !ok && len(p.routes) == int(p.names.tables[tableHosts].size) {
		return fmt.Errorf("p4: %s: %w: it has room for %d hosts: leave some out, frames for them go to all ports", what,
			ErrFull, len(p.routes))
	}
	if err := p.client.putEntry(what, entry{
		table: tableHosts, keys: []number{macNumber(mac)}, action: actionSend,
		params: map[string]number{"port": uintNumber(uint64(port))},
	}); err != nil {
		return err
	}
	p.routes[mac] = port
	return p.client.putEntry(what, homeEntry(mac, port, actionHome))
}

// RemoveRoute removes the route of AddRoute. Removing a missing route is no error.
func (p *Plane) RemoveRoute(mac [6]byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return aggregator.ErrClosed
	}
	if port, ok := p.routes[mac]; ok {
		return p.removeRoute(mac, port)
	}
	return nil
}

func (p *Plane) removeRoute(mac [6]byte, port uint32) error {
	what := fmt.Sprintf("route to %v", net.HardwareAddr(mac[:]))
	if err := p.client.removeEntry(what, homeEntry(mac, port, "")); err != nil {
		return err
	}
	if err := p.client.removeEntry(what, entry{table: tableHosts, keys: []number{macNumber(mac)}}); err != nil {
		return err
	}
	delete(p.routes, mac)
	return nil
}

func homeEntry(mac [6]byte, port uint32, action string) entry {
	return entry{table: tableHomes, keys: []number{macNumber(mac), uintNumber(uint64(port))}, action: action}
}
