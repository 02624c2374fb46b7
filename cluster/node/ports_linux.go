// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/libra-ina/libra/bpf"
	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/internal/linux/netwatch"
	"github.com/libra-ina/libra/wire"
)

// switchPorts keeps the XDP aggregator on its interfaces: they may be deleted and created again, as
// when a virtual machine behind one restarts, and other tools may detach programs. It logs what
// else happens to them that workers suffer from.
type switchPorts struct {
	plane *bpf.Aggregator
	log   *slog.Logger
	ports []*netwatch.Interface
	own   *netwatch.Interface // the interface of the switch's address, nil if it is unknown
	watch *netwatch.Watch
	// prepare is called for a port that was created again, until it succeeds.
	prepare  func(name string) error
	prepared map[*netwatch.Interface]int // index of the interface for which it was
}

// keepPorts starts to follow the interfaces of a switch, in the network namespace of the calling
// thread.
func keepPorts(c *cluster.Config, plane *bpf.Aggregator, log *slog.Logger,
	prepare func(name string) error) (*switchPorts, error) {
	k := &switchPorts{plane: plane, log: log, prepare: prepare, prepared: map[*netwatch.Interface]int{}}
	for _, name := range c.Switch.Interfaces {
		port, err := netwatch.Find(name, log, netwatch.Needs{MinMTU: wire.HotMTU(c.Switch.Stripes), Bridge: true})
		if err != nil {
			return nil, err
		}
		port.Kept = "the hosts behind it do not depend on it"
		k.ports = append(k.ports, port)
		k.prepared[port] = port.State().Index
	}
	if err := k.findOwn(c.Switch.Address); err != nil {
		return nil, err
	}
	var err error
	k.watch, err = netwatch.Start(netwatch.Interfaces, k.lookAtPorts)
	return k, err
}

// findOwn finds the interface that has the switch's address.
func (k *switchPorts) findOwn(address netip.Addr) error {
	addrs, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return fmt.Errorf("addresses of this host: %w", err)
	}
	for _, a := range addrs {
		if ip, ok := netip.AddrFromSlice(a.IP); !ok || ip.Unmap() != address {
			continue
		}
		l, err := netlink.LinkByIndex(a.LinkIndex)
		if err != nil {
			return fmt.Errorf("interface of the address %v: %w", address, err)
		}
		k.own, err = netwatch.Find(l.Attrs().Name, k.log, netwatch.Needs{Address: address})
		if err != nil {
			return err
		}
		k.own.Kept = "other hosts find the new one by themselves"
	}
	return nil
}

func (k *switchPorts) lookAtPorts() {
	for _, port := range k.ports {
		port.Problem("the port does not take part in the aggregation", k.lookAt(port))
	}
	if k.own != nil {
		_, err := k.own.Look()
		k.own.Problem("the interface of the switch's address cannot be read", err)
	}
}

// lookAt attaches the program to a port again if necessary. A new port may take it only later, for
// example when its MTU fits: until then it is not prepared.
func (k *switchPorts) lookAt(port *netwatch.Interface) error {
	s, err := port.Look()
	if err != nil || s.Index == 0 {
		return err
	}
	again, err := k.plane.Reattach(port.Configured(), s.Index)
	isNew := k.prepared[port] != s.Index
	switch {
	case again && isNew:
		k.log.Warn("the XDP program is attached to the new port", "interface", port.Configured())
	case again:
		k.log.Warn("another process has detached the XDP program from the port; it is attached again", "interface",
			port.Configured())
	}
	if err != nil || !isNew {
		return err
	}
	if err := k.prepare(s.Name); err != nil {
		return err
	}
	k.prepared[port] = s.Index
	return nil
}

func (k *switchPorts) closePorts() { k.watch.Close() }
