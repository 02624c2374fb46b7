// SPDX-License-Identifier: Apache-2.0

package neigh

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Table caches the kernel's neighbour tables, so that many destinations can be looked up at one
// moment. The zero value is empty; a Table is used once.
type Table struct {
	of map[tableKey]map[netip.Addr]netlink.Neigh
}

type tableKey struct{ index, family int }

// lookup returns the neighbour table's entry for an address, in state NUD_NONE if there is none.
func (t *Table) lookup(index int, next netip.Addr) (net.HardwareAddr, int, error) {
	key := tableKey{index, netlink.FAMILY_V6}
	if next.Is4() {
		key.family = netlink.FAMILY_V4
	}
	entries, read := t.of[key]
	if !read {
		list, err := netlink.NeighList(index, key.family)
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return nil, 0, fmt.Errorf("reading the neighbour table: %w", err)
		}
		entries = make(map[netip.Addr]netlink.Neigh, len(list))
		for _, e := range list {
			entries[addr(e.IP)] = e
		}
		if t.of == nil {
			t.of = make(map[tableKey]map[netip.Addr]netlink.Neigh)
		}
		t.of[key] = entries
	}
	e, ok := entries[next]
	if !ok {
		return nil, unix.NUD_NONE, nil
	}
	return e.HardwareAddr, e.State, nil
}

// Again is [Resolve] without waiting, for a sender that has resolved dst before and goes on
// sending: frames that bypass the kernel's stack do not make it check that a neighbour still has
// the address that it had, so a stale entry would stay as it is for ever.
//
// It returns the hop with the address that the kernel would use now, and makes the kernel check a
// stale entry, as a packet of its own would. ok is false if the kernel has no address at the
// moment; then it has been made to look for one.
//
// With doubt, the kernel also checks entries that it believes to be right, for a sender who hears
// nothing from its peer. Without CAP_NET_ADMIN that has no effect.
func Again(link string, dst netip.Addr, t *Table, doubt bool) (hop Hop, ok bool, err error) {
	dst = dst.Unmap()
	runtime.LockOSThread() // as Resolve
	defer runtime.UnlockOSThread()
	hop, index, err := route(link, dst)
	if err != nil {
		return hop, false, err
	}
	mac, state, err := t.lookup(index, hop.Next)
	switch {
	case err != nil:
		return hop, false, err
	case state&valid != 0:
		switch {
		case state&unix.NUD_STALE != 0:
			confirm(hop, index, dst)
		case doubt && state&unix.NUD_REACHABLE != 0:
			_ = set(hop, index, unix.NUD_PROBE, 0)
		}
		hop, err = finish(hop, mac, nil)
		return hop, err == nil, err
	case state&unix.NUD_NOARP != 0:
		return hop, false, ErrNoEthernet
	case state&unix.NUD_INCOMPLETE == 0:
		confirm(hop, index, dst)
	}
	return hop, false, nil
}

// confirm makes the kernel check an entry, or resolve an address without one. It fails silently:
// the entry is used as it is.
func confirm(hop Hop, index int, dst netip.Addr) {
	if set(hop, index, unix.NUD_NONE, netlink.NTF_USE) != nil {
		_ = probe(hop, dst) // which needs no privilege
	}
}

// set changes the state of an entry, or with a flag does what that asks for.
func set(hop Hop, index, state, flags int) error {
	return netlink.NeighSet(&netlink.Neigh{LinkIndex: index, IP: hop.Next.AsSlice(), State: state, Flags: flags})
}
