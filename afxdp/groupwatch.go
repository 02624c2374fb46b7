// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/libra-ina/libra/internal/linux/netwatch"
)

// programCheck is the longest time between two looks of keepProgram.
const programCheck = time.Second

// keepProgram follows the interface until ctx is done: it logs what changes, and attaches the
// program again when another process has detached it, which no socket notices. An interface that is
// down may still be changing, or be a different one: then the loops that wait for it attach the
// program, when it is up.
func (g *Group) keepProgram(ctx context.Context) error {
	changed := make(chan int, 1)
	stop, err := g.follow(changed)
	if err != nil {
		// Changes are not logged, for want of a privilege or of descriptors.
		g.logger().Debug("afxdp: the interface is not followed", "error", err)
	}
	defer stop()
	index := 0
	for {
		select {
		case <-ctx.Done():
			return nil
		case index = <-changed:
		case <-time.After(programCheck):
		}
		// The loops report that the interface is gone or down.
		if err := g.reattach(index); err != nil && !errors.Is(err, ErrInterfaceGone) && !errors.Is(err, ErrLinkDown) &&
			!lacksDescriptors(err) {
			return err
		}
	}
}

// follow logs the changes of the interface and sends its index after each, until stop is called.
func (g *Group) follow(changed chan int) (stop func(), err error) {
	stop = func() {}
	err = g.home.runInside(func() error {
		iface, err := netwatch.Find(g.ifname, g.logger(), g.needs)
		if err != nil {
			return err
		}
		iface.After = "sockets and program are moved to it"
		iface.Kept = "packets that the program builds need it as their source"
		w, err := netwatch.Start(netwatch.Interfaces, func() {
			s, err := iface.Look()
			if err != nil {
				return // it is tried again soon
			}
			select {
			case <-changed:
			default:
			}
			changed <- s.Index
		})
		if err == nil {
			stop = w.Close
		}
		return err
	})
	return stop, err
}

// reattach attaches the program to the interface unless it is on the one with the index, to which a
// socket was bound; 0 means any.
func (g *Group) reattach(ifindex int) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed || g.program == nil {
		return nil
	}
	on, err := g.program.attachedTo()
	if err != nil || on != 0 && (on == ifindex || ifindex == 0) {
		return err
	}
	return g.home.runInside(func() error {
		ifi, err := g.program.presentInterface()
		switch {
		case err != nil:
			return err
		case ifi.Flags&net.FlagUp == 0:
			return fmt.Errorf("%w: %s", ErrLinkDown, ifi.Name)
		}
		detached := g.program.index == ifi.Index
		if err = g.program.Reattach(); err == nil && detached {
			g.logger().Warn("another process has detached the XDP program; it is attached again", "interface", ifi.Name)
		}
		return err
	})
}
