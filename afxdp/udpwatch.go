// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"context"
	"errors"
	"net"

	"github.com/libra-ina/libra/internal/linux/netwatch"
)

// udpPort is what packets of a connection take from its interface.
type udpPort struct {
	name string
	mac  [6]byte
	room int  // largest payload in bytes
	lost bool // the connection's own address was the interface's, and is not any more
}

// watchPort reads the interface, and begins to follow its changes.
func (c *UDPConn) watchPort(ifname string) (err error) {
	needs := netwatch.Needs{MaxMTU: c.group.umem.RxRoom() - minPacket - 4}
	if c.iface, err = netwatch.Find(ifname, c.group.logger(), needs); err != nil {
		return err
	}
	if s := c.iface.State(); s.Has(c.local.Addr()) {
		c.iface.Needs.Address = c.local.Addr()
	}
	c.iface.After = "receiving goes on there"
	c.iface.Kept = "packets are sent from the new one"
	c.now.Store(c.portOf(c.iface.State()))
	c.watch, err = netwatch.Start(netwatch.Everything, c.lookAtPort)
	return err
}

func (c *UDPConn) portOf(s netwatch.State) *udpPort {
	p := &udpPort{name: s.Name, room: min(s.MTU-20, c.group.umem.RxRoom()-14-20) - udpHeader}
	copy(p.mac[:], s.MAC)
	if c.local.Addr().Is6() {
		p.room -= 40 - 20
	}
	p.lost = c.iface.Needs.Address.IsValid() && !s.Has(c.local.Addr())
	return p
}

// lookAtPort is called by the watch.
func (c *UDPConn) lookAtPort() {
	s, err := c.iface.Look()
	c.iface.Problem("the interface cannot be read", err)
	if err != nil {
		return
	}
	if s.Index == 0 {
		c.hops.clearHops()
		return
	}
	c.now.Store(c.portOf(s))
	// A reader that waits does this itself. Without one, senders need it.
	if c.reading.TryLock() {
		if c.writing.TryLock() {
			c.iface.Problem("the sockets do not work", c.reviveSockets())
			c.writing.Unlock()
		}
		c.reading.Unlock()
	}
	c.iface.Problem("the interface has no XDP program of this process", ignoreAbsence(c.group.reattach(s.Index)))
	c.hops.refreshHops(s.Name)
}

// reviveSockets binds the sockets to the interface again, if it was deleted and created. It is no
// error if there is none yet. The caller holds both locks.
func (c *UDPConn) reviveSockets() error {
	now, cancel := context.WithCancel(context.Background())
	cancel()
	for _, s := range c.group.sockets {
		if err := ignoreAbsence(s.Recover(now)); err != nil {
			return err
		}
	}
	return nil
}

// ignoreAbsence drops errors that are over when an interface is back, or a descriptor is free, and
// those of a connection that is being closed.
func ignoreAbsence(err error) error {
	for _, passing := range []error{ErrInterfaceGone, ErrLinkDown, ErrNoProgram, net.ErrClosed} {
		if errors.Is(err, passing) {
			return nil
		}
	}
	if lacksDescriptors(err) {
		return nil
	}
	return err
}
