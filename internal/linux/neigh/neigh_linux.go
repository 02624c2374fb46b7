// SPDX-License-Identifier: Apache-2.0

package neigh

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Errors of Resolve, which wraps them with the address and the interface.
var (
	// ErrNoRoute means that the routing table has no route to the destination through the
	// interface.
	ErrNoRoute = errors.New("no route")
	// ErrLocal means that the destination is an address of this host, which frames on a wire do not
	// reach.
	ErrLocal = errors.New("destination is an address of this host; frames on the interface do not reach it (use the udp backend)")
	// ErrUnresolved means that the next hop does not answer ARP or neighbour
	// discovery.
	ErrUnresolved = errors.New("next hop does not answer ARP or neighbour discovery; is it up, and in the same network?")
	// ErrNoEthernet means that the route uses an interface without Ethernet addresses.
	ErrNoEthernet = errors.New("interface has no Ethernet neighbours")
)

// valid are the states in which the kernel would send to an entry.
const valid = unix.NUD_PERMANENT | unix.NUD_REACHABLE | unix.NUD_STALE | unix.NUD_DELAY | unix.NUD_PROBE

// discardPort is RFC 863's; the probe's payload is empty.
const discardPort = 9

// Hop is the first hop to a destination.
type Hop struct {
	Link   string     // name of the outgoing interface
	Source netip.Addr // source address that the kernel would choose
	Next   netip.Addr // gateway, or the destination itself
	MAC    [6]byte    // Ethernet address of Next
}

// Resolve returns the first hop towards dst through the named interface, in the network namespace
// of the calling thread; an empty name takes the interface that the routing table prefers. If the
// neighbour table has no entry, it makes the kernel resolve the address, and waits until ctx ends
// or the kernel gives up (about three seconds with its default settings).
func Resolve(ctx context.Context, link string, dst netip.Addr) (Hop, error) {
	hop, err := resolve(ctx, link, dst.Unmap())
	if err != nil {
		through := ""
		if link != "" {
			through = " through " + link
		}
		return Hop{}, fmt.Errorf("resolving the Ethernet address for %v%s: %w", dst, through, err)
	}
	return hop, nil
}

func resolve(ctx context.Context, link string, dst netip.Addr) (Hop, error) {
	// A goroutine that changes threads in between might change network namespaces.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	hop, index, err := route(link, dst)
	if err != nil {
		return hop, err
	}
	probed := false
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		mac, state, err := new(Table).lookup(index, hop.Next)
		switch {
		case err != nil || state&valid != 0:
			if state&unix.NUD_STALE != 0 {
				confirm(hop, index, dst)
			}
			return finish(hop, mac, err)
		case state&unix.NUD_NOARP != 0:
			return hop, ErrNoEthernet
		case state&unix.NUD_FAILED != 0 && probed:
			return hop, fmt.Errorf("%v: %w", hop.Next, ErrUnresolved)
		case state == unix.NUD_NONE || state&unix.NUD_FAILED != 0:
			// An entry may disappear before it is seen.
			if err := probe(hop, dst); err != nil {
				return hop, err
			}
			probed = true
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return hop, fmt.Errorf("%v: %w (%w)", hop.Next, ErrUnresolved, context.Cause(ctx))
		}
	}
}

func finish(hop Hop, mac net.HardwareAddr, err error) (Hop, error) {
	if err == nil && len(mac) != len(hop.MAC) {
		err = ErrNoEthernet
	}
	if err != nil {
		return hop, err
	}
	copy(hop.MAC[:], mac)
	return hop, nil
}

// route asks the routing table for the first hop towards dst.
func route(link string, dst netip.Addr) (Hop, int, error) {
	// First without the interface: for a given one, the kernel assumes that destinations without a
	// route are directly reachable.
	hop, index, err := routeThrough("", dst)
	if err == nil && link != "" && hop.Link != link {
		return routeThrough(link, dst)
	}
	return hop, index, err
}

func routeThrough(link string, dst netip.Addr) (Hop, int, error) {
	routes, err := netlink.RouteGetWithOptions(dst.AsSlice(), &netlink.RouteGetOptions{Oif: link})
	if err != nil {
		if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) {
			err = ErrNoRoute
		}
		return Hop{}, 0, err
	}
	if len(routes) == 0 {
		return Hop{}, 0, ErrNoRoute
	}
	return parseRoute(routes[0], dst)
}

func parseRoute(r netlink.Route, dst netip.Addr) (Hop, int, error) {
	switch r.Type {
	case unix.RTN_UNICAST:
	case unix.RTN_LOCAL:
		return Hop{}, 0, ErrLocal
	default:
		return Hop{}, 0, fmt.Errorf("%w: the routing table's entry is not unicast (type %d)", ErrNoRoute, r.Type)
	}
	hop := Hop{Next: dst}
	if gw := r.Gw; gw != nil {
		hop.Next = addr(gw)
	} else if via, ok := r.Via.(*netlink.Via); ok { // an IPv4 route through an IPv6 gateway
		hop.Next = addr(via.Addr)
	}
	if r.Src != nil {
		hop.Source = addr(r.Src)
	}
	l, err := netlink.LinkByIndex(r.LinkIndex)
	if err != nil {
		return Hop{}, 0, err
	}
	hop.Link = l.Attrs().Name
	return hop, r.LinkIndex, nil
}

// probe sends an empty datagram, so that the kernel resolves the next hop.
func probe(hop Hop, dst netip.Addr) error {
	d := net.Dialer{Control: bindTo(hop.Link)}
	if dst.IsLinkLocalUnicast() && dst.Is6() {
		dst = dst.WithZone(hop.Link)
	}
	c, err := d.Dial("udp", netip.AddrPortFrom(dst, discardPort).String())
	if err != nil {
		return fmt.Errorf("probing: %w", err)
	}
	defer c.Close()
	if _, err := c.Write(nil); err != nil {
		return fmt.Errorf("probing: %w", err)
	}
	return nil
}

func addr(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}
